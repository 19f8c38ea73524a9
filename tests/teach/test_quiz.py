"""teach.quiz: one question as HTML without a script, and a teacher's table of the answers."""

import json
import re
from collections import Counter

import nbformat
import pytest
from bs4 import BeautifulSoup
from executed import NOTEBOOKS

from qwenlab.teach import quiz
from qwenlab.teach.in_page import FOLDER
from qwenlab.teach.palette import STYLE
from qwenlab.teach.questions import answer_table, questions_of

RIGHT = ("On the left.", "Its last column is real in every row, so `logits[:, -1]` is.")
WRONG = [
    ("On the right.", "The next token would follow a pad."),
    ("It makes no difference & no one cares.", "It does: <b> is a pad & no answer."),
]


def asked(question="Where do the pads of `left_pad` go?", right=RIGHT, wrong=WRONG):
    return quiz(question, right=right, wrong=wrong)


def parsed(shown):
    return BeautifulSoup(shown._repr_html_(), "html.parser").fieldset


def test_each_choice_unfolds_to_its_own_verdict_and_reason():
    page = parsed(asked())
    found = {}
    for details in page.find_all("details"):
        letter, choice = details.summary.text.split(". ", 1)
        assert letter == "ABC"[len(found)]
        found[choice] = details.p.text
    assert found == {
        "On the left.": "✓ Right. Its last column is real in every row, so logits[:, -1] is.",
        "On the right.": "✗ Not this one. The next token would follow a pad.",
        WRONG[1][0]: f"✗ Not this one. {WRONG[1][1]}",
    }
    assert [code.text for code in page.find_all("code")] == ["left_pad", "logits[:, -1]"]
    assert page.legend.text.startswith("Where do the pads of left_pad go?")
    assert not page.find("script") and not page.find("details", open=True)


def test_one_choice_is_open_at_a_time_and_questions_do_not_close_each_other():
    names = [details["name"] for details in parsed(asked()).find_all("details")]
    other = [details["name"] for details in parsed(asked("Another?")).find_all("details")]
    assert len(set(names)) == len(set(other)) == 1 and names[0] != other[0]


def test_a_terminal_shows_the_choices_before_the_answers():
    lines = repr(asked()).splitlines()
    assert lines[0] == "Where do the pads of `left_pad` go?"
    assert sorted(line.split(". ", 1)[1] for line in lines[1:4]) == sorted(
        choice for choice, _ in [RIGHT, *WRONG]
    )
    letter = next(line.strip()[0] for line in lines[1:4] if line.endswith(RIGHT[0]))
    assert [line for line in lines[5:] if "✓" in line] == [f"{letter}: ✓ Right. {RIGHT[1]}"]


def test_the_order_follows_from_the_question_alone_and_no_place_is_preferred():
    places = Counter(asked(f"Question {i}?").right for i in range(300))
    assert sorted(places) == [0, 1, 2] and min(places.values()) > 70
    for i in range(9):
        question = f"Question {i}?"
        other = asked(question, ("Other.", "Words."), [("a", "b"), ("c", "d")])
        assert asked(question).right == other.right
        assert asked(f"  Question\n {i}? ").right == other.right


@pytest.mark.parametrize(
    "change, told",
    [
        ({"question": " "}, "the question must be a text"),
        ({"question": 3}, "the question must be a text"),
        ({"question": "What is `x?"}, "backtick"),
        ({"right": "On the left."}, "the right choice must be a pair"),
        ({"right": [RIGHT, RIGHT]}, "the right choice must be a text"),
        ({"right": ("On the left.", "")}, "the reason of the right choice must be a text"),
        ({"wrong": []}, "1 to 25 wrong choices, got 0"),
        ({"wrong": [(f"{i}", "No.") for i in range(26)]}, "got 26"),
        ({"wrong": WRONG[0]}, "wrong choice 1 must be a pair"),
        ({"wrong": "On the right."}, "wrong must be a list"),
        ({"wrong": [WRONG[0], ("Both.",)]}, "wrong choice 2 must be a pair"),
        ({"wrong": [("", "No.")]}, "wrong choice 1 must be a text"),
        ({"wrong": [WRONG[0], WRONG[0]]}, "'On the right.' is given twice"),
        ({"wrong": [("On  the left.", "No.")]}, "'On the left.' is given twice"),
    ],
)
def test_wrong_input_is_one_clear_line(change, told):
    with pytest.raises(ValueError) as refused:
        asked(**change)
    assert told in str(refused.value) and "\n" not in str(refused.value)


def lesson_with(folder, *sources):
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    path = folder / "03-some-lesson.ipynb"
    path.write_text(json.dumps(nbformat.v4.new_notebook(cells=cells)), encoding="utf-8")
    return path


def test_a_teacher_reads_the_answers_without_running_a_lesson(tmp_path):
    call = f'# @title Question 1\nfrom nowhere import quiz\n\nquiz("One?", right={RIGHT!r}, wrong={WRONG!r})'
    path = lesson_with(tmp_path, "1 / 0", call, call.replace("One?", "Two?"))
    first, second = questions_of(path)
    assert (first.question, second.question) == ("One?", "Two?")
    assert first.choices[first.right] == RIGHT
    shown = answer_table(tmp_path)
    page = BeautifulSoup(shown._repr_html_(), "html.parser").details
    rows = [[cell.text for cell in row.find_all(["th", "td"])] for row in page.tbody.find_all("tr")]
    reason = RIGHT[1].replace("`", "")
    assert rows == [
        ["03.1", "One?", f"{'ABC'[first.right]}. On the left. {reason}"],
        ["03.2", "Two?", f"{'ABC'[second.right]}. On the left. {reason}"],
    ]
    assert repr(shown).splitlines()[0].startswith("03.1  One?  ")


@pytest.mark.parametrize(
    "source",
    [
        'quiz("Two?", right=RIGHT, wrong=[])',
        'quiz("Two?")',
        'quiz("Two?", right=("a", "b"), wrong=[])',
    ],
)
def test_a_question_that_cannot_be_read_is_named(tmp_path, source):
    path = lesson_with(tmp_path, source)
    with pytest.raises(ValueError, match=r"^03-some-lesson.ipynb, cell \w+: "):
        list(questions_of(path))


def test_every_question_of_the_course_can_be_read():
    for path in NOTEBOOKS:
        for question in questions_of(path):
            assert question.question.endswith("?"), path.name


def test_the_style_of_pages_names_no_widget_s_class():
    """What styles the table of answers would stretch the cells of a widget with its class."""
    scripts = "".join(path.read_text(encoding="utf-8") for path in FOLDER.glob("widget_*.js"))
    widgets = set(re.findall(r'stage\.root\.classList\.add\("([\w-]+)"\)', scripts))
    assert widgets and not widgets & set(re.findall(r"\.(qwl-[\w-]+)", STYLE))
