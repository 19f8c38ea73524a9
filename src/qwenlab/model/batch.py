"""One forward pass over rows of unequal length: which tokens are real, where they stand, what
they may attend to.

Inside the model padding always trails. A caller's pads are removed once, at the door (`from_mask`),
so every layer deals with lengths only, and results go back to where the caller's tokens stood
(`to_caller`). flash-linear-attention's gated layers do the same. The one exception is a rectangle
with a custom mask, which is computed as given (`from_rectangle`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from qwenlab.model.state import Slots, State


class lazy:
    """An attribute computed when it is first read: `functools.cached_property` as of Python 3.12,
    without the lock that makes the threads of all batches wait for each other."""

    def __init__(self, compute: Callable):
        self.compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, batch: Any, owner: type | None = None) -> Any:
        if batch is None:
            return self
        value = self.compute(batch)
        batch.__dict__[self.name] = value
        return value


@dataclass
class ForwardBatch:
    """The rows of one forward pass, as the host knows them. B rows, W = tokens of the widest row.

    input_ids (B, W) int64 with 0 at the trailing pads; `num_new_tokens`, real tokens of each row in
    this pass; `num_computed_tokens`, those its slot of the state held before. `slots` names each
    row's slot (empty without a state). Whatever else a layer needs (positions, masks, indices) is
    derived from these when it is first needed, and then kept.
    """

    input_ids: Tensor
    num_new_tokens: Sequence[int]
    num_computed_tokens: Sequence[int]
    state: State | None = None
    slots: Sequence[int] = ()
    custom_mask: bool = False  # whether `attention_mask` was given by the caller
    source_mask: Tensor | None = None  # (B, T) where the caller's tokens stood; None: not moved
    attention: Callable | None = None  # this pass's attention function; None: the model's own
    scratch: dict = field(default_factory=dict, repr=False)  # what fast/ works out once per pass

    @classmethod
    def from_lengths(
        cls,
        input_ids: Tensor,
        num_new_tokens: Sequence[int],
        state: State | None = None,
        slots: Slots | None = None,
    ) -> "ForwardBatch":
        """Rows whose padding trails already: row b of input_ids (B, W) has `num_new_tokens[b]`.

        `slots` gives for each row its slot of the state (None = all slots, in order). The device
        isn't waited for. Raises ValueError for slots that don't exist, are named twice or are
        invalid.
        """
        if state is None:
            return cls(input_ids, num_new_tokens, [0] * len(num_new_tokens))
        slots = state.slots_of(slots, len(num_new_tokens))
        return cls(input_ids, num_new_tokens, state.lengths_of(slots), state, slots)

    @classmethod
    def from_mask(
        cls,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        state: State | None = None,
        slots: Slots | None = None,
    ) -> "ForwardBatch":
        """Rows with pads anywhere: attention_mask (B, T) bool, True = real, None = all real.

        Moves each row's real tokens to its front, in order, so that padding trails: the only place
        that moves padding. What trails is kept from each layer's state by `update_cache`,
        `last_inputs` and DeltaNet's own masking of decay and beta.
        """
        batch, width = input_ids.shape
        if attention_mask is None:
            return cls.from_lengths(input_ids, [width] * batch, state, slots)
        num_new_tokens = attention_mask.sum(1).tolist()
        if min(num_new_tokens) == width:
            return cls.from_lengths(input_ids, num_new_tokens, state, slots)
        longest = max(max(num_new_tokens), 1)
        real_first = (~attention_mask).long().argsort(dim=1, stable=True)  # (B, T): columns
        real_first = real_first[:, :longest]  # (B, W)
        is_real = attention_mask.gather(1, real_first)
        front = input_ids.gather(1, real_first).masked_fill(~is_real, 0)
        moved = cls.from_lengths(front, num_new_tokens, state, slots)
        moved.source_mask = attention_mask
        return moved

    @classmethod
    def from_rectangle(
        cls, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor
    ) -> "ForwardBatch":
        """A rectangle (B, T) computed as given, pads included, under the caller's custom mask.

        attention_mask (B, 1, T, T) bool, True = may attend; position_ids (B or 1, T) int64.
        """
        batch, width = input_ids.shape
        given = cls(input_ids, [width] * batch, [0] * batch, custom_mask=True)
        given.attention_mask = attention_mask
        given.position_ids = position_ids
        return given

    @property
    def width(self) -> int:
        """W, the tokens of the widest row in this pass."""
        return self.input_ids.shape[1]

    @lazy
    def num_keys(self) -> int:
        """K, the tokens that the longest row holds after this pass."""
        if self.state is None:
            return self.width
        return max(map(sum, zip(self.num_computed_tokens, self.num_new_tokens, strict=True)))

    @lazy
    def aligned(self) -> bool:
        """Whether all rows start this pass at the same position."""
        return min(self.num_computed_tokens) == max(self.num_computed_tokens)

    @lazy
    def position_ids(self) -> Tensor:
        """(B, W) int64: each token's place in its own row, earlier passes counted."""
        starts = torch.tensor(self.num_computed_tokens, device=self.input_ids.device)
        return starts[:, None] + torch.arange(self.width, device=self.input_ids.device)

    @lazy
    def valid_mask(self) -> Tensor | None:
        """(B, W) bool, True = real; None where every token is."""
        if min(self.num_new_tokens) == self.width:
            return None
        counts = torch.tensor(self.num_new_tokens, device=self.input_ids.device)
        return torch.arange(self.width, device=self.input_ids.device) < counts[:, None]

    @lazy
    def attention_mask(self) -> Tensor:
        """(B, 1, W, K) bool, True = may attend: a query at position p sees keys 0..p of its row."""
        keys = torch.arange(self.num_keys, device=self.input_ids.device)
        return (keys <= self.position_ids[..., None])[:, None]

    @lazy
    def all_slots(self) -> bool:
        """Whether the rows are all slots of the state, in order."""
        return self.slots == range(self.state.batch_size)

    @lazy
    def slot_index(self) -> slice | Tensor:
        """The slots as an index: a slice where they stand together, so that reading is a view."""
        together = range(self.slots[0], self.slots[-1] + 1)
        if self.slots == together or list(self.slots) == list(together):
            return slice(together.start, together.stop)
        return torch.tensor(self.slots, device=self.input_ids.device)

    @lazy
    def cache_index(self) -> tuple[Tensor, Tensor]:
        """Slot (N,) and position (N,) of each real token: where its key and value are stored."""
        slots = torch.tensor(self.slots, device=self.input_ids.device)[:, None]
        return self.real(slots.expand(-1, self.width)), self.real(self.position_ids)

    def make_room(self) -> None:
        """Grows the state if a row would not fit. Raises ValueError if it is fixed."""
        capacity = self.state.capacity
        if capacity is not None and self.num_keys > capacity:
            held = map(sum, zip(self.num_computed_tokens, self.num_new_tokens, strict=True))
            longest = list(held).index(self.num_keys)
            self.state.make_room(self.num_keys, self.slots[longest])

    def real(self, x: Tensor) -> Tensor:
        """The real tokens' entries of x (B, W, ...), row by row: (N, ...)."""
        return x.flatten(0, 1) if self.valid_mask is None else x[self.valid_mask]

    def update_cache(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Stores this pass's keys and values (B, W, KVH, D) in the rows' slots.

        Returns all that each row holds now, (B, KVH, K, D). Only real tokens are stored, so no
        query of a later pass can see a pad. (A model that `load` made fast for a CPU stores them by
        `qwenlab.fast.attention.update_cache`, held equal by a test.)
        """
        if self.state is None:
            return keys.transpose(1, 2), values.transpose(1, 2)
        cache = self.state.layers[layer]
        slots, positions = self.cache_index
        cache["keys"][slots, :, positions] = self.real(keys)  # (N, KVH, D)
        cache["values"][slots, :, positions] = self.real(values)
        keys = cache["keys"][:, :, : self.num_keys]  # (slots, KVH, K, D)
        values = cache["values"][:, :, : self.num_keys]
        return keys[self.slot_index], values[self.slot_index]

    def last_inputs(self, inputs: Tensor) -> Tensor:
        """Each row's last P real inputs, (B, P, C).

        inputs (B, P + W, C): P older ones, then this pass's. A row without a real token in this
        pass keeps its P older inputs.
        """
        older = inputs.shape[1] - self.width
        if self.valid_mask is None:
            return inputs[:, self.width :]
        counts = torch.tensor(self.num_new_tokens, device=inputs.device)
        columns = counts[:, None] + torch.arange(older, device=inputs.device)  # (B, P)
        rows = torch.arange(len(inputs), device=inputs.device)[:, None]
        return inputs[rows, columns]

    def last_token(self, x: Tensor) -> Tensor:
        """x (B, W, F) at each row's last real token: (B, F). A row without one gets its first
        position."""
        if self.width == 1:
            return x[:, 0]
        last = torch.tensor(self.num_new_tokens, device=x.device).clamp(min=1) - 1
        return x[torch.arange(len(x), device=x.device), last]

    def hide_empty_rows(self, x: Tensor) -> Tensor:
        """x (B, F) with zeros in each row that has no real token in this pass."""
        if min(self.num_new_tokens) > 0:
            return x
        empty = torch.tensor(self.num_new_tokens, device=x.device) == 0
        return x.masked_fill(empty[:, None], 0)

    def to_caller(self, x: Tensor) -> Tensor:
        """x (B, W, F) to where the caller's tokens stood: (B, T, F), zeros at pads."""
        if self.source_mask is None:
            return x
        out = x.new_zeros(*self.source_mask.shape, x.shape[-1])
        out[self.source_mask] = self.real(x)  # both list the real tokens row by row, in order
        return out
