"""One call of the model: which tokens are real, where they stand, and who may see whom.

Inside the model padding always trails. A call's rows are closed up to the left at the door (`close_up`), so every
layer deals with lengths only, and the logits go back to where the caller's tokens were. The idea is that of
flash-linear-attention's gated layers: pads are removed once, not masked in every kernel.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from qwenlab.model.kernels import sdpa
from qwenlab.model.state import GROWING, State


@dataclass
class Call:
    """What all layers share during one call. W = width after closing up, K = keys the longest row ends with.

    cos, sin (B or 1, W, 1, D); mask (B, 1, W, K) bool, True = may attend (for `sdpa` numbers to add), None = causal.
    """

    attention: Callable
    batch: int  # B
    cos: Tensor
    sin: Tensor
    mask: Tensor | None
    state: State | None = None
    rows: slice | Tensor | None = None  # which of the state's, on the host
    keys: int = 0  # K
    places: Tensor | None = None  # (N * KVH,) which line of the state's tensors each real token's heads become
    real: Tensor | None = None  # (B, W) bool, None where every token is real
    chunk: int = 64  # tokens that DeltaNet takes at a time
    spoils: bool = False  # whether something that can't be had back was overwritten

    def remember(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Stores this call's keys and values (B, W, KVH, D) and returns the rows' whole (B, KVH, K, D)."""
        if self.state is None:
            return k.transpose(1, 2), v.transpose(1, 2)
        both = []
        for name, new in (("keys", k), ("values", v)):
            held = self.state.layers[layer][name]  # (B', KVH, C, D), B' = all rows of the state
            if self.real is not None:
                new = new[self.real]  # (N, KVH, D)
            lines = held.view(-1, held.shape[3])  # one head of one token a line
            lines.index_copy_(0, self.places, new.reshape(-1, held.shape[3]))
            both.append(held[self.rows].narrow(2, 0, self.keys))
        return both[0], both[1]

    def recall(self, layer: int) -> tuple[Tensor, Tensor]:
        """The rows' window and memory; where the rows stand together views, through which they are changed."""
        held = self.state.layers[layer]
        return held["window"][self.rows], held["memory"][self.rows]

    def replace(self, layer: int, **new: Tensor) -> None:
        """Writes the rows' new window or memory."""
        for name, tensor in new.items():
            self.state.layers[layer][name][self.rows] = tensor

    def take_back(self) -> None:
        """For a call that broke off: empties what `remember` stored, which might be NaN, and owns up to the rest."""
        if self.state is None:
            return
        if self.spoils:
            self.state.spoiled |= set(torch.arange(self.state.batch_size)[self.rows].tolist())
        for layer in self.state.layers:
            for name in layer.keys() & GROWING:
                layer[name].view(-1, layer[name].shape[3]).index_fill_(0, self.places, 0)


def close_up(input_ids: Tensor, attention_mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Moves each row's real tokens to its left end, in order.

    input_ids (B, T), attention_mask (B, T) bool or None = all real. Returns ids (B, W) with 0 at the trailing
    pads, counts (B,) int64 on the host, and which of the (B, W) are real, or None where all are.
    """
    batch, width = input_ids.shape
    if attention_mask is None:
        return input_ids, torch.full((batch,), width), None
    counts = attention_mask.sum(1).cpu()
    if bool((counts == width).all()):
        return input_ids, counts, None
    width = max(int(counts.max()), 1)
    order = (~attention_mask).to(torch.uint8).argsort(dim=1, stable=True)[:, :width]  # (B, W): real columns first
    real = torch.arange(width, device=input_ids.device) < counts.to(input_ids.device)[:, None]  # (B, W)
    return input_ids.gather(1, order).masked_fill(~real, 0), counts, real


def plan(model, width: int, counts: Tensor, real: Tensor | None, state: State | None, rows) -> Call:
    """The Call for rows that were closed up, with `counts` (B,) real tokens each. Raises ValueError for odd rows."""
    device, attention, batch = model.device, model.attention_function, len(counts)
    if state is None:
        positions = torch.arange(width, device=device)[None]  # (1, W): every row starts at 0
        return Call(attention, batch, *model.rotary.at(positions, width, model.dtype), None, chunk=model.chunk)
    rows = find_rows(state, rows, batch)
    starts = state.lengths[rows]  # (B,)
    first, last = (int(edge) for edge in torch.aminmax(starts))
    level = first == last
    keys = last + width if real is None else int((starts + counts).max())
    if keys > state.capacity:
        longest = (starts + counts).argmax()
        state.make_room(keys, int(torch.arange(state.batch_size)[rows][longest]))
    if level:
        positions = torch.arange(first, first + width, device=device)[None]  # (1, W)
    else:
        positions = (starts[:, None] + torch.arange(width)).to(device)  # (B, W)
    mask = None
    if not (level and (first == 0 or (width == 1 and real is None))):
        # A query at position p sees keys 0..p of its own row: (B or 1, 1, W, K)
        mask = (torch.arange(keys, device=device) <= positions[..., None])[:, None].expand(batch, -1, -1, -1)
        if attention is sdpa:  # it adds its mask: turned into numbers once a call, not once a layer
            mask = torch.where(mask, 0.0, float("-inf")).to(model.dtype)
    places = state.lines[rows] + positions[..., None]  # (B, W, KVH)
    places = (places if real is None else places[real]).flatten()
    cos, sin = model.rotary.at(positions, last + width, model.dtype)
    return Call(attention, batch, cos, sin, mask, state, rows, keys, places, real, model.chunk)


def find_rows(state: State, rows, batch: int) -> slice | Tensor:
    """The state's rows for a call of `batch` rows: a slice where they stand together, so that reading is a view."""
    if rows is None:
        rows = range(state.batch_size)
    if isinstance(rows, range) and rows.step == 1 and 0 <= rows.start <= rows.stop <= state.batch_size:
        named, index = len(rows), slice(rows.start, rows.stop)
    else:
        index = state.row_index(rows)
        named = len(index)
        if len(index.unique()) != named:
            raise ValueError(f"rows names a row twice: {index.tolist()}")
    if state.spoiled and (lost := state.spoiled.intersection(torch.arange(state.batch_size)[index].tolist())):
        raise ValueError(
            f"row {min(lost)} is spoiled: a call broke off while it changed the row's memory; reset the row, or put a "
            "snapshot back"
        )
    if named != batch:
        raise ValueError(f"input_ids has {batch} rows, rows names {named} of the state")
    return index
