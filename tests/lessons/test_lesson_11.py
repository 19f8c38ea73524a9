"""Lesson 11: what its text says is what happens, and every state of its widget is right."""

import itertools
import json
import random
import re

import pytest
from helpers import count
from lesson_cells import lesson_of_a_page, numbers, pictures
from widget_numbers import EXPECTED, wrong_cells
from widget_records import of_kind

from qwenlab.evaluation import extract_answer
from qwenlab.evaluation.evaluation import wilson
from qwenlab.exercises.lesson_11 import accuracy_interval, last_box, problems_left
from qwenlab.run_folder import RunFolder

KINDS = ["all", "right", "wrong", "cut off"]


@pytest.fixture(scope="module")
def lesson():
    return lesson_of_a_page("11-evaluation", until="killed")


def test_one_by_one_says_the_same_slowly(lesson):
    said = lesson.shown("one-by-one")
    assert "answers are the same" in said and numbers(r"(\d+) problems", said) == [16, 120]


def test_naive_graders_praise_wrong_answers_of_the_model(lesson, capsys):
    said = lesson.say("naive", capsys)
    praised = numbers(r"(\d+) wrong ones", said)
    missed = numbers(r"(\d+) right ones", said)
    assert praised[0] > 0 and praised[1] == 0 and sum(missed) == 0
    work, gold = re.search(r"such as (.+)\n +where (\d+)", said).groups()
    assert gold in work and boxed_is_not(work, gold)


def boxed_is_not(text, gold):
    return f"\\boxed{{{gold}}}" not in text


def test_of_the_hand_made_texts_each_naive_grader_gets_some_wrong_and_ours_none(lesson):
    names = lesson.names
    wrong = [column for _, column in names["wrong"]]
    assert all(wrong.count(column) >= 3 for column in range(4)) and wrong.count(4) == 0
    for i, (_, text, gold, verdict) in enumerate(names["CASES"]):
        assert names["ours"](text, gold) is verdict == names["verdicts"][i][-1]
    assert all(any(i == row for row, _ in names["wrong"]) for i in range(len(names["CASES"])))


def test_the_plain_loop_is_the_library_s(lesson):
    told = [
        {key: one[key] for key in lesson.names["in_one_go"][0]}
        for one in lesson.names["evaluation"].records
    ]
    assert told == lesson.names["in_one_go"]
    said = lesson.shown("library")
    assert "resumed: same" in said and "plain code: same" in said and "run.json" in said


def test_killed_and_taken_up_again_it_is_the_same(lesson):
    said = lesson.shown("killed")
    assert "killed\n" in said and "50 records are there, 70 problems are left" in said
    assert said.endswith("same as in one go\n")
    order = json.loads(re.search(r"ending: (\[.+\])", said)[1])
    assert order != sorted(order)  # so counting lines would not do


def test_the_cap_decides_the_score(lesson):
    said = lesson.shown("loses-cap")
    accuracy = numbers(r"accuracy ([\d.]+)", said)
    cut_off = numbers(r"cut off ([\d.]+)", said)
    assert accuracy == sorted(accuracy) and cut_off == sorted(cut_off, reverse=True)
    assert accuracy[0] == 0 and cut_off[0] == 1 and accuracy[-1] > 0.9 and cut_off[-1] < 0.05


def test_the_tail_has_many_steps_and_little_work(lesson, capsys):
    steps, work = numbers(r"(\d+)% of", lesson.say("loses-tail-count", capsys))
    assert steps > 10 * work > 0


def test_algebra_takes_longer_than_numbers_and_has_a_limit(lesson, capsys):
    said = lesson.say("loses-grading-count", capsys)
    took = numbers(r"([\d.]+) ms", said)
    assert re.findall(r"right|no\b", said) == ["right"] * 4 + ["no"]
    assert max(took[:2]) < min(took[2:]) and took[4] < 3000


def test_the_interval_of_few_problems_is_wide(lesson, capsys):
    said = lesson.say("interval", capsys) + lesson.say("interval-curve", capsys)
    exams = [float(share) for share in re.search(r"of 20:\n(.+)", said)[1].split()]
    assert len(exams) == 6 and max(exams) - min(exams) >= 0.15
    wide = numbers(r"([\d.]+) wide", said)
    assert wide[0] > 0.3 and wide[3] < 0.06 and wide[2] / wide[3] == pytest.approx(2**0.5, rel=0.05)
    bounds = re.findall(r"\(([\d.]+) to ([\d.]+)\)", said)
    assert max(float(low) for low, _ in bounds[:5]) < min(
        float(high) for _, high in bounds[:5]
    )  # all overlap


BREAKS = {
    "1": (
        ('content[: content.rfind("\\n") + 1].splitlines()', "content.splitlines()"),
        "JSONDecodeError",
    ),
    "2": (
        (
            "[problem for problem in subset if problem.number not in done]  # 2",
            "subset[len(records) :]",
        ),
        "twice",
    ),
    "3": (
        ("seed=[problem.number for problem in left],  # 3", "seed=list(range(len(left))),"),
        "words",
    ),
}


def outcome(said):
    return [
        int(number)
        for pattern in ("lost", "twice", "with other")
        for number in re.findall(rf"(\d+) {pattern}", said)
    ]


def test_the_cell_to_break_works_as_it_stands(lesson, capsys):
    assert outcome(lesson.say("break-me", capsys)) == [0, 0, 0]


@pytest.mark.parametrize("number", BREAKS)
def test_breaking_shows_what_the_text_says(lesson, capsys, number):
    change, word = BREAKS[number]
    said = lesson.say("break-me", capsys, change)
    lost, twice, other = outcome(said)
    assert word in said
    if number == "1":
        assert "JSONDecodeError" in said and lost == 48
    elif number == "2":
        assert lost == twice > 0
    else:
        assert lost == twice == 0 and other > 10


# --- the exercises say what the library does ---


@pytest.mark.parametrize("seed", range(count(20, 200)))
def test_the_last_box_is_the_library_s(seed):
    rng = random.Random(seed)
    pieces = [r"\boxed{", "{", "}", "}", "5", " ", r"\frac", "x"]
    text = r"\boxed{1}" + "".join(rng.choice(pieces) for _ in range(rng.randint(0, 30)))
    assert (last_box(text) or None) == extract_answer(text)


@pytest.mark.parametrize("seed", range(count(20, 200)))
def test_what_is_kept_is_what_the_library_keeps(tmp_path, seed):
    rng = random.Random(seed)
    content = "".join(json.dumps({"number": number}) + "\n" for number in rng.sample(range(30), 9))
    content = content[: rng.randint(0, len(content))]
    with RunFolder(tmp_path, {}) as run:
        (tmp_path / "records.jsonl").write_text(content)
        there = {record["number"] for record in run.records("records.jsonl")}
    kept, left = problems_left(content, list(range(30)))
    assert (tmp_path / "records.jsonl").read_text() == kept
    assert left == [number for number in range(30) if number not in there]


@pytest.mark.parametrize(("right", "n"), [(0, 1), (1, 1), (15, 20), (91, 120), (1000, 1000)])
def test_the_interval_is_the_library_s(right, n):
    assert accuracy_interval(right, n) == pytest.approx(wilson(right / n, n), abs=1e-4)


# --- the widget ---


def test_every_state_of_the_widget_shows_the_right_record_and_no_two_are_alike(lesson):
    ((widget, controls),) = lesson.widgets
    assert controls == {"record": range(12), "show": KINDS}
    html = widget._repr_html_()
    shown = pictures(html)
    states = [{"record": str(i), "show": kind} for i, kind in itertools.product(range(12), KINDS)]
    assert len(shown) == len(states) and len(html) < 100_000  # equal pictures would be stored once
    (right,) = EXPECTED["11-evaluation"]
    for state, (picture, tables) in zip(states, shown, strict=True):
        assert wrong_cells(tables, right(state)) == [], state
        kind = of_kind(state["show"])
        place = int(state["record"])
        if place < len(kind):  # the words beside the table
            _, problem, text, *_ = kind[place]
            assert f"{problem.question}\n\n{text.strip()}" in picture.text
            assert f"record {place + 1} of {len(kind)} ({state['show']})" in picture.text
        else:
            assert f"There is no record {place + 1} of {len(kind)}" in picture.text


def test_each_kind_has_records_to_read(lesson):
    for kind, least in zip(KINDS, (120, 60, 12, 3), strict=True):
        assert len(of_kind(kind)) >= least
