"""From ragged prompts to a rectangle: padded on the left for callers, on the right in the model."""

from collections.abc import Sequence

import torch
from torch import Tensor


def left_pad(sequences: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Pads prompts on the left, so that every row ends at the same column.

    Returns input_ids (B, T) int64 and attention_mask (B, T) bool, True = real. The mask comes from
    the lengths, never from the ids: a prompt may legitimately contain `pad_id`. Raises ValueError
    for an empty batch, and for an empty prompt by its index.
    """
    if len(sequences) == 0:
        raise ValueError("there is no prompt to pad")
    lengths = [len(sequence) for sequence in sequences]
    if 0 in lengths:
        raise ValueError(f"prompt {lengths.index(0)} is empty, expected at least 1 token")
    width = max(lengths)
    rows = [[pad_id] * (width - len(ids)) + list(ids) for ids in sequences]
    input_ids = torch.tensor(rows, dtype=torch.int64)
    first = width - torch.tensor(lengths)  # (B,) column of each row's first real token
    attention_mask = torch.arange(width) >= first[:, None]  # (B, T)
    return input_ids, attention_mask


def right_pad(sequences: Sequence[Sequence[int]], pad_id: int = 0) -> Tensor:
    """Pads prompts on the right, where the model keeps its pads. Returns input_ids (B, T) int64."""
    width = max(map(len, sequences))
    rows = [list(ids) + [pad_id] * (width - len(ids)) for ids in sequences]
    return torch.tensor(rows, dtype=torch.int64)


def position_ids(attention_mask: Tensor) -> Tensor:
    """Each real token's position in its own row, from 0; 0 at pads. (B, T) bool to (B, T) int64."""
    return (attention_mask.long().cumsum(1) - 1).masked_fill(~attention_mask, 0)
