"""The exercises of lesson 02: left-pad and position-ids."""

import random
from collections.abc import Callable

import torch
from torch import Tensor

from qwenlab.engine.padding import left_pad, position_ids
from qwenlab.exercises import Cases, Exercise, random_numbers

EXERCISES: dict[str, Exercise] = {}

# --- left-pad: (sequences, pad_id) -> input_ids (B, T) int64, attention_mask (B, T) bool ---


def _batches() -> Cases:
    yield "two prompts of different length", ([[5, 6], [7, 8, 9, 4]], 0)
    yield "a prompt that holds the pad id", ([[5, 0, 7], [1, 2, 3, 4, 5, 6]], 0)
    yield "a prompt that starts with the pad id", ([[9, 5], [8, 3, 4, 6]], 9)
    yield "one prompt", ([[3, 1, 2]], 0)
    yield "equal lengths", ([[1, 2], [3, 4]], 0)
    yield "prompts that are not sorted", ([[2, 4, 6], [3], [1, 5, 7, 9], [8, 8]], 0)
    draw = random.Random(2)
    for _ in range(20):
        lengths = random_numbers(draw, 6, 9)
        sequences = []
        for length in lengths:
            sequences.append([draw.randint(0, 12) for _ in range(length)])
        yield "random batches", (sequences, draw.randint(0, 12))


def _rectangle(
    sequences: list[list[int]], pad_id: int, width: int, left: bool = True
) -> tuple[Tensor, Tensor]:
    """Pads on one side; the mask from the lengths. Rows longer than `width` lose their start."""
    rows = []
    mask = []
    for row in sequences:
        row = row[max(0, len(row) - width) :]
        pads = width - len(row)
        if left:
            rows.append([pad_id] * pads + row)
            mask.append([False] * pads + [True] * len(row))
        else:
            rows.append(row + [pad_id] * pads)
            mask.append([True] * len(row) + [False] * pads)
    return torch.tensor(rows), torch.tensor(mask)


def _pads_right(sequences: list[list[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    return _rectangle(sequences, pad_id, max(map(len, sequences)), left=False)


def _masked(change: Callable) -> Callable:
    """The right ids with a mistaken mask, change(ids, mask, pad_id)."""

    def wrong(sequences: list[list[int]], pad_id: int) -> tuple[Tensor, Tensor]:
        ids, mask = left_pad(sequences, pad_id)
        return ids, change(ids, mask, pad_id)

    return wrong


def _mask_right(sequences: list[list[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    return left_pad(sequences, pad_id)[0], _pads_right(sequences, pad_id)[1]


_IDS_HINT = (
    "a mask made from ids loses real tokens, because a prompt may contain the pad id. Only the "
    "lengths tell you which tokens are pads."
)
_CUT_HINT = "you cut to the shortest prompt. Pad to the longest: no token may be lost."
_WIDE_HINT = (
    "the rectangle is as wide as the longest prompt and no wider: every row pays for every extra "
    "column."
)
_ORDER_HINT = (
    "your rows come in another order than the prompts. Row i belongs to prompt i, or answers go to "
    "the wrong people."
)


def _bool_mask(mask: Tensor) -> str | None:
    if mask.dtype != torch.bool:
        return (
            "the mask is bool: True = real, False = pad. With numbers 0 and 1, ~mask would not "
            "swap them."
        )


def _long_ids(ids: Tensor) -> str | None:
    if ids.dtype != torch.int64:
        return "ids and positions are int64."


EXERCISES["left-pad"] = Exercise(
    left_pad,
    results=("input_ids", "attention_mask"),
    cases=_batches,
    mistakes=(
        (
            lambda s, p: left_pad(s, p)[::-1],
            "the two values are swapped: input_ids come first, then attention_mask.",
        ),
        (
            _pads_right,
            "your pads are on the right, so the last column of a short row is a pad. Put them "
            "in front.",
        ),
        (
            _masked(lambda ids, mask, _: ~mask),
            "your mask is inverted: here True marks a real token and False a pad.",
        ),
        (_masked(lambda ids, mask, pad_id: ids != pad_id), _IDS_HINT),
        (
            _mask_right,
            "the ids are right, but the mask has its pads on the right. They belong on the left "
            "in both.",
        ),
        (
            lambda s, p: (_pads_right(s, p)[0], left_pad(s, p)[1]),
            "the mask is right, but the ids have their pads on the right. They belong on the left "
            "in both.",
        ),
        (
            _masked(lambda ids, mask, _: mask.cumsum(1) > 1),
            "off by one: the mask hides each row's first real token.",
        ),
        (
            _masked(lambda ids, mask, _: mask | True),
            "the ids are right, but the mask marks pads as real. They must be False.",
        ),
        (lambda s, p: _rectangle(s, p, min(map(len, s))), _CUT_HINT),
        (lambda s, p: left_pad([row[: min(map(len, s))] for row in s], p), _CUT_HINT),
        (lambda s, p: _rectangle(s, p, max(map(len, s)) + 1), _WIDE_HINT),
        (lambda s, p: _rectangle(s, p, sum(map(len, s))), _WIDE_HINT),
        (lambda s, p: left_pad(s, 0), "your pads are always 0. Fill with pad_id."),
        (
            lambda s, p: left_pad([row[::-1] for row in s], p),
            "the tokens of each prompt are in reverse order. Only the pads go in front.",
        ),
        (lambda s, p: left_pad(sorted(s, key=len), p), _ORDER_HINT),
        (lambda s, p: left_pad(sorted(s, key=len, reverse=True), p), _ORDER_HINT),
        (lambda s, p: left_pad(sorted(s), p), _ORDER_HINT),
    ),
    rules=(("attention_mask", _bool_mask), ("input_ids", _long_ids)),
)

# --- position-ids: attention_mask (B, T) bool -> (B, T) int64 ---


def _masks() -> Cases:
    yield (
        "three pads in front",
        (torch.tensor([[False, False, False, True, True, True], [True] * 6]),),
    )
    yield "no pads", (torch.ones(2, 4, dtype=torch.bool),)
    yield "one real token", (torch.tensor([[False, False, True]]),)
    behind = torch.tensor([[True, True, False, False], [True] * 4])
    yield "pads behind", (behind,)
    inside = torch.tensor([[True, False, False, True, True], [False, True, True, False, True]])
    yield "pads inside", (inside,)
    draw = random.Random(3)
    for _ in range(20):
        lengths = random_numbers(draw, 6, 9)
        yield "random batches", (left_pad([[1] * n for n in lengths], 0)[1],)
    for _ in range(20):
        rows = draw.randint(1, 4)
        width = draw.randint(1, 8)
        real = [[draw.random() < 0.6 for _ in range(width)] for _ in range(rows)]
        yield "pads anywhere", (torch.tensor(real),)


def _plain_arange(mask: Tensor) -> Tensor:
    return torch.arange(mask.shape[1]).expand(mask.shape).contiguous()


def _from_the_end(mask: Tensor) -> Tensor:
    return (mask.flip(1).cumsum(1).flip(1) - 1) * mask


def _less_pads(mask: Tensor) -> Tensor:
    return _plain_arange(mask) - (~mask).sum(1, keepdim=True)


def _since_the_first(mask: Tensor) -> Tensor:
    return _plain_arange(mask) - mask.int().argmax(1, keepdim=True)


_BEHIND_HINT = (
    "right for pads in front. But behind the first real token your count never goes back to 0, so "
    "later pads get a position too. Give pads 0 wherever they stand."
)
_PADS_HINT = (
    "you take all of a row's pads off the column number, also those that stand behind a token. "
    "Count the real tokens before it."
)
_FIRST_HINT = (
    "you count columns from the first real token, so pads behind it count too. Count real tokens."
)


EXERCISES["position-ids"] = Exercise(
    position_ids,
    results=("position_ids",),
    cases=_masks,
    mistakes=(
        # These are right where all pads are in front.
        (lambda m: (m.cumsum(1) - 1).clamp(min=0), _BEHIND_HINT),
        (lambda m: _less_pads(m).clamp(min=0), _PADS_HINT),
        (lambda m: _less_pads(m) * m, _PADS_HINT),
        (lambda m: _since_the_first(m).clamp(min=0), _FIRST_HINT),
        (lambda m: _since_the_first(m) * m, _FIRST_HINT),
        (
            _plain_arange,
            "these are column numbers, which count pads too. The first real token of every row "
            "is at 0.",
        ),
        (
            lambda m: _plain_arange(m) * m,
            "real tokens still carry their column number. Count only the real ones before each.",
        ),
        (
            lambda m: m.cumsum(1) - 1,
            "pads got -1, which is not a position: as an index it means the last one. Give pads 0.",
        ),
        (
            lambda m: (m.cumsum(1) - 1).masked_fill(~m, 1),
            "real tokens are right, but pads got 1. Give pads 0.",
        ),
        (lambda m: m.cumsum(1), "off by one: the first real token is at 0, not 1."),
        (
            lambda m: m.cumsum(1).clamp(min=1),
            "off by one: the first real token is at 0, not 1. Pads are 0 as well.",
        ),
        (
            lambda m: (~m).cumsum(1),
            "you counted the pads. Count the real tokens: cumsum of the mask, not of its inverse.",
        ),
        (_from_the_end, "you counted from the right. Positions grow from left to right."),
        (
            lambda m: _less_pads(m),
            "pads in front got negative positions, and pads behind a token are taken off too. "
            "Count the real tokens before each.",
        ),
    ),
    rules=(("position_ids", _long_ids),),
)
