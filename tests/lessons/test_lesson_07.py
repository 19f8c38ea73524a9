"""Lesson 07: what its text says is what happens, and every state of its widget is right."""

import inspect
import itertools
import random
import re

import nbformat
import numpy as np
import pytest
import torch
import widget_queue
from helpers import count, random_model
from lesson_cells import NOTEBOOKS, lesson_of_a_page, numbers, pictures, verdicts
from widget_numbers import EXPECTED, wrong_cells

from qwenlab import Engine, generate
from qwenlab.exercises import lesson_07 as exercises
from qwenlab.teach import check

LESSON = "07-continuous-batching"
STRATEGIES = ("static", "early-stop", "continuous")


@pytest.fixture(scope="module")
def lesson():
    return lesson_of_a_page(LESSON, until="leak")


def lines_of(picture):
    """The cells of each line of a timeline that a cell printed, by the line's label."""
    return {
        label: re.findall(r"[▸×]?[A-Z·]", cells)
        for label, cells in re.findall(r"^((?:slot|request) \w)  (.+)$", picture, re.M)
    }


def test_closed_batches_let_the_queue_wait_and_continuous_batching_does_not(lesson):
    caps = lesson.names["CAPS"]
    cells = {}
    begun = {}
    for name in STRATEGIES:
        cells[name], begun[name], _ = widget_queue.simulate(caps, 0, 3, name)
    told = lesson.shown("queue") + lesson.shown("continuous")
    for name in STRATEGIES:
        assert numbers(rf"{name} +J begins in step (\d+)", told) == [begun[name][9]]
    assert list(lines_of(lesson.shown("continuous")).values()) == cells["continuous"]
    assert begun["static"][9] == begun["early-stop"][9] > begun["continuous"][9]
    drawn = lesson.shown("queue-picture").split("early-stop\n")
    for name, picture in zip(STRATEGIES, drawn, strict=False):
        assert list(lines_of(picture).values()) == cells[name]
    idle = [cells["early-stop"][slot][5:14] for slot in (1, 2)]
    assert idle == [["·"] * 9] * 2  # A decodes on beside two empty slots


def test_the_plain_loop_takes_the_steps_of_the_engine_in_any_chunks(lesson):
    small, whole = numbers(r"(\d+) steps, each answer as alone", lesson.shown("serve"))
    assert numbers(r"(\d+) steps", lesson.shown("library")) == [whole] and small > whole
    source = lesson.shown("engine-source")
    parts = ["scheduler.schedule(", "runner.execute(", ".sample(", "scheduler.update("]
    assert [source.index(part) for part in parts] == sorted(map(source.index, parts))
    assert source.strip() and source.strip() in inspect.getsource(Engine.step)


@pytest.mark.parametrize("seed", range(count(5, 50)))
def test_the_plain_loop_answers_as_the_engine_does(lesson, seed):
    draw = random.Random(seed)
    names = lesson.names
    asked = draw.sample(names["prompts"], draw.randint(1, 6))
    caps = [draw.randint(1, 9) for _ in asked]
    slots = draw.randint(1, 4)
    chunk = draw.randint(1, 20)
    engine = Engine(names["model"], slots, chunk=chunk)
    given = zip(asked, caps, strict=True)
    requests = [engine.submit(ids, max_new_tokens=cap, stop=()) for ids, cap in given]
    engine.run()
    found, steps = names["serve"](names["model"], asked, caps, slots, (), chunk)
    assert found == [request.token_ids for request in requests]
    assert steps == engine.stats.step_count


def test_a_slot_that_is_not_emptied_leaks_and_a_length_is_not_all(lesson):
    told = lesson.shown("leak")
    assert re.findall("clean|LEAKS", told) == ["LEAKS", "clean", "clean", "LEAKS", "LEAKS", "clean"]


def test_a_long_prompt_is_read_in_chunks_beside_the_others(lesson):
    lines = lines_of(lesson.shown("chunks"))
    a, b, long = lines.values()
    assert long == ["▸L"] * -(-1000 // 128) + ["L"]
    assert len(a) == len(b) == 4 + len(long) and a.count("▸A") == b.count("▸B") == 1


def test_the_youngest_gives_way_once_and_every_answer_stays(lesson):
    told = lesson.shown("preempt")
    assert "preempted: 1 time(s)" in told
    lines = lines_of(told)
    starts = {label: cells.count(f"▸{label[-1]}") for label, cells in lines.items()}
    assert starts == {"request A": 1, "request B": 1, "request C": 2}
    same = lesson.shown("preempt-same")
    assert verdicts(same) == ["same as alone"] * 3
    assert numbers(r"read again: (\d+) tokens", same)[0] > len(lesson.names["prompts"][2])


# --- blocks ---


@pytest.fixture
def blocks(lesson):
    names = dict(lesson.names)
    exec(lesson.sources["blocks"], names)
    return names


@pytest.mark.parametrize("seed", range(count(20, 200)))
def test_each_request_reads_its_own_keys_whatever_blocks_it_has(blocks, seed):
    draw = random.Random(seed)
    right = {}
    tables = blocks["tables"]
    free = blocks["free"]
    for _ in range(30):
        name = draw.choice("ABCDE")
        keys = torch.randn(draw.randint(1, 6), 8)
        if draw.random() < 0.3 and name in right:
            blocks["leave"](name)
            del right[name]
        elif 2 + len(keys) // blocks["SIZE"] <= len(free):
            blocks["append"](name, keys)
            right[name] = torch.cat([right.get(name, keys[:0]), keys])
        for other, expected in right.items():
            assert torch.equal(blocks["keys_of"](other), expected)
        used = list(itertools.chain(*tables.values()))
        assert sorted([*used, *free]) == list(range(len(blocks["pool"])))
        held = {other: -(-len(keys) // blocks["SIZE"]) for other, keys in right.items()}
        assert {other: len(table) for other, table in tables.items()} == held


def test_the_drawn_tables_point_to_the_drawn_blocks(lesson):
    told = lesson.shown("blocks-picture")
    pool = {}
    for block, line in re.findall(r"^block (\d) +(.*)$", told, re.M):
        pool[block] = line.split()
    tables = re.findall(r"^([ADC])  ([\d ]+)$", told.split("block tables")[1], re.M)
    for name, table in tables:
        tokens = list(itertools.chain(*(pool[block] for block in table.split())))
        assert tokens == [f"{name}{t}" for t in range(len(tokens))]
        row = re.search(rf"^slot \d +({name}0.*)$", told, re.M)[1].split()
        assert row == tokens
    in_order = [sorted(table.split()) == table.split() for _, table in tables]
    scattered = [table for _, table in tables if "2  4" in table or "1  5" in table]
    assert all(in_order) and len(scattered) == 2  # blocks are taken from anywhere
    assert numbers(r"(\d+) tokens in", told) == [24, 24]
    assert numbers(r"in (\d+) reserved", told) == [45, 28]


# --- what is measured ---


def test_the_measured_runs_take_the_counted_steps(lesson):
    wanted = [3] * 32 + [6] * 16 + [12] * 8 + [24] * 8
    random.Random(0).shuffle(wanted)
    static, continuous = exercises.schedule_steps(wanted, 16)
    told = lesson.shown("time")
    assert numbers(r"(\d+) steps", told) == [static, static, continuous]
    assert continuous * 2 < static


# --- the cell to break ---

BREAKS = {
    "1": [("            state.reset([slot])  # 1\n", "")],
    "2": [("waiting.popleft()  # 2", "waiting.pop()")],
    "3": [("chunk = 256  # 3", "chunk = 1")],
    "4": [("and waiting:  # 4", "and waiting and slot == 0:")],
}


def test_breaking_shows_what_the_text_says_and_each_break_something_else(lesson, capsys):
    def broken(*changes):
        said = lesson.say("break-me", capsys, *changes)
        return numbers(r"(\d+) of 8 as alone", said) + numbers(r"(\d+) steps", said)

    right, steps = broken()
    assert right == 8
    found = {name: broken(*changes) for name, changes in BREAKS.items()}
    assert found["1"][0] < 8
    assert found["2"][0] == found["3"][0] == found["4"][0] == 8
    assert found["2"][1] != steps and found["3"][1] > 1.5 * steps
    assert found["4"][1] > 2 * steps
    assert len({tuple(outcome) for outcome in found.values()}) == 4


# --- the exercises ---


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


COLLEAGUE = """
def admit(waiting, held, free, budget):
    admitted = 0
    for length in waiting:
        if admitted < free and held + length <= budget:
            held += length
            admitted += 1
    return admitted
"""


def test_the_colleague_s_bugs_are_told_apart():
    page = nbformat.read(NOTEBOOKS / f"{LESSON}.ipynb", as_version=4)
    (asked,) = [cell.source for cell in page.cells if cell["id"] == "exercise-admit"]
    assert COLLEAGUE in asked

    def told(*changes):
        source = COLLEAGUE
        for old, new in changes:
            assert old in source
            source = source.replace(old, new)
        exec(source, names := {})
        return repr(check("admit", lambda *given: names["admit"](*given)))

    sampled = ("+ length", "+ length + 1")
    adds = ("+= length\n", "+= length + 1\n")
    waits = ("admitted < free and held", "admitted == free or held")
    breaks = [
        (" <= budget:", " > budget:\n            break"),
        ("            held +=", "        held +="),
    ]
    assert "one more" in told()
    assert "overtaken" in told(sampled, adds)
    assert "right on all" in told(
        sampled, adds, waits, *breaks, ("            admitted +=", "        admitted +=")
    )


def with_a_tensor(lengths, slots):
    free = torch.zeros(slots, dtype=torch.int64)
    for length in lengths:
        free[free.argmin()] += length
    chunks = torch.tensor(lengths + [0] * (-len(lengths) % slots)).view(-1, slots)
    return chunks.amax(1).sum(), free.max()


def with_numpy(size, read, decoding, room):
    end = np.minimum(size, read + np.maximum(room - decoding, 0))
    return read, end, np.bool_(end == size)


@pytest.mark.parametrize(
    ("name", "answer"), [("schedule-steps", with_a_tensor), ("next-chunk", with_numpy)]
)
def test_an_answer_in_another_style_is_right(name, answer):
    assert check(name, answer).ok


# --- the widget ---


def test_every_state_of_the_widget_shows_what_a_plain_loop_works_out(lesson):
    ((widget, controls),) = lesson.widgets
    html = widget._repr_html_()
    shown = pictures(html)
    states = list(
        itertools.product(("2", "3", "4"), STRATEGIES, widget_queue.LENGTHS, widget_queue.GAPS)
    )
    assert len(shown) == len(states) == 54 and len(html) < 390_000
    (right,) = EXPECTED[LESSON]
    for values, (picture, tables) in zip(states, shown, strict=True):
        state = dict(zip(controls, values, strict=True))
        assert wrong_cells(tables, right(state)) == [], state
        assert [caption.text for caption in picture.find_all("figcaption")] == widget_queue.titles(
            state
        )


def test_with_four_slots_no_one_waits_who_comes_one_by_one():
    for slots, caps in itertools.product((2, 3, 4), widget_queue.LENGTHS.values()):
        _, begun, _ = widget_queue.simulate(caps, 2, slots, "continuous")
        waits = sum(begun[i] - 2 * i for i in range(len(caps)))
        assert (waits == 0) or slots < 4
        assert slots > 2 or waits > 0


def test_what_the_widget_is_said_to_show():
    """Equal lengths at once gain nothing; others take fewer steps, and the mean wait falls by more.

    One by one, A is alone.
    """
    for lengths, slots in itertools.product(widget_queue.LENGTHS, (2, 3, 4)):
        for arrivals in widget_queue.GAPS:
            runs = {}
            for strategy in STRATEGIES:
                state = dict(lengths=lengths, slots=slots, arrivals=arrivals, strategy=strategy)
                steps, wait = (text.split()[-2] for text in widget_queue.titles(state))
                runs[strategy] = int(steps), float(wait)
            closed, closed_wait = runs["static"]
            steps, wait = runs["continuous"]
            if lengths == "all equal" and arrivals == "all at once":
                assert len(set(runs.values())) == 1
            else:
                assert steps < closed and wait / closed_wait < steps / closed
            if arrivals != "all at once":
                caps = widget_queue.LENGTHS[lengths]
                _, begun, _ = widget_queue.simulate(caps, 2, slots, "static")
                assert begun[1] == caps[0]
