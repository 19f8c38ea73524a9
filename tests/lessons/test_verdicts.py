"""Lessons say what was measured: with other readings they say something else."""

import nbformat
import pytest
from executed import NOTEBOOKS
from helpers import FULL
from nbformat.v4 import new_code_cell, new_notebook
from verdicts import contradictions, parts, ranks, read_again, signature

LESSONS = NOTEBOOKS if FULL else NOTEBOOKS[::7]  # each runs again up to its measurement


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_says_what_it_has_measured(path, monkeypatch):
    """Below full count its first measurement, where the later way wins or loses clearly."""
    assert read_again(path, monkeypatch, FULL) == []


HEAD = """
from time import perf_counter
from qwenlab.bench.timing import Spread, alternate
from qwenlab.teach import speed_verdict


def seconds(case):
    began = perf_counter()
    return perf_counter() - began

"""
TAKEN = "taken = alternate(seconds, ['one by one', 'together'], 5)\nslow, fast = taken.values()\n"
BY_ROWS = "cases = [(rows, way) for rows in (1, 8) for way in ('a', 'b')]\ntaken = alternate(seconds, cases, 3)\n"


@pytest.mark.parametrize(
    "source",
    [
        TAKEN + "print(f'together: {speed_verdict(slow, fast)}')",
        TAKEN + "print('faster' if sum(fast) < 0.9 * sum(slow) else 'no clear difference')",
        TAKEN + "print(f'Together takes {sum(fast) / sum(slow):.2f} times as long.')",
        TAKEN + "print(f'together {Spread.of(fast)}')",
        TAKEN + "speed_verdict(slow, fast)",
        BY_ROWS + "print(speed_verdict(taken[8, 'a'], taken[8, 'b']))",
        BY_ROWS + "print(speed_verdict(taken[1, 'a'], taken[8, 'a']))",
    ],
)
@pytest.mark.parametrize("whole", [True, False], ids=["full", "reduced"])
def test_verdicts_that_follow_the_readings_pass(tmp_path, monkeypatch, source, whole):
    assert read_again(lesson(tmp_path, source), monkeypatch, whole) == []


@pytest.mark.parametrize(
    "source, told",
    [
        (TAKEN + "print('Together is faster.')", "whatever the readings"),
        (TAKEN + "print(f'It gains: {sum(fast):.3f} s')", "whatever the readings"),
        (TAKEN + "'Together is faster.'", "whatever the readings"),
        (
            TAKEN + "print(f'It gains: {sum(slow) / sum(fast):.2f} times as fast.')",
            "later ways 0.333333 times as fast, and it says: It gains: 0.33 times as fast.",
        ),
        (
            TAKEN + "print(f'It loses: {sum(fast) / sum(slow):.2f} times as long.')",
            "later ways 3 times as fast, and it says: It loses: 0.33 times as long.",
        ),
        (
            TAKEN + "print(f'hardly: {sum(slow) / sum(fast):.2f} times as fast')",
            "later ways 100 times as fast",
        ),
    ],
)
def test_verdicts_that_do_not_are_found(tmp_path, monkeypatch, source, told):
    found = read_again(lesson(tmp_path, source), monkeypatch, True)
    assert told in "\n".join(found) and all(line.startswith("timed: ") for line in found)


def test_many_ways_each_keep_a_time_of_their_own(tmp_path, monkeypatch):
    source = """
taken = alternate(seconds, list(range(9)), 3)
for before, after in zip(list(taken.values()), list(taken.values())[1:]):
    print(speed_verdict(before, after))
"""
    assert read_again(lesson(tmp_path, source), monkeypatch, True) == []


def test_what_the_library_times_follows_too(tmp_path, monkeypatch):
    source = """
import qwenlab
model, tokenizer = qwenlab.load("tiny", dtype="float32")
def rate(way):
    return qwenlab.generate(model, [[5, 6]], max_new_tokens=2, stop=()).stats
taken = alternate(rate, ["one", "other"], 3)
one, other = (stats[0].seconds for stats in taken.values())
print(f"It is {one / other:.2f} times as fast.")
print(f"{one:.4f} {other:.4f}")
"""
    assert read_again(lesson(tmp_path, source), monkeypatch, True) == []


def lesson(folder, source):
    path = folder / "lesson.ipynb"
    cells = [new_code_cell(HEAD, id="load"), new_code_cell(source, id="timed")]
    nbformat.write(new_notebook(cells=cells), path)
    return path


def test_cases_are_told_apart_by_their_order_and_by_each_part_that_varies():
    assert parts(["a", "b"]) == [None] and ranks(["a", "b"], None) == [0, 1]
    cases = [("tiny", rows, way) for rows in (1, 8) for way in "ab"]
    assert parts(cases) == [None, 1, 2]
    assert ranks(cases, None) == [0, 1, 2, 3]
    assert ranks(cases, 1) == [0, 0, 1, 1] and ranks(cases, 2) == [0, 1, 0, 1]


@pytest.mark.parametrize(
    "line",
    [
        "3.2 times as fast (2.9 to 3.4)",
        "no clear difference: 1.02 times as fast (0.95 to 1.10)",
        "slower: 0.61 times as fast (0.55 to 0.66)",
        "It loses: it takes 1.30 times as long.",
        "It gains, and takes 0.70 times as long.",
        "It is not faster: 0.98 times as fast.",
    ],
)
def test_words_that_follow_from_their_figures(line):
    assert contradictions(line) == [] and signature(line)


@pytest.mark.parametrize(
    "line",
    [
        "slower: 3.2 times as fast (2.9 to 3.4)",
        "no clear difference: 3.02 times as fast (2.95 to 3.10)",
        "It gains: it takes 1.30 times as long.",
        "It loses, and takes 0.70 times as long.",
        "It is not faster: 1.98 times as fast.",
    ],
)
def test_words_against_their_figures(line):
    assert contradictions(line) == [line]
