"""bench.memory_plan: its figures are the bytes that PyTorch's profiler counts, within 5 %."""

import copy
import random
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import qwenlab
from qwenlab.bench import SHAPES, memory_plan
from qwenlab.engine.prompts import make_requests
from qwenlab.evaluation import answering
from qwenlab.fast import optimize
from qwenlab.fast.linear import forced_to
from qwenlab.model.batch import ForwardBatch
from qwenlab.model.model import Model
from qwenlab.model.weights import without_storage

PLENTY = 2**40
# By tokens of a row: those of its prompt. The state grows while the first decodes, and while the
# others prefill a second chunk.
PROMPTS = {64: 40, 300: 296, 1000: 990}


def counted(work: Callable) -> tuple[int, int]:
    """The bytes that `work` holds at its worst moment, and in the end with its result alive."""
    with (
        torch.inference_mode(),
        forced_to("linear"),  # nothing is timed on large matrices meanwhile
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof,
    ):
        result = work()
    events = [e for e in prof.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    held = list(accumulate(event.nbytes() for event in events))
    del result
    return max(held), held[-1]


def is_near(planned: int, found: int) -> bool:
    return abs(planned - found) <= 0.05 * found


def one_pass(model: Model, rows: int, width: int, keys: int) -> Callable:
    """A pass of `width` tokens a row, all of which hold `keys` tokens after it."""
    state = model.new_state(rows, capacity=keys)
    state.lengths.fill_(keys - width)
    input_ids = torch.zeros(rows, width, dtype=torch.int64)
    batch = ForwardBatch.from_lengths(input_ids, [width] * rows, state)
    return lambda: model.compute(batch, last_only=True)


def a_run(model: Model, lengths: list[int], context: int, **options) -> Callable:
    """Engine's answers to prompts of such lengths, each until the row has `context` tokens."""
    rng = random.Random(0)
    prompts = [[rng.randrange(300) for _ in range(length)] for length in lengths]

    def run() -> None:
        engine = qwenlab.Engine(model, slots=len(prompts))
        for prompt in prompts:
            engine.submit(prompt, max_new_tokens=context - len(prompt), stop=(), **options)
        engine.run()

    a_lookup(model, context)
    return run


def a_lookup(model: Model, context: int) -> None:
    """Lets the model make its tables of RoPE, which stay, before anything is counted."""
    one_pass(model, 1, 1, context)()


@pytest.fixture(scope="module", params=["tiny", "tiny-hybrid"])
def shipped(request) -> Model:
    return qwenlab.load(request.param)[0]


def test_weights_are_counted_once(shipped):
    """A copy of the model has one memory for the fused projections and their parts."""
    fresh, _ = qwenlab.load(shipped.folder)  # without the tables that a call would have made
    _, held = counted(lambda: copy.deepcopy(fresh))
    assert is_near(memory_plan(shipped, PLENTY, 64).weights, held)


@pytest.mark.parametrize("context", PROMPTS)
def test_the_state_grows_as_planned(shipped, context):
    rows = 3
    prompt = PROMPTS[context]

    def grow() -> object:
        state = shipped.new_state(rows)
        for length in [*range(256, prompt, 256), *range(prompt, context)]:
            state.make_room(length)
        return state

    worst, held = counted(grow)
    row = memory_plan(shipped, PLENTY, context, prompt_tokens=prompt).row
    assert is_near(rows * row.state, held)
    assert is_near(rows * (row.state + row.growth), worst)
    fixed = memory_plan(shipped, PLENTY, context, prompt_tokens=prompt, grows=False).row
    assert fixed.growth == 0 and rows * fixed.state == shipped.new_state(rows, context).nbytes


@pytest.mark.parametrize("context", PROMPTS)
def test_activations_and_logits_are_those_of_a_pass(shipped, context):
    a_lookup(shipped, context)
    held = context - 1
    plan = memory_plan(shipped, PLENTY, context, prompt_tokens=held)
    for rows in (2, 5):
        worst = 0
        for start in range(0, held, 256):
            end = min(start + 256, held)
            worst = max(worst, counted(one_pass(shipped, rows, end - start, end))[0])
        assert is_near(rows * plan.row.prefill, worst)
        worst, _ = counted(one_pass(shipped, rows, 1, held))
        decode = memory_plan(shipped, PLENTY, context, prompt_tokens=held - 1).row.decode
        assert is_near(rows * decode, worst)


@pytest.mark.parametrize("context", PROMPTS)
def test_a_run_takes_what_was_planned(shipped, context):
    rows = 4
    prompt = PROMPTS[context]
    worst, _ = counted(a_run(shipped, [prompt] * rows, context))
    plan = memory_plan(shipped, PLENTY, context, prompt_tokens=prompt)
    assert is_near(plan.bytes(rows) - plan.weights, worst)


def test_prompts_of_any_length_stay_within_the_plan(shipped):
    """Even where a row comes late and a long prompt is prefilled beside rows that decode."""
    lengths = [290, 299, 298, 257]
    worst, _ = counted(a_run(shipped, lengths, 300))
    plan = memory_plan(shipped, PLENTY, 300)
    assert worst <= plan.bytes(len(lengths)) - plan.weights < 2 * worst


def test_drawing_takes_what_was_planned():
    model, _ = qwenlab.load("tiny")
    rows = 64
    worst, _ = counted(a_run(model, [1] * rows, 2, temperature=1.0, top_p=0.9))
    plan = memory_plan(model, PLENTY, 2, prompt_tokens=1, draws=True)
    assert is_near(plan.bytes(rows) - plan.weights, worst)


@pytest.mark.full
@pytest.mark.parametrize("size", ["Qwen3-0.6B", "Qwen3.5-0.8B"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_published_shapes_take_what_was_planned(size, dtype):
    with without_storage():
        model = Model(SHAPES[size])
    model = model.to(dtype).to_empty(device="cpu").eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.fill_(0.01)
    optimize(model)
    rows = 2
    for context, prompt in ((64, 60), (160, 158)):
        worst, _ = counted(a_run(model, [prompt] * rows, context))
        plan = memory_plan(model, PLENTY, context, prompt_tokens=prompt)
        assert is_near(plan.bytes(rows) - plan.weights, worst)
    assert plan.weights == sum(parameter.nbytes for parameter in model.parameters())


def test_published_shapes_have_the_published_sizes():
    dense = memory_plan(SHAPES["Qwen3-0.6B"], PLENTY, 1000, "bfloat16")
    assert dense.kv_bytes_per_token == 114_688 and dense.recurrent == 0
    assert dense.weights == 2 * 596_049_920
    hybrid = memory_plan(SHAPES["Qwen3.5-0.8B"], PLENTY, 1000, "bfloat16")
    assert hybrid.kv_bytes_per_token == 12_288
    assert hybrid.recurrent == 18 * (16 * 128 * 128 * 4 + 3 * 6144 * 2)
    assert 2 * 752_393_024 <= hybrid.weights < 2.001 * 752_393_024  # A_log and a norm in float32
    larger = memory_plan(SHAPES["Qwen3-4B"], PLENTY, 1000, "bfloat16")
    assert larger.kv_bytes_per_token == 147_456 and larger.weights == 2 * 4_022_468_096


# --- What fits ---


def test_as_many_rows_as_fit_and_no_more(shipped):
    for device_bytes in (10**7, 10**8, 10**9 + 7):
        plan = memory_plan(shipped, device_bytes, 300)
        assert plan.bytes(plan.rows) <= device_bytes < plan.bytes(plan.rows + 1)
        assert f"rows: {plan.rows} in " in repr(plan)
    assert memory_plan(shipped, 10**9, 1000).rows < memory_plan(shipped, 10**9, 300).rows


def test_where_nothing_fits_the_plan_says_why(shipped):
    plan = memory_plan(shipped, 10**6, 300)
    assert plan.rows == 0 and "because the weights alone need" in str(plan)
    plan = memory_plan(shipped, plan.weights + 10, 300)
    assert plan.rows == 0 and "because the weights and one row need" in str(plan)


def test_a_name_a_config_and_a_model_have_one_plan(shipped):
    plan = memory_plan(shipped, PLENTY, 300)
    assert plan == memory_plan(shipped.config, PLENTY, 300, torch.float32)
    assert plan == memory_plan(Path(shipped.folder), PLENTY, 300)
    half = memory_plan(shipped, PLENTY, 300, "bfloat16")
    assert half.dtype == "bfloat16" and 0.49 < half.weights / plan.weights < 0.51


def test_auto_divides_the_same_bytes(shipped, monkeypatch):
    """`--batch-size auto` takes what the plan says of the longest request."""
    requests = make_requests(shipped, [[1] * 30, [2] * 50], 100, max_new_tokens=60)
    row = memory_plan(shipped, PLENTY, 110).row.peak
    for rows in (1, 2, 77):
        free = row * rows / answering.FREE_SHARE * 1.001
        monkeypatch.setattr(answering, "free_memory", lambda device, free=free: free)
        assert answering.rows_that_fit(shipped, requests) == rows


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"context": 5000},
            "context is 5000, expected at most the model's max_position_embeddings",
        ),
        ({"context": 1}, "context is 1, expected a whole number of at least 2"),
        ({"device_bytes": 0}, "device_bytes is 0, expected a whole number of at least 1"),
        ({"dtype": "int8"}, "dtype is 'int8', expected one of float32, bfloat16, float16, auto"),
        ({"model_or_config": "tinny"}, "no checkpoint 'tinny'"),
        ({"prompt_tokens": 64}, "prompt_tokens is 64, expected a whole number of at least 1 and"),
        ({"grows": 1}, "grows is 1, expected True or False"),
    ],
)
def test_bad_input_gets_one_line(changes, expected):
    with pytest.raises(ValueError) as refusal:
        memory_plan(**{"model_or_config": "tiny", "device_bytes": 10**9, "context": 64} | changes)
    assert str(refusal.value).startswith(expected) and "\n" not in str(refusal.value)
    plan = memory_plan("tiny", 10**9, 64)
    with pytest.raises(ValueError, match="rows is -1, expected"):
        plan.bytes(-1)
