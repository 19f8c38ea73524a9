"""A stand-in for the model's own ForwardBatch."""

from dataclasses import dataclass

import torch
from torch import Tensor

from qwenlab.model.state import State


@dataclass
class ForwardBatch:
    input_ids: Tensor
    num_tokens: list[int]
    state: State | None = None
    rows: range | list[int] | None = None

    @classmethod
    def from_lengths(cls, input_ids, num_tokens, state=None, rows=None) -> "ForwardBatch":
        return cls(input_ids, num_tokens, state, rows)

    @property
    def attention_mask(self) -> Tensor | None:
        width = self.input_ids.shape[1]
        if min(self.num_tokens) == width:
            return None
        return torch.arange(width) < torch.tensor(self.num_tokens)[:, None]
