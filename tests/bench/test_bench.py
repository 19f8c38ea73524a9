"""bench: measurements that count real tokens, in alternated order, and the roofline by hand."""

import json
import random
import re
import sys
from dataclasses import asdict

import pytest
import torch
from helpers import random_hybrid, random_model, random_prompts

import qwenlab
from qwenlab import bench
from qwenlab.bench.sweeps import in_ms
from qwenlab.bench.timing import Spread, alternate, cpu_name, machine_name
from qwenlab.engine import engine, scheduler
from qwenlab.fast import linear

PROMPT, NEW = 5, 4


@pytest.fixture(scope="module")
def quick():
    """A sweep over sizes that are small enough to be measured in a moment."""
    return bench.sweep(random_model(), [4, 1, 2], PROMPT, NEW, repeats=3)


# --- timing ---


def test_cases_take_turns_after_a_warm_up():
    calls = []
    readings = alternate(
        lambda case: calls.append(case) or len(calls), ["a", "b", "c"], repeats=3, warm_up=2
    )
    assert "".join(calls) == "aabbcc" + "abc" + "cba" + "abc"
    assert readings == {
        "a": [7, 12, 13],
        "b": [8, 11, 14],
        "c": [9, 10, 15],
    }  # nothing of the warm-up is kept


def test_a_progress_bar_counts_every_run(capsys):
    alternate(lambda case: None, [1, 2], repeats=3, progress=True)
    assert "8/8" in capsys.readouterr().err
    alternate(lambda case: None, [1, 2], repeats=3)
    assert capsys.readouterr().err == ""


def test_a_spread_is_told_in_full():
    spread = Spread.of(iter([3.0, 1.25, 2.0, 9.0]))
    assert (spread.median, spread.low, spread.high) == (2.5, 1.25, 9.0)
    assert f"{spread:.1f}" == "2.5 (1.2–9.0)" and f"{spread:.0f}" == "2 (1–9)"


def test_the_machine_says_its_name_and_threads():
    assert cpu_name() and machine_name(torch.device("cpu")).startswith(cpu_name())
    assert f"{torch.get_num_threads()} thread" in machine_name(torch.device("cpu"))


# --- sweep ---


def test_a_sweep_runs_each_size_as_often_as_it_says(monkeypatch):
    from qwenlab.bench import sweeps

    rows = []

    def watched(model, prompts, **options):
        rows.append(len(prompts))
        assert options == {
            "max_new_tokens": NEW,
            "stop": (),
            "strategy": "static",
            "slots": len(prompts),
        }
        assert all(len(prompt) == PROMPT for prompt in prompts)
        result = qwenlab.generate(model, prompts, **options)
        assert result.stats.sampled_tokens == len(prompts) * NEW and result.stats.padded_tokens == 0
        assert len(result.stats.steps) == NEW and result.stats.row_steps["wasted"] == 0
        return result

    monkeypatch.setattr(sweeps, "generate", watched)
    made = bench.sweep(random_model(), (1, 3), PROMPT, NEW, repeats=2)
    assert rows == [1, 3, 1, 3, 3, 1]  # the warm-up, forwards, backwards
    assert [point.batch_size for point in made.points] == [1, 3]


@pytest.fixture
def timed_model(monkeypatch):
    """A model whose passes take known times, by a clock of their own: `seconds(rows, tokens)`."""
    model, now = random_model(), [0.0]

    def seconds(rows: int, tokens: int) -> float:
        return 1.0 + 0.125 * rows * tokens

    def take_time(module, arguments, hidden) -> None:
        now[0] += seconds(*hidden.shape[:2])

    model.model.register_forward_hook(take_time)
    monkeypatch.setattr(engine, "perf_counter", lambda: now[0])
    monkeypatch.setattr(scheduler, "perf_counter", lambda: now[0])
    model.seconds = seconds
    return model


def test_each_time_is_that_of_its_passes(timed_model):
    """The first token's of one pass over the prompts, a step's of one over a token of each row."""
    for point in bench.sweep(timed_model, [4, 1, 2], PROMPT, NEW, repeats=3).points:
        rows = point.batch_size
        first = timed_model.seconds(rows, PROMPT)
        step = timed_model.seconds(rows, 1)
        whole_run = first + (NEW - 1) * step
        for spread, expected in (
            (point.first_token_s, first),
            (point.step_s, step),
            (point.tokens_per_second, rows * NEW / whole_run),
            (point.decode_tokens_per_second, rows / step),
        ):
            assert asdict(spread) == pytest.approx(dict.fromkeys(asdict(spread), expected))


def test_prefill_and_decode_are_told_apart(quick):
    for point in quick.points:
        by_step = point.batch_size / point.step_s.low  # the fastest step is the highest rate
        assert point.decode_tokens_per_second.high == pytest.approx(by_step)
        for spread in (
            point.tokens_per_second,
            point.decode_tokens_per_second,
            point.first_token_s,
            point.step_s,
        ):
            assert 0 < spread.low <= spread.median <= spread.high


def test_only_real_tokens_count(dense):
    """Eight rows, seven of which stop at once: 7 + n tokens, though eight rows were computed at
    every step."""
    n = 12
    prompts = random_prompts(random.Random(5), 8, 9)
    first = [
        qwenlab.generate(dense, [prompt], max_new_tokens=1, stop=())[0].token_ids[0]
        for prompt in prompts
    ]
    stops = [()] + [(token_id,) for token_id in first[1:]]
    stats = qwenlab.generate(
        dense, prompts, max_new_tokens=n, stop=stops, strategy="static", slots=8
    ).stats
    assert stats.sampled_tokens == 7 + n
    assert stats.row_steps == {"real": 7 + n, "wasted": 7 * (n - 1), "idle": 0}
    assert stats.tokens_per_second == (7 + n) / stats.seconds
    assert 0 < stats.prefill_seconds and 0 < stats.decode_seconds
    assert stats.prefill_seconds + stats.decode_seconds <= stats.seconds


def test_the_order_of_the_sizes_does_not_matter(timed_model):
    up = bench.sweep(timed_model, [1, 2, 4, 8], PROMPT, 8, repeats=3)
    down = bench.sweep(timed_model, [8, 4, 2, 1], PROMPT, 8, repeats=3)
    assert [point.batch_size for point in up.points] == [1, 2, 4, 8]
    for one, other in zip(up.points, reversed(down.points), strict=True):
        assert one.batch_size == other.batch_size
        assert asdict(one.step_s) == pytest.approx(asdict(other.step_s))
        assert asdict(one.first_token_s) == pytest.approx(asdict(other.first_token_s))


def test_the_table_and_the_json_hold_the_same(quick):
    head, shape, how, _, columns, *lines = str(quick).splitlines()
    assert cpu_name() in head and torch.__version__ in head
    assert (
        f"{quick.parameters:,} parameters in float32, {PROMPT} prompt tokens and {NEW} new ones per row"
        == shape
    )
    assert how == "median of 3 (lowest–highest)"
    assert (
        columns.split()[:2] == ["rows", "tokens/s"]
        and len({len(line) for line in [columns, *lines]}) == 1
    )
    for line, point in zip(lines, quick.points, strict=True):
        size, tokens, decoded, first, step = re.split(r"\s{2,}", line.strip())
        assert size == str(point.batch_size) and tokens == f"{point.tokens_per_second:.0f}"
        assert decoded == f"{point.decode_tokens_per_second:.0f}"
        for told, seconds in ((first, point.first_token_s), (step, point.step_s)):
            median, low, high = map(
                float, re.fullmatch(r"([\d.]+) \(([\d.]+)–([\d.]+)\)", told).groups()
            )
            assert (median, low, high) == pytest.approx(
                (1e3 * seconds.median, 1e3 * seconds.low, 1e3 * seconds.high), rel=0.02, abs=0.006
            )
    assert "\n" not in quick.json() and json.loads(quick.json()) == asdict(quick)
    assert json.loads(quick.json())["points"][0]["step_s"].keys() == {"median", "low", "high"}


def test_measuring_prints_nothing(capsys):
    bench.sweep(random_model(), [1], 1, 2, repeats=1)
    assert capsys.readouterr() == ("", "")


def test_a_sweep_says_which_kernels_computed(monkeypatch):
    monkeypatch.setattr(linear, "chosen", {"2 rows, 64 x 96, float32, 1 threads": "transposed"})
    made = bench.sweep(random_model(), [1], PROMPT, NEW, repeats=1)
    assert json.loads(made.json())["kernels"]["2 rows, 64 x 96, float32, 1 threads"] == "transposed"


def test_times_are_told_with_three_digits():
    told = [in_ms(Spread(s, s / 2, 2 * s)) for s in (0.00123, 0.0234, 0.345)]
    assert told == ["1.23 (0.61–2.46)", "23.4 (11.7–46.8)", "345 (172–690)"]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"batch_sizes": []}, r"batch_sizes is \[\], expected at least one size and none twice"),
        (
            {"batch_sizes": [1, 2, 1]},
            r"batch_sizes is \[1, 2, 1\], expected at least one size and none twice",
        ),
        (
            {"batch_sizes": [2, 0]},
            "a batch size is 0, expected a whole number of at least 1 and at most 1000000",
        ),
        (
            {"batch_sizes": [1.5]},
            "a batch size is 1.5, expected a whole number of at least 1 and at most 1000000",
        ),
        (
            {"batch_sizes": "12"},
            "a batch size is '1', expected a whole number of at least 1 and at most 1000000",
        ),
        ({"prompt_tokens": 0}, "prompt_tokens is 0, expected a whole number of at least 1"),
        ({"new_tokens": 1}, "new_tokens is 1, expected a whole number of at least 2"),
        ({"prompt_tokens": 510}, "510 prompt tokens and 4 new ones: expected at most 512 together"),
        ({"repeats": 0}, "repeats is 0, expected a whole number of at least 1"),
        ({"warm_up": -1}, "warm_up is -1, expected a whole number of at least 0"),
    ],
)
def test_bad_arguments_are_named_in_one_line(dense, changes, complaint):
    arguments = {"batch_sizes": [1], "prompt_tokens": PROMPT, "new_tokens": NEW} | changes
    with pytest.raises(ValueError, match=f"^{complaint}$"):
        bench.sweep(dense, **arguments)


# --- roofline ---

UNIT = bench.Machine("one byte and one operation a second", "float32", 1.0, 1.0)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("rows", "context"), [(1, 0), (1, 7), (5, 7)])
def test_the_bound_equals_a_count_by_hand(tied, rows, context):
    model = random_model(num_hidden_layers=2, tie_word_embeddings=tied)
    query, kv, hidden, mlp, vocab = 4 * 32, 2 * 32, 64, 96, 320
    layer = (
        hidden * query + 2 * hidden * kv + query * hidden + 3 * hidden * mlp
    )  # q, k and v, o, the three of the MLP
    weights = 2 * layer + vocab * hidden  # the head reads all of its matrix, tied or not
    keys_values = 2 * 2 * kv * context  # layers, keys and values
    scores = 2 * 2 * 2 * query * context  # layers, q.k and weights.v, multiply and add
    read, compute = bench.decode_bound(model, UNIT, rows, context)
    assert read == 4 * (weights + rows * keys_values)
    assert compute == rows * (2 * weights + scores)
    half = bench.Machine("half as long numbers", "bfloat16", 1.0, 1.0)
    assert bench.decode_bound(model.to(torch.bfloat16), half, rows, context) == (read / 2, compute)


def test_the_published_size_is_counted_without_its_weights():
    """Qwen3-0.6B on the meta device: 596,049,920 parameters; keys and values are 114,688 bytes a
    token in bfloat16."""
    shape = dict(vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28)
    shape |= dict(num_attention_heads=16, num_key_value_heads=8, head_dim=128)
    with torch.device("meta"):
        model = random_model(dtype=torch.bfloat16, **shape)
    assert sum(p.numel() for p in model.parameters()) == 596_049_920
    machine = bench.Machine("unit", "bfloat16", 1.0, 1.0)
    (bare, _), (longer, _) = (bench.decode_bound(model, machine, 1, context) for context in (0, 1))
    assert longer - bare == 114_688
    norms = 28 * (2 * 1024 + 2 * 128) + 1024
    assert bare == 2 * (596_049_920 - norms)


def test_the_published_hybrid_s_memory_counts_whatever_the_context():
    """The 0.8B's text part: 752,393,024 parameters; a row's memories are 18.0 MiB, 12,288 bytes
    more a token."""
    shape = dict(
        vocab_size=248320,
        hidden_size=1024,
        intermediate_size=3584,
        num_hidden_layers=24,
        layer_types=None,
    )
    shape |= dict(
        num_attention_heads=8, num_key_value_heads=2, head_dim=256, linear_num_key_heads=16
    )
    shape |= dict(linear_num_value_heads=16, linear_key_head_dim=128, linear_value_head_dim=128)
    with torch.device("meta"):
        model = random_hybrid(dtype=torch.bfloat16, **shape)
    assert sum(p.numel() for p in model.parameters()) == 752_393_024
    memories, windows = 18 * 16 * 128 * 128 * 4, 18 * 3 * 6144 * 2
    assert model.new_state(1).nbytes == memories + windows + 8 and memories == 18 * 2**20
    machine = bench.Machine("unit", "bfloat16", 1.0, 1.0)
    (one, few), (two, more) = (bench.decode_bound(model, machine, rows, 0) for rows in (1, 2))
    assert two - one == 2 * (memories + windows), "read and written"
    matrices = sum(p.numel() for p in model.parameters() if p.ndim == 2)
    assert more - few == 2 * matrices + 7 * memories / 4 and one - (two - one) == 2 * matrices
    assert bench.decode_bound(model, machine, 1, 1)[0] - one == 12_288


@pytest.mark.parametrize("name", bench.SHAPES)
def test_a_config_has_the_bound_of_its_model(name):
    device = bench.DEVICES["H100, 80 GB"]
    with torch.device("meta"):
        model = qwenlab.Model(bench.SHAPES[name]).to(torch.bfloat16)
    bound = bench.decode_bound(bench.SHAPES[name], device, 3, 7)
    assert bound == bench.decode_bound(model, device, 3, 7)


def test_the_bound_refuses_what_it_cannot_mean(dense):
    with pytest.raises(ValueError, match="measured in bfloat16, the model computes in float32"):
        bench.decode_bound(dense, bench.Machine("other", "bfloat16", 1.0, 1.0), 1, 1)
    with pytest.raises(ValueError, match="rows is 0, expected a whole number of at least 1"):
        bench.decode_bound(dense, UNIT, 0, 1)
    with pytest.raises(ValueError, match="context is -1, expected a whole number of at least 0"):
        bench.decode_bound(dense, UNIT, 1, -1)


def test_this_machine_is_measured():
    machine = bench.measure_machine(repeats=2)
    assert machine.name == machine_name(torch.device("cpu")) and machine.dtype == "float32"
    assert (
        1e8 < machine.bytes_per_second < 1e13
    )  # from a busy small machine to the largest there is
    assert 1e8 < machine.flops_per_second < 1e16


# --- the package ---


def test_what_bench_offers_are_functions_classes_and_tables():
    offered = [getattr(bench, name) for name in bench.__all__]
    assert all(callable(each) or isinstance(each, dict) for each in offered)
    assert not {name for name in bench.__all__ if f"qwenlab.bench.{name}" in sys.modules}


def test_the_exercises_of_lesson_01_agree_with_the_bound():
    from qwenlab.exercises import lesson_01 as checks

    model, machine = random_model(num_hidden_layers=2), bench.Machine("any", "float32", 3e9, 2e11)
    config = asdict(model.config)
    for rows, context in [(1, 0), (3, 40)]:
        read, _ = bench.decode_bound(model, machine, rows, context)
        assert checks.bytes_per_step(config, rows, context, 4) == pytest.approx(
            read * machine.bytes_per_second
        )
    matrices = sum(p.numel() for p in model.parameters() if p.ndim == 2)
    rows = checks.bend(matrices, 0, 4, machine.bytes_per_second, machine.flops_per_second)
    read, compute = bench.decode_bound(model, machine, 1, 0)
    assert read == pytest.approx(
        rows * compute
    )  # without a context, reading stays and arithmetic grows with the rows
