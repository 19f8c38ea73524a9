"""Lesson 17: what its text says is what happens, and its widget shows the right numbers."""

import itertools
import re

import numpy as np
import pytest
from lesson_cells import asked, code_cells, hero_pictures, numbers, say, shown
from widget_numbers import wrong_cells

from qwenlab.bench import DEVICES, LINKS, parallel_step
from qwenlab.exercises.lesson_17 import fair_share
from qwenlab.teach import check
from qwenlab.teach.curves import number

NAME = "17-beyond-one-machine"
CELLS = ["load", "ways", "parts", "bill"]
COUNTS = [2**n for n in range(11)]
WAYS = ("rows", "columns", "layers", "columns in eights")
H100 = DEVICES["H100, 80 GB"]


@pytest.fixture(scope="module")
def lesson():
    """The source of each cell by id, and the names that these cells define."""
    sources = code_cells(NAME)
    names = {}
    for cell in CELLS:
        exec(sources[cell], names)
    return sources, names


# --- From one device to a thousand ---


@pytest.fixture(scope="module")
def states(lesson):
    """What the page's widget holds: {state: (picture, tables)}."""
    order = itertools.product([*lesson[1]["MODELS"]][::-1], LINKS, (1, 32))
    return dict(zip(order, hero_pictures(NAME), strict=True))


def seconds_of(config, link, way, rows):
    """{devices: seconds} that fit, of one of the widget's lines; `rows` for each, or one in all."""
    fixed = 8 if way == "columns in eights" else None
    kind = {"rows": "copies", "layers": "pipeline"}.get(way, "tensor")
    found = {}
    for n in COUNTS[3:] if fixed else COUNTS:
        count = fixed or n
        total = 1 if rows == 1 else rows * count
        try:
            step = parallel_step(config, H100, link, count, total, 1000, kind)
        except ValueError:
            continue
        if step.device_bytes <= H100.memory:
            found[n] = step.seconds
    return found


def test_every_state_of_the_widget_is_right(states, lesson):
    for (model, link, rows), (picture, tables) in states.items():
        config = lesson[1]["MODELS"][model]
        seconds = {}
        for way in WAYS:
            seconds[way] = seconds_of(config, LINKS[link], way, rows)
        alone = seconds["rows"][1]
        table = []
        for n in COUNTS:
            cells = [number(n)]
            for found in seconds.values():
                cells.append(number(alone / found[n]) if n in found else "")
            table.append(cells)
        assert wrong_cells(tables, [table]) == [], (model, link, rows)
        best = {}
        for n in (8, 1024):
            best[n] = min((found[n], way) for way, found in seconds.items() if n in found)[1]
        caption = f"best with 8: {best[8]}; with 1,024: {best[1024]}"
        if rows > 1:  # of one user's ways some are equally fast
            assert picture.find("figcaption").text == caption


def test_columns_win_inside_a_machine_and_copies_between_machines(lesson):
    def best(link, n, rows=32):
        config = lesson[1]["MODELS"]["Qwen3-4B"]
        seconds = {}
        for way in ("rows", "columns"):
            seconds[way] = seconds_of(config, LINKS[link], way, rows)[n]
        return min(seconds, key=seconds.get)

    nvlink, infiniband, ethernet = LINKS
    assert best(nvlink, 8) == "columns"
    assert best(infiniband, 8) == best(ethernet, 2) == "rows"
    assert best(nvlink, 8, rows=1) == "columns"


def test_the_lesson_s_own_wire_is_the_library_s():
    assert len(re.findall(r" ms of ", shown(NAME, "ways"))) == 9  # the cell asserts each


# --- A job, and what was published ---


def test_the_wait_falls_and_the_bill_grows_with_each_further_device(lesson):
    names = lesson[1]
    seconds = []
    for n in (1, 3, 10, 30, 100, 300, 1000):
        seconds.append((n, names["job"](names["config"], names["device"], n, 256)))
    for (fewer, slow), (more, fast) in itertools.pairwise(seconds):
        assert fast < slow and more * fast > fewer * slow
    assert seconds[-1][1] < 2 * names["START"]  # starting takes longer than working


def test_every_answer_of_the_job_has_a_row(lesson):
    names = lesson[1]
    wide = names["job"](names["config"], names["device"], 10_000, 256)
    one_round = names["job"](names["config"], names["device"], names["ANSWERS"], 256)
    assert wide >= one_round > names["START"]


def test_the_bound_stays_below_what_was_published_and_with_the_host_s_time_comes_close():
    said = shown(NAME, "published")
    bounds = numbers(r"bound +([\d.]+) ms, pub", said)
    published = numbers(r"published ([\d.]+) ms", said)
    predicted = numbers(r"of host: ([\d.]+)", said)
    assert len(bounds) == len(published) == len(predicted) == 4
    assert all(bound < wait for bound, wait in zip(bounds, published, strict=True))
    assert bounds[0] > 3 * bounds[3]  # "several times as fast"
    assert published[0] < 1.5 * published[3]  # "hardly move"
    for ours, theirs in zip(predicted, published, strict=True):
        assert ours == pytest.approx(theirs, rel=0.1)


# --- Two processes ---


def test_two_workers_give_the_answers_of_one():
    said = shown(NAME, "measure")
    assert "the same answers" in said and "DIFFERENT" not in said
    assert numbers(r"crossed in a run: ([\d,]+) bytes", said)[0] > 0


# --- Exercises ---


def by_dealing(count, n):
    sizes = [0] * n
    for problem in range(count):
        sizes[problem % n] += 1
    return [*np.cumsum([0, *sizes])]


def in_one_loop(layers, hidden, rows, size, n):
    sent = 0.0
    for _layer in range(layers):
        for _after in ("attention", "feed-forward"):
            sent += rows * hidden * size * (n - 1) / n  # to sum
            sent += rows * hidden * size * (n - 1) / n  # to hand out
    return np.float64(sent)


def smallest_of_all(weights, row, rows, memory, heads):
    divisors = [n for n in range(1, heads + 1) if heads % n == 0]
    return min((n for n in divisors if n * memory >= weights + rows * row), default=0)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("fair-share", by_dealing),
        ("wire-bytes", in_one_loop),
        ("fewest-devices", smallest_of_all),
    ],
)
def test_other_styles_are_right_too(name, answer):
    assert check(name, answer).ok


def test_the_colleague_s_share_loses_what_the_text_says():
    share = asked(NAME, "shard")["share"]
    assert [share(500, n)[-1] for n in (1, 2, 3, 4)] == [500, 500, 498, 500]


def test_fair_shares_cover_every_problem_once():
    for count, n in itertools.product(range(20), range(1, 8)):
        bounds = fair_share(count, n)
        sizes = [stop - start for start, stop in itertools.pairwise(bounds)]
        assert bounds[0] == 0 and bounds[-1] == count and len(sizes) == n
        assert max(sizes) - min(sizes) <= 1 and sizes == sorted(sizes, reverse=True)


# --- The cell to break ---

FIVE = [
    (
        "W[0].chunk(2), W[1].chunk(2), W[2].chunk(2, dim=1)",
        "W[0].chunk(5), W[1].chunk(5), W[2].chunk(5, dim=1)",
    )
]
MIXED = [("zip(gates, ups, downs,", "zip(gates, ups[::-1], downs,")]
REVERSED = [("zip(gates, ups, downs,", "zip(gates[::-1], ups[::-1], downs[::-1],")]
NOT_SUMMED = [("total = total + inner @ down.T", "total = inner @ down.T")]


@pytest.mark.parametrize(
    ("changes", "right"),
    [([], True), (FIVE, True), (MIXED, False), (REVERSED, True), (NOT_SUMMED, False)],
)
def test_breaking_shows_what_the_text_says(lesson, capsys, changes, right):
    said = say(lesson, "break-me", capsys, *changes)
    assert ("right" in said) == right and ("WRONG" in said) != right
