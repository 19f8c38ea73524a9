"""The exercises of lesson 02: left-pad and position-ids."""

import random

import torch

from qwenlab.batching.padding import left_pad, position_ids
from qwenlab.teach.checking import exercise

# --- left-pad: (sequences, pad_id) -> input_ids (B, T) int64, attention_mask (B, T) bool ---


def _batches():
    yield "two prompts of different length", ([[5, 6], [7, 8, 9, 4]], 0)
    yield "a prompt that holds the pad id", ([[5, 0, 7], [1, 2, 3, 4, 5, 6]], 0)
    yield "a prompt that starts with the pad id", ([[9, 5], [8, 3, 4, 6]], 9)
    yield "one prompt", ([[3, 1, 2]], 0)
    yield "equal lengths", ([[1, 2], [3, 4]], 0)
    draw = random.Random(2)
    for _ in range(20):
        lengths = [draw.randint(1, 9) for _ in range(draw.randint(1, 6))]
        yield "random batches", ([[draw.randint(0, 12) for _ in range(n)] for n in lengths], draw.randint(0, 12))


def _rectangle(sequences, pad_id, width, left=True):
    """Pads on one side; the mask from the lengths. Rows longer than `width` lose their start."""
    rows, mask = [], []
    for row in sequences:
        row = row[max(0, len(row) - width) :]
        pads, real = [pad_id] * (width - len(row)), [True] * len(row)
        rows.append(pads + row if left else row + pads)
        mask.append([False] * len(pads) + real if left else real + [False] * len(pads))
    return torch.tensor(rows), torch.tensor(mask)


def _pads_right(sequences, pad_id):
    return _rectangle(sequences, pad_id, max(map(len, sequences)), left=False)


def _mask_from_ids(sequences, pad_id):
    ids, _ = left_pad(sequences, pad_id)
    return ids, ids != pad_id


def _inverted(sequences, pad_id):
    ids, mask = left_pad(sequences, pad_id)
    return ids, ~mask


def _truncated(sequences, pad_id):
    return _rectangle(sequences, pad_id, min(map(len, sequences)))


def _cut_end(sequences, pad_id):
    width = min(map(len, sequences))
    return _rectangle([row[:width] for row in sequences], pad_id, width)


def _too_wide(sequences, pad_id):
    return _rectangle(sequences, pad_id, max(map(len, sequences)) + 1)


def _total_width(sequences, pad_id):
    return _rectangle(sequences, pad_id, sum(map(len, sequences)))


def _mask_right(sequences, pad_id):
    return left_pad(sequences, pad_id)[0], _pads_right(sequences, pad_id)[1]


def _all_real(sequences, pad_id):
    ids, mask = left_pad(sequences, pad_id)
    return ids, torch.ones_like(mask)


def _zero_pads(sequences, pad_id):
    return left_pad(sequences, 0)


def _reversed(sequences, pad_id):
    return left_pad([row[::-1] for row in sequences], pad_id)


def _swapped(sequences, pad_id):
    return left_pad(sequences, pad_id)[::-1]


_IDS_HINT = (
    "a mask made from ids loses real tokens: the pad id may also stand in a prompt. Only the lengths know which cells "
    "are pads."
)
_WIDE_HINT = "the rectangle is as wide as the longest prompt, no wider: every extra column is paid for by every row."


def _bool_mask(mask):
    if mask.dtype != torch.bool:
        return "the mask is bool: True = real, False = pad. With numbers 0 and 1, ~mask would not swap them."


def _long_ids(ids):
    if ids.dtype != torch.int64:
        return "ids are int64, the type that an embedding looks up."


exercise(
    "left-pad",
    left_pad,
    results=("input_ids", "attention_mask"),
    cases=_batches,
    mistakes=(
        (_swapped, "the two values are swapped: input_ids come first, then attention_mask."),
        (_pads_right, "your pads are on the right, so the last column of a short row is a pad. Put them in front."),
        (_inverted, "your mask is inverted: here True marks a real token and False a pad."),
        (_mask_from_ids, _IDS_HINT),
        (_mask_right, "the ids are right, but the mask has its pads on the right. Both move to the left together."),
        (_all_real, "the ids are right, but the mask calls pads real. They must be False."),
        (_truncated, "you cut to the shortest prompt. Pad to the longest: no token may be lost."),
        (_cut_end, "you cut to the shortest prompt. Pad to the longest: no token may be lost."),
        (_too_wide, _WIDE_HINT),
        (_total_width, _WIDE_HINT),
        (_zero_pads, "your pads are always 0. Fill with pad_id."),
        (_reversed, "the tokens of each prompt stand in reverse. Only the pads go in front."),
    ),
    rules=(("attention_mask", _bool_mask), ("input_ids", _long_ids)),
)

# --- position-ids: attention_mask (B, T) bool -> (B, T) int64 ---


def _masks():
    yield "three pads in front", (torch.tensor([[False, False, False, True, True, True], [True] * 6]),)
    yield "no pads", (torch.ones(2, 4, dtype=torch.bool),)
    yield "one real token", (torch.tensor([[False, False, True]]),)
    draw = random.Random(3)
    for _ in range(20):
        lengths = [draw.randint(1, 9) for _ in range(draw.randint(1, 6))]
        yield "random batches", (left_pad([[1] * n for n in lengths], 0)[1],)


def _plain_arange(mask):
    return torch.arange(mask.shape[1]).expand(mask.shape).contiguous()


def _pads_minus_one(mask):
    return mask.cumsum(1) - 1


def _pads_one(mask):
    return (mask.cumsum(1) - 1).masked_fill(~mask, 1)


def _from_one(mask):
    return mask.cumsum(1)


def _from_one_everywhere(mask):
    return _from_one(mask).clamp(min=1)


def _columns_at_real(mask):
    return _plain_arange(mask) * mask


def _counts_pads(mask):
    return (~mask).cumsum(1)


def _from_the_end(mask):
    return (mask.flip(1).cumsum(1).flip(1) - 1) * mask


exercise(
    "position-ids",
    position_ids,
    results=("position_ids",),
    cases=_masks,
    mistakes=(
        (_plain_arange, "these are column numbers, pads counted too. The first real token of every row is at 0."),
        (_columns_at_real, "real tokens still carry their column number. Count only the real ones before each."),
        (_pads_minus_one, "pads got -1, which is no position: some code looks it up from the end. Give pads 0."),
        (_pads_one, "real tokens are right, but pads got 1. Give pads 0."),
        (_from_one, "off by one: the first real token is at 0, not 1."),
        (_from_one_everywhere, "off by one: the first real token is at 0, not 1. Pads are 0 as well."),
        (_counts_pads, "you counted the pads. Count the real tokens: cumsum of the mask, not of its inverse."),
        (_from_the_end, "you counted from the right. Positions grow from left to right."),
    ),
    rules=(("position_ids", _long_ids),),
)
