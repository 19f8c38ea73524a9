"""Lesson 11: what its text says is what happens, and every state of its widget is right."""

import itertools
import random
import re

import pytest
from coins import chance
from helpers import count
from lesson_cells import asked, lesson_of_a_page, numbers, pictures
from widget_numbers import EXPECTED, wrong_cells
from widget_records import of_kind

from qwenlab.evaluation import extract_answer
from qwenlab.evaluation.evaluation import wilson
from qwenlab.exercises.lesson_11 import last_box, problems_needed, won_and_lost
from qwenlab.teach import check

LESSON = "11-evaluation"
KINDS = ["all", "right", "wrong", "cut off"]


@pytest.fixture(scope="module")
def lesson():
    lesson = lesson_of_a_page(LESSON, until="kill-after")
    for cell in ("wilson", "mcnemar"):  # the cells before them only run what is tested here
        exec(lesson.sources[cell], lesson.names)
    return lesson


def test_the_first_picture_has_the_first_records(lesson):
    table = lesson.shown("hero-python")
    for record in lesson.names["evaluation"].records[:10]:
        verdict = "right" if record["verdict"] else "wrong"
        assert re.search(rf"{record['answer']} +{record['gold']} +{verdict}\n?", table)


def test_one_by_one_and_at_once_the_same_tokens_are_sampled(lesson):
    said = lesson.shown("one-by-one")
    one_by_one, at_once = numbers(r"(\d+) tokens in", said)
    records = lesson.names["evaluation"].records[16:32]
    assert one_by_one == at_once == sum(record["tokens"] for record in records)
    assert said.endswith("same answers\n")


def test_naive_graders_praise_wrong_answers_of_the_model(lesson):
    said = lesson.shown("naive")
    praised = numbers(r"(\d+) wrong ones", said)
    missed = numbers(r"(\d+) right ones", said)
    assert praised[0] > 0 and praised[1] == 0 and sum(missed) == 0
    work, gold = re.search(r"such as (.+)\n +where (\d+)", said).groups()
    assert gold in work and f"\\boxed{{{gold}}}" not in work


def test_of_the_hand_made_texts_each_naive_grader_gets_some_wrong_and_the_library_none(lesson):
    names = lesson.names
    wrong = [column for _, column in names["wrong"]]
    assert all(wrong.count(column) >= 3 for column in range(4)) and wrong.count(4) == 0
    for i, (_, text, gold, verdict) in enumerate(names["CASES"]):
        assert names["library"](text, gold) is verdict == names["verdicts"][i][-1]
    assert all(any(i == row for row, _ in names["wrong"]) for i in range(len(names["CASES"])))


def test_killed_and_resumed_it_is_the_same(lesson):
    said = lesson.shown("killed")
    assert "killed; " in said and "50 records are there, 70 problems are left" in said
    assert said.endswith("same as in one go\n")
    order = numbers(r"(\d+)[,\]]", re.search(r"order (\[.+\]) ", said)[1])
    assert len(order) == 8 and order != sorted(order)  # so counting lines would not do


def test_the_library_resumes_a_torn_file_and_writes_what_the_plain_code_does(lesson):
    said = lesson.shown("library")
    assert "resumed: same" in said and "plain code: same" in said and "run.json" in said


@pytest.mark.parametrize(("right", "n"), [(0, 1), (1, 1), (15, 20), (91, 120), (1000, 1000)])
def test_the_interval_is_the_library_s(lesson, right, n):
    interval = lesson.names["accuracy_interval"](right / n, n)
    assert interval == pytest.approx(wilson(right / n, n), abs=1e-4)


def test_the_interval_of_few_problems_is_wide(lesson):
    said = lesson.shown("interval-curve")
    exams = [float(share) for share in re.search(r"of 20: (.+)", said)[1].split()]
    assert len(exams) == 6 and max(exams) - min(exams) >= 0.15
    wide = numbers(r"([\d.]+) wide", said)
    assert wide[0] > 0.3 and wide[2] / wide[3] == pytest.approx(2, rel=0.05)


def test_the_cap_decides_the_score(lesson):
    said = lesson.shown("cap-curve")
    accuracy = numbers(r"accuracy ([\d.]+)  cut", said)
    cut_off = numbers(r"cut off ([\d.]+)\n", said)
    assert accuracy == sorted(accuracy) and cut_off == sorted(cut_off, reverse=True)
    assert accuracy[0] == 0 and cut_off[0] == 1 and accuracy[-1] > 0.9 and cut_off[-1] < 0.05


@pytest.mark.parametrize(("won", "lost"), [(0, 0), (1, 0), (3, 3), (0, 5), (1, 6), (12, 3)])
def test_the_paired_test_counts_what_coins_do(lesson, won, lost):
    both = [(True, False)] * won + [(False, True)] * lost + [(True, True)] * 7 + [(False,) * 2] * 2
    random.Random(won).shuffle(both)
    found = lesson.names["mcnemar"](*zip(*both, strict=True))
    assert found == (won, lost, pytest.approx(chance(won, lost)))


def test_on_the_same_problems_the_paired_test_sees_more_than_the_other(lesson):
    said = lesson.shown("paired-runs")
    rows = re.findall(r"([\d.]+) beside ([\d.]+) +(\d+) +(\d+) +([\d.e-]+) +([\d.e-]+)", said)
    assert len(rows) == 3
    for one, two, won, lost, unpaired, paired in rows:
        assert float(paired) == pytest.approx(chance(int(won), int(lost)), rel=0.06)
        assert float(paired) < float(unpaired)  # the problems are what makes most of the noise
        words = [
            f"{'more than' if float(p) < 0.05 else 'may be'} chance" for p in (unpaired, paired)
        ]
        assert f"{one} beside {two}: unpaired, {words[0]}; paired, {words[1]}" in said


def test_the_tail_has_many_steps_and_little_work(lesson):
    steps, work = numbers(r"(\d+)% of", lesson.shown("tail"))
    assert steps > 5 * work > 0


BREAKS = {
    "1": (
        'content[: content.rfind("\\n") + 1].splitlines()  # 1',
        "content.splitlines()",
    ),
    "2": (
        "[problem for problem in subset if problem.number not in done]  # 2",
        "subset[len(records) :]",
    ),
    "3": (
        "seed=[problem.number for problem in left],  # 3",
        "seed=list(range(len(left))),",
    ),
}


def outcome(said):
    """Problems lost, twice, and with other words."""
    found = []
    for pattern in ("lost", "twice", "with other"):
        found += map(int, re.findall(rf"(\d+) {pattern}", said))
    return found


def test_the_cell_to_break_works_as_it_stands(lesson):
    assert outcome(lesson.shown("break-me")) == [0, 0, 0]


@pytest.mark.parametrize("number", BREAKS)
def test_breaking_shows_what_the_text_says(lesson, capsys, number):
    if "killed_and_resumed" not in lesson.names:
        exec(lesson.sources["killed-and-resumed"], lesson.names)
    said = lesson.say("break-me", capsys, BREAKS[number])
    lost, twice, other = outcome(said)
    if number == "1":
        assert "JSONDecodeError" in said and lost == 48
    elif number == "2":
        assert lost == twice > 0
    else:
        assert lost == twice == 0 and other > 28 / 2  # of those after the kill


# --- the exercises say what the library does ---


@pytest.mark.parametrize("seed", range(count(20, 200)))
def test_the_last_box_is_the_library_s(seed):
    rng = random.Random(seed)
    pieces = [r"\boxed{", "{", "}", "}", "5", " ", r"\frac", "x"]
    text = r"\boxed{1}" + "".join(rng.choice(pieces) for _ in range(rng.randint(0, 30)))
    assert (last_box(text) or None) == extract_answer(text)


@pytest.mark.parametrize(("p", "width"), [(0.8, 0.1), (1.0, 0.05), (0.5, 0.3), (0.02, 0.2)])
def test_with_one_problem_fewer_the_interval_is_too_wide(p, width):
    needed = problems_needed(p, width)
    for n, enough in ((needed, True), (needed - 1, False)):
        low, high = wilson(p, n)
        assert (high - low <= width + 1e-5) is enough


def test_the_exam_coins_fall_within_the_width_that_was_asked_for(lesson, capsys):
    names = {**lesson.names, "my_problems_needed": problems_needed}
    exec(lesson.sources["measure-problems-needed"], names)
    few, enough = numbers(r"(\d+)% of", capsys.readouterr().out)
    assert few < 80 and enough > 90


def shown_in(exercise):
    """The function that an exercise shows."""
    return asked(LESSON, exercise, re=re)[exercise.replace("-", "_")]


def test_the_colleague_s_box_is_right_for_the_small_model_and_wrong_in_three_ways(lesson):
    colleague = shown_in("last-box")
    for record in lesson.names["evaluation"].records:
        assert colleague(record["text"]) == last_box(record["text"])
    for text in (r"\boxed{\frac{1}{2}}", r"\boxed{6}, \boxed{", r"\boxed{ 3 }"):
        assert colleague(text) != last_box(text)
    told = repr(check("last-box", lambda text: colleague(text)))
    assert "you stop at the first closing brace" in told


def test_the_colleague_s_pairs_have_the_right_difference_and_the_wrong_counts():
    colleague = shown_in("won-and-lost")
    draw = random.Random(3)
    runs = []
    for share in (0.7, 0.8):
        numbers = draw.sample(range(60), 60)
        runs.append([{"number": one, "verdict": draw.random() < share} for one in numbers])
    won, lost = won_and_lost(*runs)
    theirs = colleague(*runs)
    assert theirs[0] - theirs[1] == won - lost and theirs != (won, lost)
    told = repr(check("won-and-lost", lambda first, second: colleague(first, second)))
    assert "Pair them by number" in told


def with_sets(first, second):
    right = []
    for records in (first, second):
        right.append({record["number"] for record in records if record["verdict"]})
    common = {record["number"] for record in first} & {record["number"] for record in second}
    return len((right[0] - right[1]) & common), len((right[1] - right[0]) & common)


def solved_for_n(p, width):
    """width^2 (n + z^2)^2 = z^2 (4 n p q + z^2), a quadratic in n."""
    from math import ceil, sqrt

    z2 = 1.96**2
    half = z2 * (1 - 2 * p * (1 - p) / width**2)
    rest = z2**2 - z2**2 / width**2
    return max(1, ceil(-half + sqrt(max(half**2 - rest, 0))))


def by_splitting(text):
    if "\\boxed{" not in text:
        return ""
    inside = text.split("\\boxed{")[-1]
    depth = 0
    for i, letter in enumerate(inside):
        if letter == "}" and depth == 0:
            return inside[:i].strip()
        depth += (letter == "{") - (letter == "}")
    return ""


@pytest.mark.parametrize(
    ("name", "answer"),
    [("last-box", by_splitting), ("won-and-lost", with_sets), ("problems-needed", solved_for_n)],
)
def test_an_answer_in_another_style_is_right(name, answer):
    assert check(name, answer).ok


# --- the widget ---


def test_every_state_of_the_widget_shows_the_right_record_and_no_two_are_alike(lesson):
    ((widget, controls),) = lesson.widgets
    assert controls == {"record": range(1, 13), "show": KINDS}
    html = widget._repr_html_()
    shown = pictures(html)
    places = range(1, 13)
    states = [{"record": str(i), "show": kind} for i, kind in itertools.product(places, KINDS)]
    assert len(shown) == len(states) and len(html) < 100_000  # equal pictures would be stored once
    (right,) = EXPECTED[LESSON]
    for state, (picture, tables) in zip(states, shown, strict=True):
        assert wrong_cells(tables, right(state)) == [], state
        kind = of_kind(state["show"])
        place = int(state["record"])
        if place <= len(kind):  # the words beside the table
            _, problem, text, *_ = kind[place - 1]
            assert f"{problem.question}\n\n{text.strip()}" in picture.text
            assert f"record {place} of {len(kind)} ({state['show']})" in picture.text
        else:
            assert f"There is no record {place} of {len(kind)}" in picture.text


def test_each_kind_has_records_to_read(lesson):
    for kind, least in zip(KINDS, (120, 60, 12, 3), strict=True):
        assert len(of_kind(kind)) >= least
