"""teach.check: each solution passes, each stored wrong answer fails with its own hint, and check never raises."""

import re

import pytest
import torch

from qwenlab import left_pad, position_ids
from qwenlab.teach import check
from qwenlab.teach.checking import EXERCISES

# --- wrong answers as readers write them, each with a word of the hint it must get ---


def pads_right(sequences, pad_id):
    width = max(len(s) for s in sequences)
    ids = torch.full((len(sequences), width), pad_id)
    mask = torch.zeros(len(sequences), width, dtype=torch.bool)
    for i, s in enumerate(sequences):
        ids[i, : len(s)] = torch.tensor(s)
        mask[i, : len(s)] = True
    return ids, mask


def from_ids(sequences, pad_id):
    width = max(len(s) for s in sequences)
    ids = torch.tensor([[pad_id] * (width - len(s)) + s for s in sequences])
    return ids, ids.ne(pad_id)


def true_is_pad(sequences, pad_id):
    width = max(len(s) for s in sequences)
    ids = torch.tensor([[pad_id] * (width - len(s)) + s for s in sequences])
    return ids, torch.tensor([[True] * (width - len(s)) + [False] * len(s) for s in sequences])


def int_mask(sequences, pad_id):
    ids, mask = left_pad(sequences, pad_id)
    return ids, mask.long()


def zipped(sequences, pad_id):
    columns = list(zip(*sequences, strict=False))  # zip stops at the shortest
    ids = torch.tensor(columns).T
    return ids, torch.ones(ids.shape, dtype=torch.bool)


def fixed_width(sequences, pad_id):
    width = max(len(s) for s in sequences) + 1
    return left_pad([[pad_id] * (width - len(s)) + s for s in sequences], pad_id)[0], torch.tensor(
        [[False] * (width - len(s)) + [True] * len(s) for s in sequences]
    )


def pads_are_zero(sequences, pad_id):
    width = max(len(s) for s in sequences)
    ids = torch.zeros(len(sequences), width, dtype=torch.long)
    for i, s in enumerate(sequences):
        ids[i, width - len(s) :] = torch.tensor(s)
    return ids, left_pad(sequences, pad_id)[1]


def mask_first(sequences, pad_id):
    ids, mask = left_pad(sequences, pad_id)
    return mask, ids


def column_numbers(mask):
    return torch.stack([torch.arange(mask.shape[1])] * len(mask))


def minus_one(mask):
    return mask.int().cumsum(dim=1) - 1


def one_based(mask):
    return mask.cumsum(1) * mask


def not_shifted(mask):
    return torch.arange(mask.shape[1]).expand_as(mask) * mask


def counts_pads(mask):
    return torch.cumsum(~mask, 1)


def as_floats(mask):
    return (mask.float().cumsum(1) - 1).clamp(min=0)


WRONG = {
    "left-pad": {
        pads_right: "pads are on the right",
        from_ids: "made from ids",
        true_is_pad: "inverted",
        mask_first: "swapped",
        int_mask: "the mask is bool",
        zipped: "no token may be lost",
        fixed_width: "as wide as the longest",
        pads_are_zero: "Fill with pad_id",
    },
    "position-ids": {
        column_numbers: "column numbers",
        minus_one: "pads got -1",
        one_based: "off by one",
        not_shifted: "Count only the real ones",
        counts_pads: "counted the pads",
        as_floats: "int64",
    },
}
CASES = [(name, wrong, words) for name, table in WRONG.items() for wrong, words in table.items()]


def test_every_exercise_has_wrong_answers_here():
    check("left-pad", left_pad)  # fills the table
    assert set(EXERCISES) == set(WRONG)
    for table in WRONG.values():
        assert len(table) >= 3 and len(set(table.values())) == len(table)


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
    assert "expected" in answer._repr_html_() and "your" in answer._repr_html_()  # side by side


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
    assert not answer.ok and "no exercise 'left-padd'. Known: left-pad, position-ids" in repr(answer)


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
        "Expected 2 value.s. back, input_ids and attention_mask; your function returned 1",
    ),
    (lambda s, p: ([[1]], [[True]]), "input_ids should be a Tensor; yours is a list"),
    (lambda s: None, "raised TypeError"),
    (lambda s, p: left_pad(s, p) if len(s) > 1 else None, "Your function returned None"),
    (lambda s, p: (torch.zeros(0), torch.zeros(2, 2, 2)), "input_ids should be int64 2 x 4, yours is float32 0"),
    (lambda s, p: (left_pad(s, p)[0].to("meta"), left_pad(s, p)[1].to("meta")), "could not be compared"),
    (lambda s, p: exit(), "raised SystemExit"),
]


@pytest.mark.parametrize(("odd", "words"), ODD)
def test_check_never_raises(odd, words):
    answer = check("left-pad", odd)
    assert not answer.ok and re.search(words, repr(answer)) and answer._repr_html_()


def test_position_ids_of_the_hand_worked_case():
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]).bool()
    assert position_ids(mask).tolist() == [[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]]
