"""teach.check: what it says of stubs, unknown names and odd answers, and that it never raises.

The exercises themselves are tried in tests/lessons/test_exercises.py.
"""

import re

import numpy as np
import pytest
import torch
from helpers import WITHOUT

from qwenlab import combined_mask, exercises, left_pad, position_ids
from qwenlab.teach import check
from qwenlab.teach.comparing import same, show


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
        "Expected 2 values back, input_ids and attention_mask; your function returned 1, a Tensor",
    ),
    (lambda s, p: {"input_ids": s}, "your function returned 1, a dict"),
    (lambda s, p: (*left_pad(s, p), 1), "your function returned 3"),
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


def test_a_kind_of_case_is_not_called_right_and_wrong_at_once():
    seen = []

    def wrong_on_the_third_random_batch(sequences, pad_id):
        seen.append(sequences)
        ids, mask = left_pad(sequences, pad_id)
        return ids, mask if len(seen) < hand_made + 3 else ~mask

    labels = [label for label, _ in exercises.find("left-pad").cases()]
    hand_made = labels.index("random batches")
    answer = repr(check("left-pad", wrong_on_the_third_random_batch))
    assert "wrong on one of the random batches." in answer
    (right,) = [line for line in answer.splitlines() if line.startswith("Right so far")]
    assert "random batches" not in right and labels[0] in right


@pytest.mark.skipif("float64" in WITHOUT, reason="its mode stands between the line and torch")
def test_an_exception_comes_with_the_reader_s_own_line():
    answer = check("left-pad", raises)
    assert re.search(r"In line \d+ of your code: return \{\}\[pad_id\]", repr(answer))

    def deeper(sequences, pad_id):
        return raises(sequences, pad_id)

    assert "your code: return {}[pad_id]" in repr(check("left-pad", deeper))

    def in_a_library(sequences, pad_id):
        return left_pad(sequences, "no id")

    assert "your code: return left_pad(sequences" in repr(check("left-pad", in_a_library))


def test_a_list_given_to_pytorch_is_named():
    answer = check("cut-at-stop", lambda token_ids, stop_ids: torch.isin(token_ids, stop_ids))
    assert "TypeError: isin() can't take these arguments - got (Tensor, list)" in repr(answer)
    assert "Hint: stop_ids is a list; torch.tensor(stop_ids) is a tensor." in repr(answer)
    assert "combination" not in repr(answer)


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
    assert (
        "expected mask[1, 0]" in repr(answer)
        and "your mask[1, 0]" in repr(answer)
        and repr(answer).count("4  1  1  1  1  1") == 1
    )
    assert repr(answer).count("4  0  1  1  1  1") == 1


def test_arguments_are_shown_with_short_floats_and_cut_one_by_one():
    shown = show(
        ["logits", "ids", "config", "n"],
        (
            torch.tensor([0.1234567, 2.0, float("nan")]),
            [7] * 100,
            {"eps": 1e-6, "kinds": ["x"] * 100},
            5,
        ),
    )
    assert shown.startswith("logits = [0.123, 2, nan], ids = [7, 7")
    assert shown.endswith(" ...}, n = 5")
    assert "{'eps': 1e-06, 'kinds': ['x'" in shown and len(shown) < 500


def test_an_argument_of_three_dimensions_is_shown_with_its_shape():
    assert show(["k"], (torch.ones(1, 2, 1),)) == "k (1 x 2 x 1) = [[[1], [1]]]"


@pytest.mark.parametrize("right", [3, 0, 2.5, -1e3, 0.0, float("nan"), True])
def test_a_number_is_compared_by_value(right):
    numbers = [right, np.asarray(right), np.asarray([right])[0], torch.tensor(right)]
    if not isinstance(right, bool):
        numbers += [float(right), np.float32(right), torch.tensor(right, dtype=torch.float64)]
    for theirs in numbers:
        assert same(right, theirs) and same(theirs, right), type(theirs)
    for wrong in (right + 1, str(right), [right], None, torch.tensor([right])):
        assert not same(right, wrong) or (right != right and wrong != wrong)


def test_a_number_that_is_nearly_right_is_right_and_a_count_is_exact():
    assert same(0.0, -3e-17) and same(0.3, 0.1 + 0.2) and same(0.3333333, 1 / 3)
    assert not same(0.3, 0.3001) and not same(1, True)
    assert not same(1_000_000, 1_000_001)
