"""From ragged prompts to one rectangle."""

from collections.abc import Sequence

import torch
from torch import Tensor


def left_pad(sequences: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Prompts as one rectangle whose ragged ends are on the left, so that every row ends at the same column.

    Returns input_ids (B, T) int64 and attention_mask (B, T) bool, True = real. The mask comes from the lengths,
    never from the ids: a prompt may hold `pad_id` as a token of its own. Raises ValueError for no prompt at all and
    for an empty one, by its index.
    """
    if len(sequences) == 0:
        raise ValueError("there is no prompt to pad")
    lengths = [len(sequence) for sequence in sequences]
    if 0 in lengths:
        raise ValueError(f"prompt {lengths.index(0)} is empty, expected at least 1 token")
    width = max(lengths)
    input_ids = torch.tensor([[pad_id] * (width - len(ids)) + list(ids) for ids in sequences], dtype=torch.int64)
    columns = torch.arange(width)
    attention_mask = columns >= width - torch.tensor(lengths)[:, None]  # (B, T)
    return input_ids, attention_mask


def position_ids(attention_mask: Tensor) -> Tensor:
    """Each real token's position in its own row, counted from 0; 0 at pads. (B, T) bool to (B, T) int64."""
    return (attention_mask.long().cumsum(1) - 1).masked_fill(~attention_mask, 0)
