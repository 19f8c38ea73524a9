"""A beginning that prompts share is read once, and nobody can tell from the answers."""

import random

import pytest
import torch
from helpers import FAMILIES, alone_greedy, count, random_prompts

import qwenlab
from qwenlab.engine.prefix import share
from qwenlab.engine.prompts import make_requests
from qwenlab.engine.scheduler import POLICIES


def generate_both(model, prompts, shared, **options):
    """The same call with sharing and without: same ids, same log-probabilities. Returns the tokens
    read each time."""
    together = qwenlab.generate(model, prompts, shared_prefix=shared, **options)
    apart = qwenlab.generate(model, prompts, shared_prefix=False, **options)
    assert together.token_ids == apart.token_ids
    for a, b in zip(together, apart, strict=True):
        assert (
            a.logprobs == pytest.approx(b.logprobs, abs=1e-4) and a.finish_reason == b.finish_reason
        )
        assert a.prefixes == [] and b.prefixes == []  # no copy is kept
    return together.stats.prefill_tokens, apart.stats.prefill_tokens


@pytest.mark.parametrize("strategy", POLICIES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_n_answers_read_their_prompt_once(model, strategy, temperature):
    """All but its last token, which each row reads by itself for the logits behind it."""
    prompts = random_prompts(random.Random(1), 3, 40)
    options = {
        "n": 4,
        "max_new_tokens": 5,
        "stop": (),
        "temperature": temperature,
        "strategy": strategy,
    }
    for slots in (64, 3):
        read, unshared = generate_both(model, prompts, None, slots=slots, **options)
        assert read == sum(len(prompt) - 1 + 4 for prompt in prompts)
        assert unshared == 4 * sum(map(len, prompts))


@pytest.mark.parametrize("family", FAMILIES)
def test_eight_answers_to_a_thousand_tokens(family):
    """Counted, not timed: 999 tokens once and one for each answer, of 8,000."""
    model = FAMILIES[family](max_position_embeddings=1100)
    prompt = [random.Random(2).randrange(300) for _ in range(1000)]
    result = qwenlab.generate(model, [prompt], n=8, max_new_tokens=3, stop=(), temperature=1.0)
    assert result.stats.prefill_tokens == 999 + 8 and result.stats.padded_tokens == 0
    apart = qwenlab.generate(
        model, [prompt], n=8, max_new_tokens=3, stop=(), temperature=1.0, shared_prefix=False
    )
    assert apart.stats.prefill_tokens == 8000 and apart.token_ids == result.token_ids


@pytest.mark.parametrize("strategy", POLICIES)
def test_prompts_with_a_common_beginning_share_it(model, strategy):
    rng = random.Random(3)
    common = [rng.randrange(300) for _ in range(30)]
    prompts = [common + rest for rest in ([1], [2, 3], [4, 5, 6, 7], [2, 9])]
    read, _ = generate_both(
        model, prompts, True, max_new_tokens=6, stop=(), strategy=strategy, slots=3
    )
    assert read == 30 + sum(len(prompt) - 30 for prompt in prompts)
    # The whole of the shortest prompt: its last token is read by everybody.
    read, _ = generate_both(
        model, [common, *prompts], True, max_new_tokens=6, stop=(), strategy=strategy
    )
    assert read == 29 + 1 + sum(len(prompt) - 29 for prompt in prompts)
    # And both: the common beginning once, then each prompt's own once.
    read, _ = generate_both(
        model, prompts, True, n=3, max_new_tokens=6, stop=(), strategy=strategy, slots=5
    )
    assert read == 30 + sum(len(prompt) - 31 + 3 for prompt in prompts)


def test_the_answers_are_those_alone(model):
    common = list(range(20))
    prompts = [[*common, i] for i in range(4)]
    result = qwenlab.generate(
        model, prompts, n=2, shared_prefix=True, max_new_tokens=5, stop=(), slots=3
    )
    assert result.token_ids == [
        alone_greedy(model, prompt, 5) for prompt in prompts for _ in range(2)
    ]


def test_nothing_in_common_is_no_trouble(model):
    for prompts in ([[1], [1]], [[1, 2], [3, 4]], [[5]], []):
        read, apart = generate_both(model, prompts, True, max_new_tokens=2, stop=())
        assert read == apart
    mixed = [[1, 2, 3], [1, 2, 4], [1, 2, 5]]
    read, apart = generate_both(model, mixed, True, max_new_tokens=[0, 2, 2], stop=())
    assert (read, apart) == (4, 6)  # whoever says nothing reads nothing


@pytest.mark.parametrize("seed", range(count(8, 100)))
def test_random_sharing(model, seed):
    rng = random.Random(seed)
    common = random_prompts(rng, 1, 40)[0]
    prompts = [
        common[: rng.randint(1, len(common))] + prompt
        for prompt in random_prompts(rng, rng.randint(1, 4), 20)
    ]
    options = {
        "n": rng.randint(1, 4),
        "max_new_tokens": [rng.randint(0, 9) for _ in prompts],
        "stop": range(0, 320, 20),
        "temperature": rng.choice([0.0, 1.0]),
        "strategy": rng.choice(list(POLICIES)),
        "slots": rng.choice([1, 2, 3, 64]),
        "sort_by_length": rng.choice([True, False]),
    }
    read, apart = generate_both(model, prompts, True, **options)
    assert read <= apart


def test_whoever_waits_finds_another_reader(model):
    """The one who reads for all is cancelled, or breaks off: the next in line takes over."""
    prompt = list(range(40))
    requests = make_requests(model, [prompt], 3, max_new_tokens=4, stop=())
    share(requests, 3)
    engine = qwenlab.Engine(model, slots=3, chunk=10)
    for request in requests:
        engine.add_request(request)
    engine.step()
    assert [r.num_computed_tokens for r in requests] == [10, 0, 0]
    assert [event.kind for event in engine.stats.events] == ["prefill", "idle", "idle"]
    engine.cancel(requests[0])
    engine.step(), engine.step()
    assert sorted(r.num_computed_tokens for r in requests[1:]) == [0, 20]
    with pytest.raises(KeyboardInterrupt):
        hook = model.model.register_forward_pre_hook(interrupt)
        try:
            engine.step()
        finally:
            hook.remove()
    engine.run()
    assert [r.token_ids for r in requests[1:]] == [alone_greedy(model, prompt, 4)] * 2
    assert all(r.prefixes == [] for r in requests)


def interrupt(module, args):
    raise KeyboardInterrupt


def test_put_copies_one_row_over_many(model):
    state, one = model.new_state(4), model.new_state(1)
    model(torch.tensor([[1, 2, 3]]), state=one)
    model(torch.tensor([[4], [5], [6], [7]]), state=state)
    state.put([3, 1], one)
    repeated = one.repeat(2)
    for row, copy in ((3, 0), (1, 1)):
        assert int(state.lengths[row]) == 3
        for mine, theirs in zip(
            state.select([row]).layers, repeated.select([copy]).layers, strict=True
        ):
            for name, t in mine.items():
                used = slice(3 if name in ("keys", "values") else None)
                assert torch.equal(t[:, :, used], theirs[name][:, :, used])


@pytest.mark.parametrize("strategy", POLICIES)
def test_sorted_batches_have_fewer_pads_and_the_same_answers(model, strategy):
    """Results in the order asked, whatever the order in which they are seated."""
    prompts = [[i] * length for i, length in enumerate([20, 1, 19, 2, 18, 3])]
    options = {
        "max_new_tokens": 3,
        "stop": (),
        "temperature": 1.0,
        "strategy": strategy,
        "slots": 2,
    }
    as_asked = qwenlab.generate(model, prompts, **options)
    by_length = qwenlab.generate(model, prompts, sort_by_length=True, **options)
    assert by_length.token_ids == as_asked.token_ids and [r.index for r in by_length] == list(
        range(6)
    )
    assert [event.request for event in by_length.stats.events[:2]] == (
        [1, 3] if strategy != "sequential" else [1, 1]
    )
    if strategy in ("static", "early-stop"):
        assert as_asked.stats.padded_ratio == pytest.approx(51 / 114)
        assert by_length.stats.padded_ratio == pytest.approx((1 + 15 + 1) / (63 + 17))
