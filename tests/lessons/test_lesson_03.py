"""What lesson 03 says must be what happens, and its widget shows the right numbers."""

import re

import pytest
from lesson_cells import RIGHT, WRONG, Lesson, verdicts
from widget_numbers import every_state_is_right


@pytest.fixture(scope="module")
def lesson():
    return Lesson("03-combined-mask", until="library")


def test_top_left_is_right_for_one_token_only(lesson, capsys):
    said = lesson.say("top-left", capsys)
    assert verdicts(said) == [WRONG, WRONG]
    names = lesson.names
    for prompt, lone in zip(names["prompts"], names["alone"], strict=True):
        answer = names["continue_cached"](prompt, names["top_left_mask"])
        assert answer[0] == lone[0] and answer[1] != lone[1]
    assert re.findall("True|False", lesson.say("flag", capsys)) == ["True", "False"]


def test_order_alone_spoils_the_padded_row_and_the_cure_mends_all(lesson, capsys):
    assert verdicts(lesson.say("order-only", capsys)) == [WRONG, RIGHT]
    assert verdicts(lesson.say("plain", capsys)) == [RIGHT] * 4


def test_a_cached_step_is_the_bottom_of_the_square(lesson, capsys):
    said = lesson.say("cached-step", capsys)
    right, wrong = re.findall(r"(?:difference|row 1) (\S+)", said)
    assert float(right) < 1e-5 < 0.1 < float(wrong) and "row 0 has NaN: True" in said


def test_a_rule_of_the_readers_own_takes_part_at_once(lesson, capsys):
    assert WRONG in verdicts(lesson.say("window", capsys))
    assert float(re.search(r"difference (\S+)", lesson.say("heads", capsys))[1]) > 0.1


@pytest.mark.parametrize(
    ("change", "words", "fits"),
    [
        ((), [RIGHT, RIGHT], "True"),
        ((("cached = keys - queries  # 1", "cached = 0"),), [RIGHT, RIGHT], "False"),
        ((("key <= place  # 2", "key < place"),), [WRONG, WRONG], "True"),
        ((("real[key]  # 3", "real[place]"),), [WRONG, RIGHT], "True"),
    ],
)
def test_breaking_shows_what_the_text_says(lesson, capsys, change, words, fits):
    said = lesson.say("break-me", capsys, *change)
    assert verdicts(said) == words and f"bottom of the square: {fits}" in said


def test_every_state_of_the_widget_shows_the_right_numbers_and_no_two_are_alike():
    every_state_is_right("03-combined-mask", until="explore-masks", fewest=16)
