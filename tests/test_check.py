"""teach.check: each solution passes, each stored wrong answer fails with its own hint, and check never raises."""

import re
from importlib import import_module
from pathlib import Path

import pytest
import torch

from qwenlab import combined_mask, left_pad, position_ids
from qwenlab.teach import check
from qwenlab.teach.checking import EXERCISES, _show

# Wrong answers as readers write them, each with a word of the hint it must get: {exercise: {answer: word}}.
WRONG = {}
for path in sorted(Path(__file__).parent.glob("wrong_*.py")):
    WRONG |= import_module(path.stem).WRONG
check("left-pad", None)  # fills EXERCISES
CASES = [(name, wrong, words) for name, table in WRONG.items() for wrong, words in table.items()]


def test_every_exercise_has_wrong_answers_here():
    assert set(EXERCISES) == set(WRONG)
    for table in WRONG.values():
        assert len(set(table.values())) >= 3


@pytest.mark.parametrize("name", WRONG)
def test_the_solution_passes(name):
    answer = check(name, EXERCISES[name].solution)
    assert answer.ok and "right on all" in repr(answer) and "✓" in answer._repr_html_()


@pytest.mark.parametrize(("name", "wrong", "words"), CASES, ids=lambda x: getattr(x, "__name__", None))
def test_a_wrong_answer_fails_with_the_hint_that_fits(name, wrong, words):
    answer = check(name, wrong)
    hints = [line for line in repr(answer).splitlines() if line.startswith("Hint:")]
    assert not answer.ok and len(hints) == 1 and words in hints[0]
    others = [w for w in WRONG[name].values() if w != words]
    assert not any(other in hints[0] for other in others)
    side_by_side = "expected .*your |should be .* yours is"  # in pictures, or in words where it is one number
    assert re.search(side_by_side, answer._repr_html_(), re.DOTALL)


def test_every_known_mistake_is_one_and_gets_its_own_hint():
    for name, exercise in EXERCISES.items():
        for wrong, hint in exercise.mistakes:
            answer = check(name, wrong)
            assert not answer.ok and f"Hint: {hint}" in repr(answer), (name, wrong.__name__)


def test_a_stub_is_not_yet():
    for name, stub in [("left-pad", lambda s, p: None), ("position-ids", lambda mask: None), ("left-pad", None)]:
        answer = check(name, stub)
        assert not answer.ok and "not yet" in repr(answer)


def test_an_unknown_name_lists_the_known_ones():
    answer = check("left-padd", left_pad)
    assert not answer.ok and re.search(r"no exercise 'left-padd'. Known: .*left-pad, .*position-ids", repr(answer))


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
    (lambda s, p: (torch.zeros(0), torch.zeros(2, 2, 2)), "input_ids should be int64 2 x 4, yours is float32 0"),
    (lambda s, p: (left_pad(s, p)[0].to("meta"), left_pad(s, p)[1].to("meta")), "could not be compared"),
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
    """Row 0 of the batch has pads and is right in this answer; row 1 is wrong and shown, its wrong cell outlined."""

    def wrong(mask, queries):
        answer = combined_mask(mask, queries)
        answer[-1, 0, -1, 0] ^= True
        return answer

    answer = check("combined-mask", wrong)
    assert answer._repr_html_().count("<table") == 2 and answer._repr_html_().count(' x"') == 1
    assert "expected mask" in repr(answer) and repr(answer).count("4  1  1  1  1  1") == 1
    assert repr(answer).count("4  0  1  1  1  1") == 1


def test_arguments_are_shown_with_short_floats_and_cut_one_by_one():
    shown = _show((torch.tensor([0.1234567, 2.0, float("nan")]), [7] * 100, {"eps": 1e-6, "kinds": ["x"] * 100}, 5))
    assert shown.startswith("([0.123, 2, nan], [7, 7") and shown.endswith(" ...}, 5)")
    assert "{'eps': 1e-06, 'kinds': ['x'" in shown and len(shown) < 500
