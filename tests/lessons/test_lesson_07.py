"""Lesson 07: what its text says is what happens, and every state of its widget is right."""

import itertools
import random
import re
from contextlib import redirect_stdout
from io import StringIO

import pytest
import widget_queue
from bs4 import BeautifulSoup
from helpers import count, random_model
from lesson_cells import code_cells, pictures, say
from widget_numbers import EXPECTED, wrong_cells

from qwenlab import Engine, generate
from qwenlab.exercises import lesson_07 as exercises
from qwenlab.teach import exploring

LESSON = "07-continuous-batching"
RUN_FIRST = ("load", "queue", "queue-picture", "look-continuous", "plain", "leak")


@pytest.fixture(scope="module")
def lesson():
    """The source of each cell by id, and a namespace in which those that others need have run."""
    sources = code_cells(LESSON)
    names = {}
    for name in RUN_FIRST:
        exec(sources[name], names)
    return sources, names


def numbers(pattern, text):
    return [int(number) for number in re.findall(pattern, text)]


def grid(picture):
    table = BeautifulSoup(picture._repr_html_(), "html.parser").table
    return [[td.text for td in tr.find_all("td")] for tr in table.tbody.find_all("tr")]


def test_both_closed_strategies_let_the_line_wait_and_the_open_one_does_not(lesson):
    names = lesson[1]
    runs = {name: names[key] for name, key in [("static", "static"), ("early-stop", "early")]}
    runs["continuous"] = names["continuous"]
    for name, run in runs.items():
        cells, begun, _ = widget_queue.simulate(names["CAPS"], 0, 3, name)
        assert names["begins"](run) == begun and run.stats.step_count == len(cells[0])
        assert grid(names["timeline"](names["fixed_slots"](run), names="ABCDEFGHIJ")) == cells
    assert runs["static"].stats.step_count == runs["early-stop"].stats.step_count == 26
    assert runs["continuous"].stats.step_count == 16
    assert (
        runs["static"].stats.row_steps["wasted"] > 0 == runs["early-stop"].stats.row_steps["wasted"]
    )
    first = runs["early-stop"].stats.events[: 3 * names["CAPS"][0]]
    assert {event.request for event in first if event.step > 4} == {
        0,
        None,
    }  # A talks on beside two free seats


def test_a_slot_that_is_not_emptied_leaks_and_a_length_is_not_all(lesson, capsys):
    told = lesson[1]["told"]
    rows = {}
    for (model, how), answers in told.items():
        rows[model, how] = sum(a == b for a, b in zip(answers, told[model, "alone"], strict=True))
    assert (
        rows["tiny", "reset"] == rows["tiny-hybrid", "reset"] == rows["tiny", "length_only"] == 16
    )
    assert all(3 <= rows[model, "nothing"] < 16 for model in ("tiny", "tiny-hybrid"))
    assert 8 < rows["tiny-hybrid", "length_only"] < 16
    said = say(lesson, "leak-text", capsys)
    assert said.count("after another") == 16 - rows["tiny-hybrid", "length_only"]
    said = say(lesson, "leak-logits", capsys)
    off = {}
    for model, how, gap in re.findall(r"^(\S+) +(\w+) +logits off by (\S+)$", said, re.M):
        off[model, how] = float(gap)
    for model in ("tiny", "tiny-hybrid"):
        assert off[model, "nothing"] > 0.05 and off[model, "reset"] < 1e-5
    assert off["tiny", "length_only"] < 1e-5 and off["tiny-hybrid", "length_only"] > 0.05


def test_whoever_comes_and_goes_says_what_it_says_alone(lesson, capsys):
    said = say(lesson, "arrivals", capsys)
    assert len(numbers(r"stop +(\d+) tokens, all of its", said)) == 9
    (tokens,) = numbers(r"C came in step \d+: cancelled +(\d+) tokens, the beginning", said)
    assert tokens > 1
    streamed = say(lesson, "stream", capsys)
    assert "\\boxed { 4 9 }" in streamed and all(numbers(r"(\d+)[,\]]", streamed.splitlines()[-1]))


def test_a_long_prompt_is_read_in_chunks_beside_the_others(lesson, capsys):
    sources, names = lesson
    exec(sources["chunks"].replace("REPEATS = 3", "REPEATS = 1"), names)
    capsys.readouterr()
    for chunk, last in ((2048, 5), (256, 12), (64, 36)):
        events = names["chunked"][chunk][0][2].stats.events
        steps = [event.step for event in events if event.request == 2 and event.kind == "prefill"]
        assert steps == list(range(4, last))
        talks = {event.step for event in events if event.request == 0 and event.kind == "decode"}
        assert talks >= set(steps)


def test_the_youngest_gives_way_once_and_nothing_exceeds_the_budget(lesson, capsys):
    sources, names = lesson
    said = say(lesson, "preempt", capsys)
    assert "preemptions: 1\n" in said
    most, budget = re.search(r"at most: (\d+) of (\d+) tokens", said).groups()
    assert int(most) <= int(budget)
    exec(sources["preempt"].replace("timeline(\n", "picture = timeline(\n"), names)
    capsys.readouterr()
    a, b, c = grid(names["picture"])
    assert "".join(c).count("▸") == 2 and "".join(a + b).count("▸") == 2
    back = c.index("▸C", 1)
    assert c[back - 1] == "" and b[back - 1] == "B" and b[back] == "" and c[-1] == "C"
    refused = say(
        lesson, "refused", capsys, ("* BUDGET", "* 72"), ("=BUDGET", "=72"), ("BUDGET - 1", "71")
    )
    assert "has 72 tokens: no room for a new one in a token_budget of 72" in refused
    assert "1 new token, then 'length'" in refused


@pytest.fixture(scope="module")
def once(lesson):
    """The lesson, each case measured once, and what the first measurement prints."""
    sources, names = lesson
    names = names | {
        "REPEATS": 1,
        "alternate": lambda run, cases, _: {case: [run(case)] for case in cases},
    }
    with redirect_stdout(StringIO()) as said:
        exec(sources["time"], names)
    return sources, names, said.getvalue()


def test_the_measured_strategies_differ_as_the_text_says(once):
    _, names, said = once
    static, early, continuous = numbers(r"(\d+) steps", said)
    assert static == early > 2 * continuous
    assert (
        numbers(r"(\d+)\.\d% of the computed", said)[0] < 40
        and said.count("100.0% of the computed") == 2
    )
    (run,) = names["readings"]["continuous"]
    idle = [
        step
        for step, slots in enumerate(run.stats.steps)
        if any(kind == "idle" for _, kind in slots)
    ]
    assert min(idle) >= max(names["begins"](run).values())  # only once the line is empty


def test_equal_lengths_and_a_seat_for_everybody_gain_nothing(once, capsys):
    assert numbers(r"(\d+) steps", say(once[:2], "equal", capsys)) == [32] * 3


BREAKS = {
    "1": [("state.reset(new)  # 1", "pass")],
    "2": [("waiting.popleft()  # 2", "waiting.pop()")],
    "3": [("new = new[: len(waiting)]  # 3", "new = [] if old else new[: len(waiting)]")],
    "4": [("rows = old  # 4", "rows = range(len(old))")],
}


def test_breaking_shows_what_the_text_says(lesson, capsys):
    def broken(*changes):
        said = say(lesson, "break-me", capsys, *changes)
        return [int(x) for x in re.fullmatch(r"(\d+) of 16 as alone, (\d+) steps\n", said).groups()]

    right, steps = broken()
    assert right == 16
    assert broken(*BREAKS["1"])[0] < 16
    assert broken(*BREAKS["2"])[0] == 16  # nobody's words tell
    closed = broken(*BREAKS["3"])
    assert closed[0] == 16 and closed[1] > 1.2 * steps  # early stop
    assert broken(*BREAKS["4"])[0] < 16


# --- what the exercises ask for is what the library does ---


@pytest.mark.parametrize("seed", range(count(6, 60)))
def test_the_engine_admits_and_schedules_as_the_exercises_say(seed):
    draw = random.Random(seed)
    model = random_model()
    lengths = [draw.randint(1, 12) for _ in range(draw.randint(1, 9))]
    slots = draw.randint(1, 4)
    runs = [
        generate(
            model,
            [[1]] * len(lengths),
            max_new_tokens=lengths,
            stop=(),
            slots=slots,
            strategy=strategy,
        )
        for strategy in ("static", "continuous")
    ]
    assert tuple(run.stats.step_count for run in runs) == exercises.schedule_steps(lengths, slots)
    engine = Engine(model, slots=slots, token_budget=60)
    first, *line = (draw.randint(1, 58) for _ in range(8))
    for length in (first, *line):
        engine.submit([1] * length, max_new_tokens=2, stop=())
    engine.step()
    assert len(engine.scheduler.running) == 1 + exercises.admit(line, first + 1, slots - 1, 60)


# --- the widget ---


def test_with_four_slots_nobody_waits_who_comes_one_by_one_and_with_three_hardly_anybody(lesson):
    sources, names = lesson
    exec(sources["explore-seats"].split("\ndef draw(")[0], names)
    waits = {}
    for slots, caps in itertools.product((3, 4), names["LENGTHS"].values()):
        begin = names["begins"](names["serve"](caps, slots, "continuous", 2))
        waits.setdefault(slots, []).append(sum(begin[i] - 2 * i for i in range(len(caps))))
    assert waits[4] == [0, 0, 0] and 0 < sum(waits[3]) < 4


def test_every_state_of_the_widget_shows_what_a_plain_loop_works_out(lesson, monkeypatch):
    monkeypatch.setenv("QWENLAB_PAGE", "1")
    monkeypatch.setattr(exploring, "_spent", 0)
    sources, names = lesson
    exec(sources["explore-seats"].replace("\nexplore(", "\nwidget = explore("), names)
    html = names["widget"]._repr_html_()
    shown = pictures(html)
    kinds = ("static", "early-stop", "continuous")
    states = list(
        itertools.product(("2", "3", "4"), kinds, widget_queue.LENGTHS, widget_queue.GAPS)
    )
    assert len(shown) == len(states) == 54 and len(html) < 390_000
    (right,) = EXPECTED[LESSON]
    for values, (picture, tables) in zip(states, shown, strict=True):
        state = dict(zip(("slots", "strategy", "lengths", "arrivals"), values, strict=True))
        assert wrong_cells(tables, right(state)) == [], state
        assert [caption.text for caption in picture.find_all("figcaption")] == widget_queue.titles(
            state
        )


def test_what_the_widget_is_said_to_show():
    """Equal lengths at once gain nothing; others take fewer steps, and the mean wait falls by more.

    One by one, A is alone.
    """
    for lengths, slots in itertools.product(widget_queue.LENGTHS, (2, 3, 4)):
        for arrivals in widget_queue.GAPS:
            runs = {}
            for strategy in ("static", "early-stop", "continuous"):
                state = dict(lengths=lengths, slots=slots, arrivals=arrivals, strategy=strategy)
                steps, wait = (text.split()[-2] for text in widget_queue.titles(state))
                runs[strategy] = int(steps), float(wait)
            closed, closed_wait = runs["static"]
            steps, wait = runs["continuous"]
            if lengths == "all equal" and arrivals == "all at once":
                assert (closed, closed_wait) == (steps, wait)
            else:
                assert steps < closed and wait / closed_wait < steps / closed
            if arrivals != "all at once":
                assert slots < 4 or wait == 0
                caps = widget_queue.LENGTHS[lengths]
                _, begun, _ = widget_queue.simulate(caps, 2, slots, "static")
                assert begun[1] == caps[0]
