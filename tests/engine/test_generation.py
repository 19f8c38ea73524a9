"""generate: the batch says word for word what each row says alone, and ends each row by its own
rules."""

import random

import numpy as np
import pytest
import torch
from helpers import FAMILIES, alone_greedy, alone_logits, count, random_prompts

import qwenlab
from qwenlab.engine.scheduler import POLICIES
from qwenlab.fast import linear


@pytest.mark.parametrize("seed", range(count(6, 200)))
def test_random_ragged_batches(model, seed):
    """Zero rows may differ from the row alone, worked out by the slow obvious path, under any
    strategy."""
    rng = random.Random(seed)
    prompts = random_prompts(rng, rng.randint(2, 16), 60)
    caps = [rng.randint(1, 8) for _ in prompts]
    alone = [alone_greedy(model, prompt, cap) for prompt, cap in zip(prompts, caps, strict=True)]
    for strategy in POLICIES:
        slots = rng.choice([1, 3, 5, 64])
        result = qwenlab.generate(
            model, prompts, max_new_tokens=caps, stop=(), strategy=strategy, slots=slots
        )
        for prompt, expected, ids in zip(prompts, alone, result.token_ids, strict=True):
            if ids != expected:
                at = next(i for i, (a, b) in enumerate(zip(ids, expected, strict=True)) if a != b)
                top = alone_logits(model, prompt + expected[:at])[-1].topk(2).values
                margin = float(top[0] - top[1])
                pytest.fail(
                    f"{strategy}: differs at token {at}; the lone row's margin there is {margin:.2g}"
                )


@pytest.fixture(params=["linear", "transposed", "shared", "onednn", "by_row"])
def kernel(request, monkeypatch):
    """Every product without gradients by this kernel, whatever was chosen before."""
    if request.param not in linear.KERNELS:
        pytest.skip(f"this machine has no kernel {request.param}")
    monkeypatch.setenv("QWENLAB_LINEAR", request.param)
    monkeypatch.setattr(linear, "known", {})
    used = []
    monkeypatch.setitem(linear.KERNELS, request.param, counted(linear.KERNELS[request.param], used))
    yield request.param
    assert used


def counted(kernel, used):
    return lambda *inputs: used.append(1) or kernel(*inputs)


@pytest.fixture(scope="module")
def batches_alone(dense):
    """Random batches of prompts, and each prompt's four greedy ids by the reference path: without a
    kernel of ours."""
    batches = []
    for seed in range(count(20, 200)):
        prompts = random_prompts(random.Random(1000 + seed), 1 + seed % 16, 40)
        batches.append((prompts, [alone_greedy(dense, prompt, 4) for prompt in prompts]))
    return batches


def test_the_kernel_changes_no_greedy_id(dense, batches_alone, kernel):
    """Forced each way, against the reference path."""
    rng = random.Random(0)
    for prompts, alone in batches_alone:
        result = qwenlab.generate(
            dense, prompts, max_new_tokens=4, stop=(), slots=rng.choice([2, 5, 64])
        )
        assert result.token_ids == alone


def test_requests_with_their_own_settings(model):
    """Caps, stop sets, temperatures and seeds of their own; shrinking on, off and alone agree."""
    prompts = random_prompts(random.Random(1), 4, 30)
    options = {
        "max_new_tokens": [2, 9, 4, 6],
        "stop": [None, range(0, 320, 40), (), {5, 6, 7}],
        "temperature": [0.0, 1.0, 0.7, 0.0],
        "seed": [3, 1, 4, 1],
        "top_k": [0, 0, 20, 0],
    }
    results = [qwenlab.generate(model, prompts, strategy=s, **options) for s in POLICIES]
    for result in results:
        assert result.token_ids == results[0].token_ids
        assert [r.logprobs for r in result] == [
            pytest.approx(r.logprobs, abs=1e-4) for r in results[0]
        ]
        assert all(
            len(r.token_ids) <= cap
            for r, cap in zip(result, options["max_new_tokens"], strict=True)
        )
        assert [r.index for r in result] == [0, 1, 2, 3]
    for i in range(4):
        own = {name: [values[i]] for name, values in options.items()}
        assert (
            qwenlab.generate(model, prompts[i : i + 1], **own).token_ids[0]
            == results[0].token_ids[i]
        )


@pytest.mark.parametrize("strategy", POLICIES)
def test_rows_that_all_stop_at_once_give_empty_answers(model, strategy):
    """A batch that ends with its first token gives empty answers, and makes no pass over 0 rows."""
    sizes = []
    hook = model.model.register_forward_hook(lambda module, args, out: sizes.append(out.shape[0]))
    try:
        every = range(320)
        first = qwenlab.generate(model, [[1], [2, 3], [4]], stop=every, strategy=strategy)
        assert first.token_ids == [[], [], []] and [r.finish_reason for r in first] == ["stop"] * 3
        assert all(r.stop_id is not None and len(r.logprobs) == 1 for r in first)
        same = qwenlab.generate(
            model, [[1], [2, 3], [4]], stop=(), max_new_tokens=3, strategy=strategy
        )
        assert [len(r.token_ids) for r in same] == [3, 3, 3]
        before = len(sizes)
        none = qwenlab.generate(model, [[1], [2, 3]], max_new_tokens=0, strategy=strategy)
        assert [(r.token_ids, r.finish_reason) for r in none] == [([], "length")] * 2 and len(
            sizes
        ) == before
    finally:
        hook.remove()
    assert 0 not in sizes
    mixed = qwenlab.generate(
        model, [[1], [2, 3], [4, 5]], max_new_tokens=[0, 2, 1], stop=(), strategy=strategy, slots=1
    )
    assert [len(r.token_ids) for r in mixed] == [0, 2, 1]


def test_a_stop_id_ends_a_row_and_only_that_row(model):
    """Row 0 emits a stop id at step 2, row 1 never, cap 6."""
    prompts = [[7, 7, 9], [9, 2]]
    said = [alone_greedy(model, prompt, 6) for prompt in prompts]
    stop_id = said[0][1]
    assert stop_id != said[0][0] and stop_id not in said[1], "the seed must give such a pair"
    for strategy in POLICIES:
        heard = []
        result = qwenlab.generate(
            model,
            prompts,
            max_new_tokens=6,
            stop={stop_id},
            strategy=strategy,
            on_token=lambda i, t, h=heard: h.append((i, t)),
        )
        first, second = result
        assert (first.token_ids, first.stop_id, first.finish_reason) == (
            said[0][:1],
            stop_id,
            "stop",
        )
        assert len(first.logprobs) == 2 and len(second.logprobs) == 6
        assert (second.token_ids, second.stop_id, second.finish_reason) == (said[1], None, "length")
        assert sorted(heard) == sorted([(0, said[0][0]), *((1, t) for t in said[1])])
        assert result.stats.sampled_tokens == 8


def test_a_stop_id_as_the_last_allowed_token_is_a_stop(dense):
    said = alone_greedy(dense, [7, 7, 9], 3)
    assert len(set(said)) == 3
    result = qwenlab.generate(dense, [[7, 7, 9]], max_new_tokens=3, stop={said[2]})[0]
    assert (result.token_ids, result.finish_reason, result.stop_id) == (said[:2], "stop", said[2])


@pytest.mark.parametrize(
    "kind", [iter, set, np.array, torch.tensor, dict.fromkeys, lambda ids: map(int, ids)]
)
def test_a_stop_set_may_be_any_collection_of_ids(dense, kind):
    """A generator is read once: looking at it must not use it up."""
    said = alone_greedy(dense, [7, 7, 9], 3)
    other = said[0] + 1
    for prompts in (
        [[7, 7, 9]],
        [[7, 7, 9]] * 2,
    ):  # as many prompts as ids must not make it one id a prompt
        result = qwenlab.generate(dense, prompts, max_new_tokens=3, stop=kind([said[1], other]))
        assert [(r.token_ids, r.stop_id) for r in result] == [(said[:1], said[1])] * len(prompts)


def test_settings_may_be_arrays_or_tensors(dense):
    """One value or one a prompt, whatever holds them."""
    prompts, options = [[1, 2], [3, 4, 5]], {"temperature": 1.0, "stop": ()}
    for name, values in {
        "temperature": [0.5, 0.9],
        "top_k": [3, 5],
        "top_p": [0.5, 0.75],
        "repetition_penalty": [1.5, 2.0],
        "seed": [3, 4],
        "max_new_tokens": [4, 2],
    }.items():
        base = {"max_new_tokens": 4, **options}
        several = qwenlab.generate(dense, prompts, **{**base, name: values}).token_ids
        one = qwenlab.generate(dense, prompts, **{**base, name: values[0]}).token_ids
        for kind in (np.array, torch.tensor):
            assert (
                qwenlab.generate(dense, kind([[1, 2]]), **{**base, name: kind(values[0])}).token_ids
                == one[:1]
            )
            assert (
                qwenlab.generate(dense, prompts, **{**base, name: kind(values)}).token_ids
                == several
            )
            assert (
                qwenlab.generate(dense, prompts, **{**base, name: kind(values[0])}).token_ids == one
            )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_ends_where_its_context_is_full(family):
    """Limit 16, prompt 10, 10 asked: 6 new, "length"; pads use up none of it; 16 is refused."""
    model = FAMILIES[family](seed=3, max_position_embeddings=16)
    prompt = list(range(10))
    for neighbours in ([], [list(range(15))]):
        result = qwenlab.generate(model, [prompt, *neighbours], max_new_tokens=10, stop=())
        assert (len(result[0].token_ids), result[0].finish_reason) == (6, "length")
        assert result[0].token_ids == alone_greedy(model, prompt, 6)
    with pytest.raises(
        ValueError, match="prompt 1 has 16 tokens: no room for a new one in a context of 16"
    ):
        qwenlab.generate(model, [prompt, list(range(16))], max_new_tokens=1)
    assert qwenlab.generate(model, [list(range(16))], max_new_tokens=0).token_ids == [[]]
    with pytest.raises(ValueError, match="prompt 0 has 17 tokens"):
        qwenlab.generate(model, [list(range(17))], max_new_tokens=0)


def test_a_row_that_is_used_again_starts_anew(model):
    """One slot, requests A, B, A: both As say the same, with nothing of B's in keys, window or
    memory."""
    first, second = [7, 7, 9, 4], [9, 2]
    for strategy in POLICIES:
        result = qwenlab.generate(
            model, [first, second, first], max_new_tokens=6, stop=(), slots=1, strategy=strategy
        )
        assert result.token_ids[0] == result.token_ids[2] == alone_greedy(model, first, 6)
        assert result[0].logprobs == result[2].logprobs


def test_no_prompts_is_an_empty_result(dense):
    result = qwenlab.generate(dense, [])
    assert len(result) == 0 and result.token_ids == [] and result.stats.sampled_tokens == 0
    assert result.stats.tokens_per_second == 0 and result.stats.events == []


def test_stats_count_what_happened(dense):
    prompts, caps = [[1], [2, 3, 4], [5, 6]], [1, 4, 2]
    by = {
        s: qwenlab.generate(dense, prompts, max_new_tokens=caps, stop=(), strategy=s, slots=3).stats
        for s in POLICIES
    }
    for stats in by.values():
        assert (stats.prompts, stats.sampled_tokens, stats.prefill_tokens) == (3, 7, 6)
        assert stats.seconds >= stats.prefill_seconds + stats.decode_seconds > 0
        assert stats.row_steps["real"] == 7
    assert by["sequential"].row_steps == {"real": 7, "wasted": 0, "idle": 0}
    assert by["static"].row_steps == {"real": 7, "wasted": 5, "idle": 0}
    assert by["early-stop"].row_steps == {"real": 7, "wasted": 0, "idle": 5}
    assert by["static"].padded_ratio == pytest.approx(3 / 9) and by["sequential"].padded_ratio == 0
    events = by["early-stop"].events
    assert [e for e in events if e.step == 0] == [
        (0, 0, 0, "prefill"),
        (0, 1, 1, "prefill"),
        (0, 2, 2, "prefill"),
    ]
    assert {e.kind for e in events if e.step == 3} == {"decode", "idle"}
    assert sum(e.kind == "decode" and e.request == 1 for e in events) == 3


def test_requests_per_second_counts_requests(dense):
    stats = qwenlab.generate(dense, [[1], [2]], n=3, max_new_tokens=1, stop=()).stats
    assert (stats.prompts, stats.requests) == (2, 6)
    assert stats.requests_per_second == pytest.approx(6 / stats.seconds)


def test_times_are_in_order(dense):
    result = qwenlab.generate(dense, [[1], [2, 3]], max_new_tokens=5, stop=(), slots=1)
    assert (
        0
        < result[0].first_token_s
        < result[0].seconds
        <= result[1].first_token_s
        <= result[1].seconds
    )
    assert result[1].seconds <= result.stats.seconds


def test_progress_bar_reaches_the_end(dense, capsys):
    qwenlab.generate(dense, [[1], [2]], max_new_tokens=2, stop=(), progress=True)
    assert "2/2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        ([[1], []], {}, "prompt 1 is empty"),
        ([[1], [2, 320]], {}, "prompt 1: token id 320 is outside the vocabulary \\(0 to 319\\)"),
        ([[-1]], {}, "prompt 0: token id -1"),
        (["two"], {}, "prompt 0 is a str, expected a list of token ids"),
        ([1, 2], {}, "prompt 0 is a int, expected a list of token ids"),
        ([[1.5]], {}, "prompt 0: entry 0 is 1.5"),
        ([[1]], {"temperature": -0.1}, "temperature of prompt 0 is -0.1, expected 0 or more"),
        ([[1]], {"temperature": float("nan")}, "temperature of prompt 0 is nan"),
        ([[1]], {"temperature": "hot"}, "temperature of prompt 0 is 'hot'"),
        ([[1], [2]], {"temperature": [0.5]}, "temperature has 1 values for 2 prompts"),
        ([[1], [2]], {"top_p": [1.0, 1.2]}, "top_p of prompt 1 is 1.2, expected 0 to 1"),
        ([[1]], {"top_p": -0.1}, "top_p of prompt 0"),
        ([[1]], {"top_k": -1}, "top_k of prompt 0 is -1, expected a whole number of at least 0"),
        ([[1]], {"top_k": 1.5}, "top_k of prompt 0"),
        (
            [[1]],
            {"repetition_penalty": 0},
            "repetition_penalty of prompt 0 is 0, expected a number above 0",
        ),
        ([[1]], {"max_new_tokens": -1}, "max_new_tokens of prompt 0 is -1"),
        ([[1]], {"max_new_tokens": 2.0}, "max_new_tokens of prompt 0"),
        ([[1]], {"seed": -1}, "seed is -1"),
        ([[1]], {"seed": [1, 2]}, "seed has 2 values for 1 prompts"),
        (iter([[1]]), {}, "prompts is a list_iterator, expected a list of prompts"),
        (None, {}, "prompts is a NoneType, expected a list of prompts"),
        (torch.tensor(1), {}, "prompts is a int, expected a list of prompts"),
        ([b"two"], {}, "prompt 0 is a bytes, expected a list of token ids"),
        ([[1]], {"stop": 5}, "stop is 5, expected token ids"),
        ([[1]], {"stop": "ab"}, "stop is 'ab', expected token ids"),
        ([[1]], {"stop": {1.5}}, "stop is {1.5}, expected token ids"),
        ([[1], [2]], {"stop": [(), ["ab"]]}, "stop of prompt 1 is \\['ab'\\], expected token ids"),
        ([[1], [2]], {"stop": [5, None]}, "stop of prompt 0 is 5, expected token ids"),
        ([[1], [2]], {"stop": [(), (), ()]}, "stop has 3 values for 2 prompts"),
        ([[1]], {"top_p": 10**400}, "top_p of prompt 0 is 1000"),
        ([[1]], {"temperature": 10**400}, "temperature of prompt 0 is 1000"),
        ([[1]], {"n": 0}, "n is 0"),
        ([[1]], {"slots": 0}, "slots is 0"),
        ([[1]], {"shared_prefix": "no"}, "shared_prefix is 'no', expected None, True or False"),
        (
            [[1]],
            {"strategy": "magic"},
            "strategy is 'magic', expected one of sequential, static, early-stop, continuous",
        ),
    ],
)
def test_bad_input_says_so_in_one_line(dense, prompts, options, message):
    with pytest.raises(ValueError, match=message) as caught:
        qwenlab.generate(dense, prompts, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 3, "top_p": 0.5}]
)
def test_nan_logits_end_their_own_request_and_are_named(dense, options, monkeypatch):
    kept = qwenlab.generate(dense, [[1, 2]], **options)

    def row_1_of_the_first_pass(batch, **options):
        logits = compute(batch, **options)
        if not ended:
            logits[1] = float("nan")
        return logits

    compute, ended = dense.compute, []
    monkeypatch.setattr(dense, "compute", row_1_of_the_first_pass)
    with pytest.warns(UserWarning, match="^request 1: its logits are NaN after 0 new tokens$"):
        result = qwenlab.generate(dense, [[1, 2], [3]], **options, on_finish=ended.append)
    assert (result[1].finish_reason, result[1].token_ids, result[1].logprobs) == ("error", [], [])
    assert result[1].error == "request 1: its logits are NaN after 0 new tokens"
    assert result[0].token_ids == kept[0].token_ids and result[0].error is None
    assert result.stats.finished == 2 and ended == [result[1], result[0]]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_inside_autocast_the_answers_are_the_same(model, temperature):
    prompts, options = (
        random_prompts(random.Random(2), 3, 9),
        {"max_new_tokens": 5, "temperature": temperature},
    )
    expected = qwenlab.generate(model, prompts, **options).token_ids
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert qwenlab.generate(model, prompts, **options).token_ids == expected


@pytest.mark.parametrize("how", ["wrapped", "in place"])
def test_a_compiled_model_is_refused_in_one_line(how):
    model = FAMILIES["dense"]()
    if how == "wrapped":
        model = torch.compile(model, backend="eager")
    else:
        model.compile(backend="eager")
    with pytest.raises(
        ValueError, match=r"^the model went through torch\.compile, expected the plain one"
    ) as caught:
        qwenlab.generate(model, [[1]])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("strategy", ["sequential", "static", "early-stop", "continuous"])
def test_every_request_is_told_once_as_it_ends(dense, strategy):
    told = []
    result = qwenlab.generate(
        dense,
        [[1], [2, 3], [4], [5]],
        max_new_tokens=[5, 0, 2, 3],
        stop=(),
        slots=2,
        strategy=strategy,
        on_finish=lambda request: told.append(
            (request.index, request.finish_reason, len(request.token_ids))
        ),
    )
    assert sorted(told) == [(0, "length", 5), (1, "length", 0), (2, "length", 2), (3, "length", 3)]
    assert told[0][0] == 1 and result.stats.finished == 4
    if strategy == "continuous":  # the order in which they end
        assert [index for index, *_ in told] == [1, 2, 0, 3] or [index for index, *_ in told] == [
            1,
            2,
            3,
            0,
        ]


def test_what_on_finish_hears_includes_the_last_on_token(dense):
    def on_token(index, token_id):
        if len(heard) == 2:
            raise OSError("mine")
        heard.append(token_id)

    heard, told = [], []
    with pytest.warns(UserWarning, match="on_token raised OSError"):
        qwenlab.generate(
            dense,
            [[1]],
            max_new_tokens=3,
            stop=(),
            on_token=on_token,
            on_finish=lambda r: told.append(r.finish_reason),
        )
    assert told == ["error"]


def test_a_failing_on_finish_ends_the_run(dense):
    def on_finish(request):
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        qwenlab.generate(dense, [[1], [2]], max_new_tokens=2, stop=(), on_finish=on_finish)
