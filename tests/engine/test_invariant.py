"""invariant=True: a row's logits have the same bits in any company as alone, and rows still share
their passes."""

import random
from functools import cache

import pytest
import torch
from helpers import FAMILIES, count, difference, random_model

import qwenlab
from qwenlab.engine.engine import Engine
from qwenlab.engine.invariant import splits_evenly
from qwenlab.fast.invariant import attention_in_blocks
from qwenlab.model.attention import eager

NAMES = ("tiny", "tiny-hybrid")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@cache
def loaded(name, dtype, fast=True):
    return qwenlab.load(name, dtype=dtype, fast=fast)[0]


class Recorder:
    """A greedy sampler that keeps the logits of each request's every token."""

    def __init__(self):
        self.logits = {}

    def __call__(self, logits, requests):
        for row, request in zip(logits, requests, strict=True):
            if request.finish_reason is None:  # "static" goes on computing finished rows
                self.logits[request, len(request.logprobs)] = row
        return logits.max(-1).indices

    def of(self, request):
        """(tokens, V)"""
        return torch.stack([self.logits[request, t] for t in range(len(request.logprobs))])


def alone(model, prompt, cap):
    recorder = Recorder()
    (output,) = qwenlab.generate(
        model, [prompt], max_new_tokens=cap, stop=(), sampler=recorder, invariant=True
    )
    return output, recorder.of(output)


def some_prompts(rng, rows):
    longest = (20, 70, 150)
    lengths = [rng.randint(1, rng.choice(longest)) for _ in range(rows)]
    return [[rng.randrange(500) for _ in range(length)] for length in lengths]


def served(model, rng, prompts, caps):
    """The prompts' requests after an engine served them: they join at random moments, with slots,
    chunk, strategy, budget and capacity by chance. Returns each request and its logits."""
    strategy = rng.choice(("continuous", "early-stop", "static"))
    budget = rng.choice((None, 180)) if strategy != "static" else None
    recorder = Recorder()
    engine = Engine(
        model,
        rng.choice((1, 3, 16, 17, 40)),
        budget,
        rng.choice((1, 50, 64, 130, 256)),
        strategy=strategy,
        sampler=recorder,
        invariant=True,
    )
    capacity = rng.choice((None, 160, 200, 256))
    engine.runner.state = model.new_state(engine.runner.slots, capacity)
    waiting = list(zip(prompts, caps, strict=True))
    requests = []
    while waiting or engine.has_unfinished():
        if waiting and rng.random() < 0.7:
            prompt, cap = waiting.pop()
            requests.append(engine.submit(prompt, max_new_tokens=cap, stop=()))
        try:
            engine.step()
        except KeyboardInterrupt:
            pass
    return [(request, recorder.of(request)) for request in requests]


def assert_same_bits(model, answers):
    for request, logits in answers:
        output, expected = alone(model, request.prompt, request.max_tokens)
        assert torch.equal(logits, expected), f"a prompt of {len(request.prompt)} tokens"
        assert request.token_ids == output.token_ids and request.logprobs == output.logprobs


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_a_row_has_the_same_bits_in_any_company(name, dtype):
    """Random lengths, order, neighbours, joins, chunks, budgets and capacities: no bit of the
    logits changes."""
    model = loaded(name, dtype)
    for seed in range(count(8, 100)):
        rng = random.Random(seed)
        prompts = some_prompts(rng, rng.randint(2, count(6, 24)))
        caps = [rng.randint(1, 4) for _ in prompts]
        answers = served(model, rng, prompts, caps)
        assert_same_bits(model, rng.sample(answers, 2))


def test_without_it_some_row_differs():
    """What the mode is for; a machine where nothing differs is possible, so none is a skip."""
    differing = 0
    model = loaded("tiny", torch.float32)
    for seed in range(3):
        prompts = some_prompts(random.Random(seed), 6)
        options = {"max_new_tokens": 3, "stop": ()}
        batch = qwenlab.generate(model, prompts, **options)
        for prompt, row in zip(prompts, batch, strict=True):
            lone = qwenlab.generate(model, [prompt], **options)[0]
            differing += row.logprobs != lone.logprobs
    if differing == 0:
        pytest.skip("found no row whose bits depend on its neighbours on this machine")


@pytest.mark.parametrize("family", FAMILIES)
def test_models_of_other_shapes_and_plain_ones(family):
    """Random weights, and the plain model as well as the fast one."""
    for fast in (True, False):
        model = FAMILIES[family](fast=fast)
        rng = random.Random(5)
        prompts = [[rng.randrange(300) for _ in range(n)] for n in (3, 90, 1, 40, 64, 65)]
        assert_same_bits(model, served(model, rng, prompts, [3] * 6))


@pytest.mark.parametrize("name", NAMES)
def test_interrupted_steps_change_no_bit(name):
    """The answers so far are decoded again, not prefilled."""
    model = loaded(name, torch.float32)
    rng = random.Random(0)
    passes = 0

    def interrupt(module, inputs):
        nonlocal passes
        passes += 1
        if passes % 12 == 0:
            raise KeyboardInterrupt

    hook = model.model.layers[-1].register_forward_pre_hook(interrupt)
    try:
        answers = served(model, rng, some_prompts(rng, 4), [4] * 4)
    finally:
        hook.remove()
    assert passes > 24
    assert_same_bits(model, answers)


@pytest.mark.parametrize("name", NAMES)
def test_samples_that_share_their_prompt_have_the_bits_of_those_that_do_not(name):
    model = loaded(name, torch.float32)
    prompt = some_prompts(random.Random(1), 1)[0] + [7] * 80
    options = {"n": 3, "temperature": 1.0, "max_new_tokens": 4, "invariant": True}
    together = qwenlab.generate(model, [prompt, prompt[:70]], shared_prefix=True, **options)
    apart = qwenlab.generate(model, [prompt, prompt[:70]], shared_prefix=False, **options)
    assert together.token_ids == apart.token_ids
    assert [a.logprobs for a in together] == [b.logprobs for b in apart]
    assert together.stats.prefill_tokens < apart.stats.prefill_tokens


def test_sixteen_rows_decode_in_the_passes_of_one():
    """Batching is kept: counted in passes, not timed."""
    model = loaded("tiny", torch.float32)
    shapes = []
    hook = model.model.register_forward_hook(lambda module, args, out: shapes.append(out.shape[:2]))
    try:
        for rows in (1, 16):
            shapes.clear()
            prompts = [[row, 2, 3] for row in range(rows)]
            qwenlab.generate(model, prompts, max_new_tokens=6, stop=(), invariant=True)
            decoded = [shape for shape in shapes if shape == (16, 1)]
            assert len(decoded) == 1 + 5  # one that tries the machine
            assert shapes.count((1, 64)) == rows and len(shapes) == 6 + rows
    finally:
        hook.remove()


def test_blocks_of_keys_are_attention():
    """As `eager`, up to rounding; keys that nobody sees, and rows that see none, change no bit."""
    torch.manual_seed(0)
    for keys in (1, 63, 64, 65, 200):
        q = torch.randn(3, 4, 5, 16)
        k, v = torch.randn(2, 3, 2, keys, 16)
        mask = torch.rand(3, 1, 5, keys) < 0.7
        mask[0, :, 2] = False
        out = attention_in_blocks(q, k, v, mask, 0.25)
        assert difference(out, eager(q, k, v, mask, 0.25)) < 1e-5
        assert not out[0, :, 2].any()
        more_k, more_v = torch.cat((k, k[:, :, :1] * 9), 2), torch.cat((v, v[:, :, :1] * 9), 2)
        hidden = torch.cat((mask, torch.zeros(3, 1, 5, 1, dtype=torch.bool)), -1)
        assert torch.equal(attention_in_blocks(q, more_k, more_v, hidden, 0.25), out)


def refused(model, match, **options):
    with pytest.raises(ValueError, match=match) as error:
        Engine(model, invariant=True, **options)
    assert "\n" not in str(error.value)


def test_what_it_cannot_hold_for_is_refused_in_one_line():
    model = random_model()
    refused(model, "makes its own state", state=model.new_state(16))
    model.attention = "eager"
    refused(model, "must be 'sdpa', not eager")
    model.attention = eager
    refused(model, "must be 'sdpa', not a function of your own")
    refused(random_model(intermediate_size=97), r"16 rows of intermediate_size \(97\)")
    refused(random_model().to("meta"), "the model is on meta")


def test_a_machine_that_computes_by_place_is_refused_with_what_was_found():
    model = random_model(dtype=torch.bfloat16)

    def by_place(module, inputs, output):
        output[3:] += 1
        return output

    model.model.layers[1].mlp.register_forward_hook(by_place)
    refused(model, "in bfloat16 on this machine: 16 equal rows of one decode step got 2 different")


def test_shares_of_threads_must_be_whole_vectors():
    """16 x 9,728 numbers are shared out among at most five threads, and a fifth is no multiple."""
    assert splits_evenly(9728, 1) and splits_evenly(9728, 4)
    assert not splits_evenly(9728, 5) and not splits_evenly(9728, 64)
    assert splits_evenly(96, 64) and not splits_evenly(97, 1)
