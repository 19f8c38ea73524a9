"""Attention with one product for q, k and v, one norm for the heads of q and k, and masks only
where needed.

Submodules are read from `self._modules`, for speed: see `qwenlab.fast.fused`.
"""

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qwenlab.fast.fused import FusedOwner, apply_linear, is_plain, runs_plain
from qwenlab.fast.layers import in_dtype, scaled_to_unit, signed
from qwenlab.fast.linear import product
from qwenlab.model.attention import Attention, grouped_sdpa, repeat_heads, sdpa
from qwenlab.model.batch import ForwardBatch
from qwenlab.model.layers import RMSNorm, at_least_float32

BYTES_PER_CALL = 2**18  # of keys and values, that a CPU reads in the time of one more kernel call
GROUP_ABOVE = 2**15  # elements of k


class FastAttention(FusedOwner, Attention):
    """q_proj, k_proj and v_proj as one product. Replaced or hooked parts run plain, and so does an
    attention function other than sdpa, which thus always gets a real mask."""

    NAMES = ("q_proj", "k_proj", "v_proj")

    def forward(self, x: Tensor, batch: ForwardBatch, cos: Tensor, sin: Tensor) -> Tensor:
        runs_fast = not runs_plain(x, Attention) and self.function is sdpa
        weight = self.fused_weight() if runs_fast and self.norms_are_plain() else None
        if weight is None:
            return super().forward(x, batch, cos, sin)
        rows, width, _ = x.shape
        q_heads = 2 * self.heads if self.gated else self.heads  # query, gate, query, gate, ...
        projected = product(x, weight).view(rows, width, -1, self.head_dim)
        qk, v = projected.split_with_sizes([q_heads + self.kv_heads, self.kv_heads], dim=2)
        if self.gated:
            gate = qk[:, :, 1:q_heads:2]  # (B, W, H, D)
            qk = torch.cat((qk[:, :, :q_heads:2], qk[:, :, q_heads:]), dim=2)
        qk = self.normed(qk)  # (B, W, H + KVH, D)
        apply_rotary_(qk, cos, once_per_pass(batch, "signed_sin", lambda: signed(sin)))
        q, k = qk.split_with_sizes([self.heads, self.kv_heads], dim=2)
        k, v = update_cache(batch, self.layer, k, v)  # (B, KVH, K, D)
        out = self.attend(q.transpose(1, 2), k, v, batch).transpose(1, 2)  # (B, W, H, D)
        if self.gated:
            out = out * gate.sigmoid()
        return apply_linear(self._modules["o_proj"], out.reshape(rows, width, -1))

    def norms_are_plain(self) -> bool:
        q_norm = self._modules["q_norm"]
        k_norm = self._modules["k_norm"]
        both_plain = is_plain(q_norm, RMSNorm) and is_plain(k_norm, RMSNorm)
        return both_plain and q_norm.eps == k_norm.eps

    def normed(self, heads: Tensor) -> Tensor:
        """Query and key heads (B, W, H + KVH, D), scaled in one go, each by its own weight."""
        q_norm = self._modules["q_norm"]
        k_norm = self._modules["k_norm"]
        normed = scaled_to_unit(heads, q_norm.eps)  # float32 at least
        if not q_norm.zero_centred:
            normed = in_dtype(normed, heads.dtype)
        parts = normed.split_with_sizes([self.heads, self.kv_heads], dim=2)
        for part, norm in zip(parts, (q_norm, k_norm), strict=True):
            weight = norm._parameters["weight"]
            part.mul_(1 + at_least_float32(weight) if norm.zero_centred else weight)
        return in_dtype(normed, heads.dtype)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor:
        """q (B, H, W, D); k, v (B, KVH, K, D) to (B, H, W, D)."""
        if batch.attention is not None:
            return batch.attention(q, k, v, batch.attention_mask, self.scale)
        mask = once_per_pass(batch, "mask", lambda: kernel_mask(batch, q.dtype))
        if batch.width > 1:
            group_size = self.heads // self.kv_heads
            k = repeat_heads(k, group_size)
            v = repeat_heads(v, group_size)
            causal = mask is None  # of more than one query: see kernel_mask
            return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=self.scale)
        min_saving = BYTES_PER_CALL // (2 * self.kv_heads * self.head_dim * k.element_size())
        parts = once_per_pass(batch, "parts", lambda: split_by_length(batch, min_saving))
        if len(parts) == 1:
            return one_query(q, k, v, mask, self.scale)
        outputs = []
        for part, keys in parts:
            part_mask = mask[part, ..., :keys]
            part_k = k[part, :, :keys]
            part_v = v[part, :, :keys]
            outputs.append(one_query(q[part], part_k, part_v, part_mask, self.scale))
        return torch.cat(outputs)


def once_per_pass(batch: ForwardBatch, name: str, make: Callable[[], Any]) -> Any:
    """make(), called by the first layer that asks for `name`; the other layers get its result."""
    if name not in batch.scratch:
        batch.scratch[name] = make()
    return batch.scratch[name]


def kernel_mask(batch: ForwardBatch, dtype: torch.dtype) -> Tensor | None:
    """The mask as sdpa wants it: numbers to add, because it would convert a bool mask in every
    layer; or None. With one query per row, None means that it sees all keys; with more, that
    `is_causal` hides the right ones, because every row starts at position 0."""
    if not batch.custom_mask:
        from_the_start = batch.num_computed_tokens[0] == 0
        is_decode_step = batch.width == 1 and batch.valid_mask is None
        if batch.aligned and (from_the_start or is_decode_step):
            return None
    return torch.where(batch.attention_mask, 0.0, float("-inf")).to(dtype)


def one_query(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """sdpa for one query per row, without repeating a key: q (B, H, 1, D), k, v (B, KVH, K, D)."""
    # Grouped queries take the kernel for matrices, whose wide instructions lower the clock of some
    # CPUs for all that follows. For a few small keys that doesn't pay.
    if k.numel() <= GROUP_ABOVE:
        return F.scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=True)
    return grouped_sdpa(q, k, v, mask, scale)


def split_by_length(batch: ForwardBatch, min_saving: int) -> list[tuple[slice, int]]:
    """Splits the batch by length if that saves at least `min_saving` padded keys.

    Returns each part's rows and the number of keys of its longest row, which all its rows read.
    """
    keys = [length + 1 for length in batch.num_computed_tokens]
    if len(keys) * max(keys) - sum(keys) <= min_saving:
        return [(slice(0, len(keys)), max(keys))]
    return split_rows(keys, min_saving, 0)


def split_rows(keys: list[int], min_saving: int, first: int) -> list[tuple[slice, int]]:
    """The same for the rows from `first` on, given their numbers of keys: splits them in two where
    that saves most, and then each part again."""
    rows = len(keys)
    longest = max(keys)
    if rows > 1:
        longest_before = list(accumulate(keys, max))
        longest_after = list(accumulate(reversed(keys), max))
        costs = []
        for cut in range(1, rows):
            before = cut * longest_before[cut - 1]
            after = (rows - cut) * longest_after[rows - cut - 1]
            costs.append((before + after, cut))
        cost, cut = min(costs)
        if rows * longest - cost > min_saving:
            shorter = split_rows(keys[:cut], min_saving, first)
            return shorter + split_rows(keys[cut:], min_saving, first + cut)
    return [(slice(first, first + rows), longest)]


def apply_rotary_(x: Tensor, cos: Tensor, signed_sin: Tensor) -> None:
    """`qwenlab.model.layers.apply_rotary`, but changes x (B, W, heads, D) in place."""
    rotary_dim = cos.shape[-1]
    rotated = x if rotary_dim == x.shape[-1] else x[..., :rotary_dim]
    partner = rotated.roll(rotary_dim // 2, -1)
    rotated.mul_(cos).addcmul_(partner, signed_sin)


def update_cache(
    batch: ForwardBatch, layer: int, keys: Tensor, values: Tensor
) -> tuple[Tensor, Tensor]:
    """`ForwardBatch.update_cache`, with the cache seen as lines of one head of one token, because
    index_copy_ is faster than an index over two dimensions."""
    if batch.state is None:
        return keys.transpose(1, 2), values.transpose(1, 2)
    cache = batch.state.layers[layer]
    lines = once_per_pass(batch, "lines", lambda: cache_lines(batch, cache["keys"]))
    cached = []
    for name, new in (("keys", keys), ("values", values)):
        kept = cache[name]
        size = kept.shape[3]
        if batch.valid_mask is not None:
            new = new[batch.valid_mask]  # (N, KVH, D)
        kept.view(-1, size).index_copy_(0, lines, new.reshape(-1, size))
        kept = kept.narrow(2, 0, batch.num_keys)
        cached.append(kept if batch.all_slots else kept[batch.slot_index])
    return cached[0], cached[1]


def cache_lines(batch: ForwardBatch, kept: Tensor) -> Tensor:
    """(N * KVH,): the line of each head of each real token in the cache seen as lines of D."""
    _, kv_heads, capacity, _ = kept.shape
    one_each = batch.width == 1 and batch.valid_mask is None
    if batch.aligned and one_each and isinstance(batch.slots, range):
        first = batch.slots.start * kv_heads * capacity
        end = batch.slots.stop * kv_heads * capacity
        position = batch.num_computed_tokens[0]
        return torch.arange(first + position, end + position, capacity)
    slots, positions = batch.cache_index  # (N,)
    heads = slots[:, None] * kv_heads + torch.arange(kv_heads, device=kept.device)  # (N, KVH)
    return (heads * capacity + positions[:, None]).flatten()
