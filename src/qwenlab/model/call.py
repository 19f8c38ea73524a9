"""One call of the model: which tokens are real, where they stand, and who may see whom.

Inside the model padding always trails. A call's rows are closed up to the left at the door (`close_up`), so every
layer deals with lengths only, and the logits go back to where the caller's tokens were. The idea is that of
flash-linear-attention's gated layers: pads are removed once, not masked in every kernel.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from qwenlab.model.config import Config
from qwenlab.model.kernels import sdpa
from qwenlab.model.state import State

WORTH_A_PART = 2**18  # bytes of keys and values that a CPU reads in the time that another call of the kernel takes


@dataclass
class Call:
    """What all layers share during one call. W = width after closing up, K = keys the longest row ends with.

    cos, sin (B, W, 1, D) or (W, 1, D); mask (B, 1, W, K) bool, True = may attend (for `sdpa` numbers to add),
    None = causal.
    """

    attention: Callable
    batch: int  # B
    cos: Tensor
    sin: Tensor
    mask: Tensor | None
    state: State | None = None
    rows: slice | Tensor | None = None  # which of the state's, on the host; None = all
    keys: int = 0  # K
    places: Tensor | None = None  # (N * KVH,) which line of the state's tensors each real token's heads become
    real: Tensor | None = None  # (B, W) bool, None where every token is real
    chunk: int = 64  # tokens that DeltaNet takes at a time
    parts: list[tuple[slice, int]] | None = None  # rows that attend by themselves, and the keys of their longest

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Attention of q (B, H, W, D) to k and v (B, KVH, K, D), in parts if some rows are much longer than others."""
        if self.parts is None:
            return self.attention(q, k, v, self.mask, scale)
        out = []
        for rows, keys in self.parts:
            mask = self.mask[rows, ..., :keys]
            out.append(self.attention(q[rows], k[rows, :, :keys], v[rows, :, :keys], mask, scale))
        return torch.cat(out)

    def remember(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Stores this call's keys and values (B, W, KVH, D) and returns the rows' whole (B, KVH, K, D)."""
        if self.state is None:
            return k.transpose(1, 2), v.transpose(1, 2)
        held = self.state.layers[layer]
        return self.store(held["keys"], k), self.store(held["values"], v)

    def store(self, held: Tensor, new: Tensor) -> Tensor:
        """Writes new (B, W, KVH, D) into held (B', KVH, C, D), B' = all rows of the state. Returns (B, KVH, K, D)."""
        size = held.shape[3]
        if self.real is not None:
            new = new[self.real]  # (N, KVH, D)
        held.view(-1, size).index_copy_(0, self.places, new.reshape(-1, size))  # one head of one token a line
        held = held.narrow(2, 0, self.keys)  # before rows are picked: an index copies what it picks
        return held if self.rows is None else held[self.rows]

    def recall(self, layer: int) -> tuple[Tensor, Tensor]:
        """The rows' window and memory; where the rows stand together views, through which they are changed."""
        window, memory = (self.state.layers[layer][name] for name in ("window", "memory"))
        return (window, memory) if self.rows is None else (window[self.rows], memory[self.rows])

    def replace(self, layer: int, **new: Tensor) -> None:
        """Writes the rows' new window or memory."""
        for name, tensor in new.items():
            self.state.layers[layer][name][... if self.rows is None else self.rows] = tensor


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
    embedding, attention, batch = model.embedding, model.attention_function, len(counts)
    device, dtype = embedding.device, embedding.dtype
    if state is None:  # every row starts at 0
        return Call(attention, batch, *model.rotary.at(slice(width), width, dtype, device), None, chunk=model.chunk)
    if state.made_for != (model.config, dtype, device):
        raise ValueError(
            f"the state is for {described(*state.made_for)}, the model is {described(model.config, dtype, device)}: "
            "make a new state with model.new_state"
        )
    rows = find_rows(state, rows, batch)
    starts = state.lengths if rows is None else state.lengths[rows]  # (B,)
    first, last = min_max(starts)
    keys = last + width if real is None else int((starts + counts).max())
    if keys > state.capacity:
        longest = int((starts + counts).argmax())
        state.make_room(keys, state.row_numbers(rows)[longest])
    lines = state.lines if rows is None else state.lines[rows]  # (B, 1, KVH)
    level = first == last
    if level and width == 1 and real is None:  # the usual decode step: every row sees all that it holds, no mask
        cos, sin = model.rotary.at(slice(first, keys), keys, dtype, device)
        return Call(attention, batch, cos, sin, None, state, rows, keys, (lines + first).flatten(), None, model.chunk)
    if level:
        span = slice(first, first + width)
        positions = torch.arange(span.start, span.stop, device=device)[None]  # (1, W)
    else:
        span = positions = (starts[:, None] + torch.arange(width)).to(device)  # (B, W)
    cos, sin = model.rotary.at(span, last + width, dtype, device)
    mask = None
    if not level or first > 0:
        # A query at position p sees keys 0..p of its own row: (B or 1, 1, W, K)
        mask = (torch.arange(keys, device=device) <= positions[..., None])[:, None].expand(batch, -1, -1, -1)
        if attention is sdpa:  # it adds its mask: turned into numbers once a call, not once a layer
            mask = torch.where(mask, 0.0, float("-inf")).to(dtype)
    places = lines + positions[..., None]  # (B, W, KVH)
    places = (places if real is None else places[real]).flatten()
    call = Call(attention, batch, cos, sin, mask, state, rows, keys, places, real, model.chunk)
    if width == 1 and real is None and attention is sdpa and device.type == "cpu":
        heads = model.config.num_key_value_heads * model.config.head_dim
        call.parts = parts((starts + 1).tolist(), WORTH_A_PART // (2 * heads * dtype.itemsize))
    return call


def described(config: Config, dtype: torch.dtype, device: torch.device) -> str:
    """A model, as far as a state depends on it, in words."""
    dtype = str(dtype).removeprefix("torch.")
    return f"{config.model_type} with {config.num_hidden_layers} layers of {config.hidden_size} in {dtype} on {device}"


def parts(keys: list[int], worth: int, first: int = 0) -> list[tuple[slice, int]]:
    """Cuts rows of so many keys where that spares `worth` keys or more: a row is computed as long as its part's
    longest. Each part's rows and its longest's keys; a batch of like rows is one part."""
    rows, longest = len(keys), max(keys)
    if rows * longest - sum(keys) > worth:
        before, behind = list(accumulate(keys, max)), list(accumulate(reversed(keys), max))
        cost, cut = min((i * before[i - 1] + (rows - i) * behind[rows - i - 1], i) for i in range(1, rows))
        if rows * longest - cost > worth:
            return parts(keys[:cut], worth, first) + parts(keys[cut:], worth, first + cut)
    return [(slice(first, first + rows), longest)]


def min_max(numbers: Tensor) -> tuple[int, int]:
    """The least and the largest of a few numbers that are on the host."""
    numbers = numbers.tolist()
    return min(numbers), max(numbers)


def find_rows(state: State, rows, batch: int) -> slice | Tensor | None:
    """The state's rows for a call of `batch` rows: None = all, in order; a slice where they stand together, so that
    reading is a view; else an index."""
    if rows is None:
        rows = range(state.batch_size)
    if isinstance(rows, range) and rows.step == 1 and 0 <= rows.start <= rows.stop <= state.batch_size:
        named, index = len(rows), slice(rows.start, rows.stop)
        if named == state.batch_size:
            index = None
    else:
        index = state.row_index(rows)
        named = len(index)
        if len(index.unique()) != named:
            raise ValueError(f"rows names a row twice: {index.tolist()}")
    if state.invalid and (lost := state.invalid.intersection(state.row_numbers(index))):
        raise ValueError(
            f"row {min(lost)} is invalid: a call broke off while it changed the row; reset the row and read its tokens "
            "again, or put a snapshot back"
        )
    if named != batch:
        raise ValueError(f"input_ids has {batch} rows, rows names {named} of the state")
    return index
