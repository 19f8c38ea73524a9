"""What lesson 02 says must be what happens."""

import re

import pytest
import torch
from lesson_cells import RIGHT, WRONG, Lesson, numbers, signs, verdicts

from qwenlab.teach import check

NAME = "02-left-padding"


@pytest.fixture(scope="module")
def lesson():
    return Lesson(NAME, until="columns")


def test_right_padding_spoils_the_short_row_only(lesson):
    assert verdicts(lesson.shown("right-pad")) == [WRONG, RIGHT]
    assert verdicts(lesson.shown("left-pad")) == [RIGHT] * 2


def test_the_model_answers_rightly_alone(lesson):
    assert re.findall(r"boxed\{(\d+)\}$", lesson.shown("alone"), re.M) == ["4", "38"]


def test_any_number_of_pads_leaves_rounding_only(lesson):
    gaps = numbers(r"differ by ([\d.e+-]+)", lesson.shown("pads"))
    assert len(gaps) == 5 and max(gaps) < 1e-5
    assert numbers(r"differ by ([\d.e+-]+)", lesson.shown("columns"))[0] < 1e-5


def test_column_numbers_count_the_pads(lesson):
    by_row, by_column = numbers(r"at (\d+) by", lesson.shown("columns"))
    assert by_column == by_row + 100  # the last neighbour brings so many


def test_a_mask_from_ids_moves_the_logits_and_the_answer(lesson):
    said = lesson.shown("mask-from-ids")
    real, true = map(int, re.search(r"(\d+) real tokens, (\d+) True", said).groups())
    assert real == true + 1 and numbers(r"differ by ([\d.]+)", said)[0] > 1e-3
    assert verdicts(said) == [WRONG]


def test_the_long_prompt_fills_its_rectangle_with_pads(lesson):
    rectangle, two, one = numbers(r"(\d+)% pads", lesson.shown("long"))
    assert rectangle > 80 and two < 20 and one == 0
    assert lesson.shown("long").count("times as fast") == 2


def test_sorted_prompts_need_fewer_pads(lesson):
    as_they_came, in_order = numbers(r"(\d+)% of the cells", lesson.shown("sorted"))
    assert in_order < as_they_came / 2


RIGHT_PADS = [
    ("[pad_id] * missing + ids", "ids + [pad_id] * missing"),
    ("[False] * missing + [True] * len(ids)", "[True] * len(ids) + [False] * missing"),
]
HIDES = [("attention_mask = attention_mask ", "attention_mask = ~attention_mask ")]
WIDE = [("width = max(", "width = 5 + max(")]
FROM_IDS = [("attention_mask = attention_mask ", "attention_mask = input_ids != pad_id ")]
NOTE = [("batch = [short, long]", "batch = [with_note, long]")]


@pytest.mark.parametrize(
    ("changes", "seen"),
    [
        ([], "=="),
        (RIGHT_PADS, "-="),
        (HIDES, "--"),
        (WIDE, "=="),
        (FROM_IDS, "=="),
        (FROM_IDS + NOTE, "-="),
        (NOTE, "=="),
    ],
)
def test_breaking_shows_what_the_text_says(lesson, capsys, changes, seen):
    assert signs(lesson.say("break-me", capsys, *changes)) == seen


def by_rolling(sequences, pad_id):
    width = max(map(len, sequences))
    pads = [width - len(ids) for ids in sequences]
    rows = [
        torch.tensor(ids + [pad_id] * n).roll(n) for ids, n in zip(sequences, pads, strict=True)
    ]
    return torch.stack(rows), torch.stack([torch.arange(width) >= n for n in pads])


def by_lists(sequences, pad_id):
    width = max(len(ids) for ids in sequences)
    ids = [[pad_id] * (width - len(row)) + row for row in sequences]
    mask = [[False] * (width - len(row)) + [True] * len(row) for row in sequences]
    return [torch.tensor(ids), torch.tensor(mask)]


def counted_one_by_one(attention_mask):
    positions = torch.zeros_like(attention_mask, dtype=torch.int64)
    for row, real in enumerate(attention_mask.tolist()):
        for column, is_real in enumerate(real):
            positions[row, column] = sum(real[:column]) if is_real else 0
    return positions


def clamped_and_hidden(attention_mask):
    return (attention_mask.cumsum(1) - 1).clamp(min=0) * attention_mask


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("left-pad", by_rolling),
        ("left-pad", by_lists),
        ("position-ids", counted_one_by_one),
        ("position-ids", clamped_and_hidden),
    ],
)
def test_other_styles_are_right_too(name, answer):
    assert check(name, answer).ok


def test_the_colleague_s_line_fails_on_pads_that_do_not_stand_in_front():
    answer = check("position-ids", lambda mask: (mask.long().cumsum(dim=1) - 1).clamp(min=0))
    assert "wrong on pads behind" in repr(answer) and "wherever they stand" in repr(answer)


def test_a_dictionary_is_not_two_values():
    def answer(sequences, pad_id):
        return dict(zip(("input_ids", "attention_mask"), by_lists(sequences, pad_id), strict=True))

    assert "Expected 2 values back, input_ids and attention_mask" in repr(check("left-pad", answer))
