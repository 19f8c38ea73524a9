"""Kernels for a few rows: all give the same, the quickest is kept, and the choice can be forced and
told."""

import itertools
import os
import threading

import pytest
import torch
import torch.nn.functional as F
from helpers import WITHOUT, difference
from tqdm import TMonitor, tqdm

from qwenlab.fast import linear

NAMES = list(linear.KERNELS)


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch):
    monkeypatch.setattr(linear, "chosen", {})
    monkeypatch.setattr(linear, "known", {})
    monkeypatch.delenv("QWENLAB_LINEAR", raising=False)


@pytest.fixture
def kernels(monkeypatch):
    """Replaces the kernels by some that take so many milliseconds of a stopped clock; returns the
    list of the calls."""
    calls, now = [], [0.0]
    monkeypatch.setattr(linear, "perf_counter", lambda: now[0])

    def set_times(**milliseconds):
        def slow(name, ms):
            def kernel(x, weight):
                calls.append(name)
                now[0] += ms / 1e3
                return F.linear(x, weight)

            return kernel

        monkeypatch.setattr(
            linear, "KERNELS", {name: slow(name, ms) for name, ms in milliseconds.items()}
        )
        return calls

    return set_times


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7, 8, 16, 33, 64, 65])
@pytest.mark.parametrize("shape", [(24, 16), (130, 288)], ids=str)
def test_every_kernel_computes_the_product(name, rows, shape):
    generator = torch.Generator().manual_seed(rows)
    x, weight = (
        torch.randn(rows, shape[1], generator=generator),
        torch.randn(shape, generator=generator),
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(
        3
    )  # `shared` makes as many parts, and not every number of rows can be parted
    try:
        out = linear.KERNELS[name](x, weight)
    finally:
        torch.set_num_threads(threads)
    assert out.shape == (rows, shape[0]) and out.is_contiguous()
    assert difference(out, F.linear(x, weight)) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_a_row_of_nan_stays_by_itself(name):
    x = torch.randn(4, 32)
    x[2] = float("nan")
    finite = linear.KERNELS[name](x, torch.randn(48, 32)).isfinite().all(1)
    assert finite.tolist() == [True, True, False, True]


@pytest.mark.parametrize("quick", ["transposed", "shared", "linear"])
def test_the_quickest_is_kept_and_measured_once(kernels, quick):
    calls = kernels(
        **{name: 0.2 if name == quick else 1.5 for name in ("linear", "transposed", "shared")}
    )
    x, weight = torch.ones(4, 8), torch.ones(6, 8)
    with torch.no_grad():
        linear.product(x, weight)
        assert len(calls) > 3 and calls[-1] == quick
        before = len(calls)
        linear.product(x, weight)
    assert calls[before:] == [quick]
    assert list(linear.chosen.values()) == [quick]


def test_a_hair_quicker_is_no_reason(kernels):
    kernels(linear=2.0, transposed=1.98)
    assert linear.choose(4, torch.ones(6, 8)) == "linear"


def test_a_kernel_that_cannot_is_left_out(kernels, monkeypatch):
    kernels(linear=1.0)

    def unable(x, weight):
        raise RuntimeError("no such instruction")

    monkeypatch.setitem(linear.KERNELS, "transposed", unable)
    assert linear.choose(4, torch.ones(6, 8)) == "linear"


def test_rows_between_two_numbers_count_as_the_next_and_very_many_are_not_measured(kernels):
    calls = kernels(linear=0.2, transposed=0.1)
    weight = torch.ones(6, 8)
    assert linear.choose(257, weight) == "linear" and not calls
    linear.choose(1, weight)
    linear.choose(5, weight)
    linear.choose(200, weight)
    assert [what.split(",")[0] for what in linear.chosen] == ["1 rows", "8 rows", "64 rows"]


@pytest.mark.parametrize(
    ("rows", "dtype", "tried"),
    [(1, torch.bfloat16, True), (3, torch.bfloat16, False), (1, torch.float32, False)],
    ids=str,
)
def test_rows_one_by_one_are_tried_only_where_they_may_gain(kernels, rows, dtype, tried):
    calls = kernels(linear=0.2, by_row=0.1)
    assert linear.choose(rows, torch.ones(6, 8, dtype=dtype)) == ("by_row" if tried else "linear")
    assert ("by_row" in calls) is tried


@torch.no_grad()
def test_onednn_is_off_for_one_product_only_and_not_where_another_thread_could_notice(monkeypatch):
    states = []
    mv = torch.mv
    monkeypatch.setattr(torch, "mv", lambda *given: states.append(onednn_is_on()) or mv(*given))
    monkeypatch.setattr(linear.threading, "enumerate", lambda: [threading.main_thread()])
    x, weight = torch.ones(2, 8), torch.ones(6, 8)
    expected = linear.by_row(x, weight)
    assert states == [False, False] and onednn_is_on()
    with pytest.raises(RuntimeError):
        linear.by_row(torch.ones(2, 7), weight)
    assert onednn_is_on()
    states.clear()
    monkeypatch.undo()
    monkeypatch.setattr(torch, "mv", lambda *given: states.append(onednn_is_on()) or mv(*given))
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        assert difference(linear.by_row(x, weight), expected) < 1e-6 and not states
    finally:
        done.set()
        other.join()


@torch.no_grad()
def test_a_progress_bar_is_no_thread_that_could_notice(monkeypatch):
    bar = tqdm(total=1, disable=True)  # starts the thread that redraws bars
    assert any(isinstance(thread, TMonitor) for thread in threading.enumerate())
    mine = [thread for thread in threading.enumerate() if isinstance(thread, TMonitor)]
    monkeypatch.setattr(linear.threading, "enumerate", lambda: [threading.main_thread(), *mine])
    assert not linear.others_might_compute()
    bar.close()


def onednn_is_on():
    return torch._C._get_mkldnn_enabled()


@torch.no_grad()
def test_what_is_remembered_does_not_grow_with_the_lengths_of_prompts():
    weight = torch.ones(6, 8)
    for rows in range(1, 400):
        linear.product(torch.ones(rows, 8), weight)
    assert len(linear.known) <= len(linear.ROW_COUNTS) + 1


@torch.no_grad()
def test_forced_for_a_while_leaves_no_trace(kernels, monkeypatch):
    calls = kernels(linear=0.1, transposed=0.1)
    monkeypatch.setattr(linear, "choose", lambda rows, weight: "transposed")
    before = dict(os.environ)
    for name in ("linear", "transposed"):
        with linear.forced_to(name):
            linear.product(torch.ones(4, 8), torch.ones(6, 8))
            assert calls[-1] == linear.forced() == name
    assert dict(os.environ) == before and linear.forced() is None and not linear.known


def test_a_product_that_needs_a_gradient_has_one(kernels):
    """By F.linear, whatever was chosen."""
    calls = kernels(linear=0.1, transposed=0.1)
    x, weight = torch.ones(4, 8), torch.ones(6, 8, requires_grad=True)
    linear.product(x, weight).sum().backward()
    assert torch.equal(weight.grad, torch.full((6, 8), 4.0)) and not calls


def test_one_kernel_can_be_forced(monkeypatch):
    monkeypatch.setenv("QWENLAB_LINEAR", "transposed")
    assert linear.choose(2, torch.ones(6, 8)) == "transposed" and not linear.chosen
    assert linear.choose(1, torch.ones(6, 8)) == "transposed"
    assert linear.table() == "transposed, forced by QWENLAB_LINEAR" and linear.record() == {
        "forced": "transposed"
    }
    monkeypatch.setenv("QWENLAB_LINEAR", "magic")
    with pytest.raises(
        ValueError, match=f"QWENLAB_LINEAR is 'magic', expected one of {', '.join(NAMES)}"
    ):
        linear.choose(2, torch.ones(6, 8))


def test_the_table_and_the_record(kernels):
    kernels(linear=0.5, transposed=0.1)
    for rows in (4, 16):
        linear.choose(rows, torch.ones(6, 8))
    head, line = linear.table().splitlines()
    assert head.split() == ["rows", "1", "2", "3", "4", "8", "16", "32", "64"]
    assert line.startswith("6 x 8, float32, ") and line.split()[-8:] == [
        "-",
        "-",
        "-",
        "transposed",
        "-",
        "transposed",
        "-",
        "-",
    ]
    threads = torch.get_num_threads()
    assert linear.record() == {
        f"{rows} rows, 6 x 8, float32, {threads} threads": "transposed" for rows in (4, 16)
    }


@pytest.mark.skipif("float64" in WITHOUT, reason="replaces a method of torch that the mode calls")
def test_a_measurement_is_short_and_its_memory_is_bounded(monkeypatch):
    made = []
    new_ones = torch.Tensor.new_ones
    monkeypatch.setattr(
        torch.Tensor, "new_ones", lambda self, *size: made.append(new_ones(self, *size)) or made[-1]
    )
    clock = itertools.count(step=linear.MEASURE_SECONDS)  # each look at it finds the time spent
    monkeypatch.setattr(linear, "perf_counter", lambda: next(clock))
    calls = []

    def counted(name, kernel):
        return lambda x, weight: calls.append(name) or kernel(x, weight)

    for name, kernel in linear.KERNELS.items():
        monkeypatch.setitem(linear.KERNELS, name, counted(name, kernel))
    weight = torch.ones(20_000, 256)  # 20 MB
    linear.choose(4, weight)
    assert len(calls) == 4 * len(set(calls)) > 4
    assert sum(t.nbytes for t in made) < 1.1 * linear.COLD_BYTES
