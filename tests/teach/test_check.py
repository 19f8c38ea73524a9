"""teach.check: what it says of stubs, unknown names and odd answers, and that it never raises.

The exercises themselves are tried in tests/lessons/test_exercises.py.
"""

import re

import pytest
import torch

from qwenlab import combined_mask, left_pad, position_ids
from qwenlab.teach import check
from qwenlab.teach.checking import _show


def test_a_stub_is_not_yet():
    for name, stub in [
        ("left-pad", lambda s, p: None),
        ("position-ids", lambda mask: None),
        ("left-pad", None),
    ]:
        answer = check(name, stub)
        assert not answer.ok and "not yet" in repr(answer)


def test_an_unknown_name_lists_the_known_ones():
    answer = check("left-padd", left_pad)
    known = r"no exercise 'left-padd'. Known: .*left-pad, .*position-ids"
    assert not answer.ok and re.search(known, repr(answer))


def raises(sequences, pad_id):
    return {}[pad_id]


def changes_its_input(sequences, pad_id):
    width = max(map(len, sequences))
    answer = left_pad(sequences, pad_id)
    for s in sequences:
        s[:0] = [pad_id] * (width - len(s))
    return answer


ODD = [
    (raises, r"your function raised KeyError: 0"),
    (changes_its_input, "changed its own input"),
    (
        lambda s, p: left_pad(s, p)[0],
        "Expected 2 values back, input_ids and attention_mask; your function returned 1",
    ),
    (lambda s, p: ([[1]], [[True]]), "input_ids should be of type Tensor, yours is list"),
    (lambda s: None, "raised TypeError"),
    (lambda s, p: left_pad(s, p) if len(s) > 1 else None, "Your function returned None"),
    (
        lambda s, p: (torch.zeros(0), torch.zeros(2, 2, 2)),
        "input_ids should be int64 2 x 4, yours is float32 0",
    ),
    (
        lambda s, p: (left_pad(s, p)[0].to("meta"), left_pad(s, p)[1].to("meta")),
        "could not be compared",
    ),
    (lambda s, p: exit(), "raised SystemExit"),
]


def test_a_list_where_one_tensor_is_due_is_named_as_one():
    answer = check("position-ids", lambda mask: position_ids(mask).tolist())
    assert not answer.ok and "position_ids should be of type Tensor, yours is list" in repr(answer)


@pytest.mark.parametrize(("odd", "words"), ODD)
def test_check_never_raises(odd, words):
    answer = check("left-pad", odd)
    assert not answer.ok and re.search(words, repr(answer)) and answer._repr_html_()


def test_position_ids_of_the_hand_worked_case():
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]).bool()
    assert position_ids(mask).tolist() == [[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]]


def test_of_a_mask_with_heads_the_first_matrix_that_differs_is_drawn():
    """Row 0 of the batch has pads and is right in this answer; row 1 is not.

    Row 1 is shown, its wrong cell outlined.
    """

    def wrong(mask, queries):
        answer = combined_mask(mask, queries)
        answer[-1, 0, -1, 0] ^= True
        return answer

    answer = check("combined-mask", wrong)
    assert answer._repr_html_().count("<table") == 2 and answer._repr_html_().count(' x"') == 1
    assert "expected mask" in repr(answer) and repr(answer).count("4  1  1  1  1  1") == 1
    assert repr(answer).count("4  0  1  1  1  1") == 1


def test_arguments_are_shown_with_short_floats_and_cut_one_by_one():
    shown = _show(
        (
            torch.tensor([0.1234567, 2.0, float("nan")]),
            [7] * 100,
            {"eps": 1e-6, "kinds": ["x"] * 100},
            5,
        )
    )
    assert shown.startswith("([0.123, 2, nan], [7, 7") and shown.endswith(" ...}, 5)")
    assert "{'eps': 1e-06, 'kinds': ['x'" in shown and len(shown) < 500
