"""One call of the model: which tokens are real, where they stand, and who may see whom.

Inside the model padding always trails. A call's rows are closed up to the left at the door (`close_up`), so every
layer deals with lengths only, and the logits go back to where the caller's tokens were. The idea is that of
flash-linear-attention's gated layers: pads are removed once, not masked in every kernel.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from qwenlab.model.config import Config
from qwenlab.model.layers import rotary_table
from qwenlab.model.state import State


@dataclass
class Call:
    """What all layers share during one call. W = width after closing up, K = keys the longest row ends with.

    cos, sin (B or 1, W, 1, D / 2); mask (B, 1, W, K) bool, True = may attend, or None = causal.
    """

    attention: Callable
    cos: Tensor
    sin: Tensor
    mask: Tensor | None
    state: State | None = None
    index: Tensor | None = None  # (B,) the state's rows, on the host
    rows: slice | Tensor | None = None  # the same for reading: a slice where they stand together, so that it's a view
    keys: int = 0  # K
    write: tuple | None = None  # where this call's real tokens go: see `write_plan`

    def remember(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Stores this call's keys and values (B, KVH, W, D) and returns the rows' whole (B, KVH, K, D)."""
        if self.state is None:
            return k, v
        rows, positions, real = self.write
        both = []
        for name, new in (("keys", k), ("values", v)):
            held = self.state.layers[layer][name]
            if real is None:  # every token real, every row at the same length: one block
                held[rows, :, positions] = new
            else:  # N real tokens, each to its own row and position: (N, KVH, D)
                held[rows, :, positions] = new.transpose(1, 2)[real]
            both.append(held[self.rows, :, : self.keys])
        return both[0], both[1]

    def take_back(self) -> None:
        """Empties what `remember` stored: for a call that broke off. What it left there might be NaN."""
        if self.state is not None:
            rows, positions, _ = self.write
            for layer in self.state.layers:
                for held in layer.values():
                    held[rows, :, positions] = 0


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


def plan(
    config: Config,
    attention: Callable,
    dtype: torch.dtype,
    device: torch.device,
    counts: Tensor,
    real: Tensor | None,
    state: State | None,
    rows,
) -> Call:
    """The Call for rows that were closed up, with `counts` (B,) real tokens each."""
    width = int(counts.max()) if real is None else real.shape[1]
    if state is None:
        positions = torch.arange(width, device=device)[None]  # (1, W): every row starts at 0
        cos, sin = rotary_table(positions, config.head_dim, config.rope_theta, dtype)
        return Call(attention, cos, sin, None)
    index = state.row_index(rows)
    if len(index) != len(counts):
        raise ValueError(f"input_ids has {len(counts)} rows, rows names {len(index)} of the state")
    if rows is not None and len(index.unique()) != len(index):
        raise ValueError(f"rows names a row twice: {index.tolist()}")
    starts = state.lengths[index]  # (B,)
    ends = starts + counts
    keys = int(ends.max())
    state.make_room(keys, index[int(ends.argmax())])
    first = int(starts[0])
    level = bool((starts == first).all())
    view = slice(int(index[0]), int(index[0]) + len(index))
    if not torch.equal(index, torch.arange(view.start, view.stop)):
        view = index.to(device)
    host = (starts[:1] if level else starts)[:, None] + torch.arange(width)  # (B or 1, W)
    positions = host.to(device)
    cos, sin = rotary_table(positions, config.head_dim, config.rope_theta, dtype)
    mask = None
    if not (level and (first == 0 or (width == 1 and real is None))):
        # A query at position p sees keys 0..p of its own row: (B or 1, 1, W, K)
        mask = (torch.arange(keys, device=device) <= positions[..., None])[:, None].expand(len(index), -1, -1, -1)
    write = write_plan(index, host, real, level, view, device)
    return Call(attention, cos, sin, mask, state, index, view, keys, write)


def write_plan(index: Tensor, positions: Tensor, real: Tensor | None, level: bool, view, device) -> tuple:
    """(rows, positions, real): what to index the state with, and which new tokens go there (None = the whole block)."""
    width = positions.shape[1]
    if level and real is None and isinstance(view, slice):
        return view, slice(int(positions[0, 0]), int(positions[0, 0]) + width), None
    chosen = torch.ones(len(index), width, dtype=torch.bool) if real is None else real.cpu()
    each_row = index[:, None].expand(-1, width)[chosen].to(device)  # (N,)
    each_position = positions.expand(len(index), -1)[chosen].to(device)  # (N,)
    return each_row, each_position, chosen.to(device)
