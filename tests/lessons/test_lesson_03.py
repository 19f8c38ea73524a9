"""What lesson 03 says must be what happens, and its pictures show the right numbers."""

import re

import pytest
import torch
from lesson_cells import Lesson, numbers, signs
from widget_numbers import every_state_is_right

from qwenlab import combined_mask

NAME = "03-combined-mask"


@pytest.fixture(scope="module")
def lesson():
    return Lesson(NAME, until="flag")


def test_the_shapes_are_those_of_the_text(lesson):
    shapes = dict(re.findall(r"(\w+) +\((.+)\)", lesson.shown("square")))
    rows, width = lesson.names["real"].shape
    assert shapes == {
        "rectangle": f"{rows}, {width}",
        "later": f"{width}, {width}",
        "pad": f"{rows}, 1, 1, {width}",
        "hidden": f"{rows}, 1, {width}, {width}",
        "may_attend": f"{rows}, 1, {width}, {width}",
    }
    assert torch.equal(lesson.names["may_attend"], combined_mask(lesson.names["real"]))


def test_every_dark_cell_says_why(lesson):
    """Later, pad or both, and a light cell says nothing."""
    names = lesson.names
    real = names["real"][0].tolist()
    words = names["reasons"](names["later"], names["pad"][0, 0].expand(names["L"], names["L"]))
    for query, line in enumerate(words):
        for key, word in enumerate(line):
            why = {(True, True): "both", (True, False): "later", (False, True): "pad"}
            assert word.strip() == why.get((key > query, not real[key]), "")
    shown = lesson.shown("square-picture").split("4. later OR pad")[1]
    assert re.findall("later|pad|both", shown) == [
        word.strip() for line in words for word in line if word.strip()
    ]


def test_each_half_is_right_for_some_rows_and_only_both_for_all(lesson):
    both_halves = lesson.shown("halves").split("\n\n")
    assert list(map(signs, both_halves[:3])) == ["--=", "==-", "==="]
    assert "50 random masks agree" in lesson.shown("library")


def test_without_the_dimension_for_heads_pytorch_is_wrong_in_silence(lesson):
    said = lesson.shown("heads")
    assert numbers(r"difference (\S+)", said)[0] > 0.1 and "qwenlab: attention_mask is" in said


def test_is_causal_is_right_for_the_first_token_only(lesson):
    assert signs(lesson.shown("flag")) == "---"
    for answer, lone in zip(lesson.names["answers"], lesson.names["alone"], strict=True):
        assert answer[0] == lone[0] and answer[1] != lone[1]


def test_one_query_sees_the_real_keys(lesson):
    lines = lesson.shown("one-query-code").splitlines()[2:]
    shown = [re.findall("[01]", line.split("=")[1]) for line in lines]
    assert shown == [[str(int(x)) for x in row] for row in lesson.names["real"].tolist()]


def test_a_window_takes_part_at_once_and_a_wide_one_changes_nothing(lesson, capsys):
    assert signs(lesson.shown("window")) == "---"
    assert signs(lesson.say("window", capsys, ("size=8", "size=20"))) == "==="


@pytest.mark.parametrize(
    ("old", "new", "rows"),
    [
        ("later | pad", "later | pad", "==="),
        ("triu(1)", "triu(0)", "---"),
        ("real[:, None, None, :]", "real[:, None, :, None]", "--="),
        ("later | pad", "later & pad", "---"),
        ("later | pad", "later ^ pad", "==="),
    ],
)
def test_breaking_shows_what_the_text_says(lesson, capsys, old, new, rows):
    said = lesson.say("break-me", capsys, (old, new))
    assert signs(said) == rows


def test_the_colleague_s_mask_is_right_without_pads_and_wrong_with_them(lesson):
    exec(lesson.sources["stub-combined-mask"], lesson.names)
    theirs = lesson.names["colleague_mask"]
    whole = torch.ones(2, 5, dtype=torch.bool)
    padded = lesson.names["real"]
    for queries in (1, 3, 5):
        assert torch.equal(theirs(whole, queries), combined_mask(whole, queries))
        wrong = theirs(padded, queries) != combined_mask(padded, queries)
        assert wrong[0].any() and not wrong[2].any()


def test_every_state_of_the_picture_is_right_and_no_two_are_alike():
    every_state_is_right(NAME, until="explore-step", fewest=16)
