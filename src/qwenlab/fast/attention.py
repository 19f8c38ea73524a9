"""Attention with one product for q, k and v, one norm for their heads, and masks only
where needed."""

from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

from qwenlab.fast.fused import FusedOwner, is_plain, project, runs_plain
from qwenlab.fast.layers import scaled_to_unit
from qwenlab.fast.linear import product
from qwenlab.model.attention import Attention, repeat_heads, sdpa
from qwenlab.model.batch import ForwardBatch
from qwenlab.model.layers import RMSNorm

WORTH_A_PART = 2**18  # bytes of keys and values a CPU reads in the time of one more kernel call
FEW = 2**15  # numbers in the keys of all rows


class FastAttention(FusedOwner, Attention):
    """q_proj, k_proj and v_proj as one product; replaced or hooked parts run plain."""

    NAMES = ("q_proj", "k_proj", "v_proj")

    def forward(self, x: Tensor, batch: ForwardBatch, cos: Tensor, sin: Tensor) -> Tensor:
        if runs_plain(x) or not self.fused.usable(self) or not self.norms_are_plain():
            return super().forward(x, batch, cos, sin)
        rows, width, _ = x.shape
        asking = 2 * self.heads if self.gated else self.heads
        projected = product(x, self.fused.block).view(rows, width, -1, self.head_dim)
        qk = projected.narrow(2, 0, asking + self.kv_heads)
        v = projected.narrow(2, asking + self.kv_heads, self.kv_heads)
        if self.gated:  # query, gate, query, gate, ... and then the keys
            gate = qk[:, :, 1:asking:2]
            qk = torch.cat((qk[:, :, :asking:2], qk[:, :, asking:]), dim=2)
        qk = self.normed(qk)  # (B, W, H + KVH, D)
        apply_rotary_(qk, cos, once(batch, "signed_sin", lambda: signed(sin)))
        q = qk.narrow(2, 0, self.heads).transpose(1, 2)  # (B, H, W, D)
        k = qk.narrow(2, self.heads, self.kv_heads)
        k, v = update_cache(batch, self.layer, k, v)  # (B, KVH, K, D)
        out = self.attend(q, k, v, batch).transpose(1, 2)  # (B, W, H, D)
        if self.gated:
            out = out * gate.sigmoid()
        return project(self._modules["o_proj"], out.reshape(rows, width, -1))

    def norms_are_plain(self) -> bool:
        q_norm, k_norm = self._modules["q_norm"], self._modules["k_norm"]
        both_plain = is_plain(q_norm, RMSNorm) and is_plain(k_norm, RMSNorm)
        return both_plain and q_norm.eps == k_norm.eps

    def normed(self, heads: Tensor) -> Tensor:
        """Query and key heads (B, W, H + KVH, D), scaled in one go, each by its own weight."""
        q_norm, k_norm = self._modules["q_norm"], self._modules["k_norm"]
        normed = scaled_to_unit(heads, q_norm.eps)  # float32
        if not q_norm.zero_centred:
            normed = normed.to(heads.dtype)
        for norm, first, count in ((q_norm, 0, self.heads), (k_norm, self.heads, self.kv_heads)):
            weight = norm._parameters["weight"]
            part = normed.narrow(2, first, count)
            part.mul_(1 + weight.float() if norm.zero_centred else weight)
        return normed.to(heads.dtype)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor:
        """q (B, H, W, D); k, v (B, KVH, K, D). A reader's own function always gets a real mask."""
        if self.function is not sdpa:
            return self.function(q, k, v, batch.attention_mask, self.scale)
        mask = once(batch, "mask", lambda: kernel_mask(batch, q.dtype))
        if batch.width > 1:
            groups = self.heads // self.kv_heads
            k, v = repeat_heads(k, groups), repeat_heads(v, groups)
            causal = mask is None
            return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=self.scale)
        worth = WORTH_A_PART // (2 * self.kv_heads * self.head_dim * k.element_size())
        parts = once(batch, "parts", lambda: split_by_length(batch, worth))
        if len(parts) == 1:
            return one_query(q, k, v, mask, self.scale)
        outputs = []
        for part, keys in parts:
            part_mask = mask[part, ..., :keys]
            part_k, part_v = k[part, :, :keys], v[part, :, :keys]
            outputs.append(one_query(q[part], part_k, part_v, part_mask, self.scale))
        return torch.cat(outputs)


def once(batch: ForwardBatch, name: str, make):
    """What is worked out once per pass, not once per layer."""
    if name not in batch.scratch:
        batch.scratch[name] = make()
    return batch.scratch[name]


def kernel_mask(batch: ForwardBatch, dtype: torch.dtype) -> Tensor | None:
    """The mask as sdpa wants it: None where nothing has to be hidden or plain causality does, else
    numbers to add (it would turn booleans into numbers in every layer)."""
    if not batch.own_mask:
        from_the_start = batch.num_computed_tokens[0] == 0
        is_step = batch.width == 1 and batch.valid_mask is None
        if batch.level and (from_the_start or is_step):
            return None
    return torch.where(batch.attention_mask, 0.0, float("-inf")).to(dtype)


def one_query(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """sdpa for one query a row, without repeating a key: q (B, H, 1, D), k, v (B, KVH, K, D)."""
    # The query heads of a key head can stand where queries stand. But for a few keys that takes the
    # kernel for matrices, whose wide instructions lower the clock of some CPUs for all that
    # follows.
    if k.numel() <= FEW:
        return F.scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=True)
    rows, heads, _, size = q.shape
    kv_heads = k.shape[1]
    grouped = q.reshape(rows, kv_heads, heads // kv_heads, size)
    return F.scaled_dot_product_attention(grouped, k, v, mask, scale=scale).view(q.shape)


def split_by_length(batch: ForwardBatch, worth: int) -> list[tuple[slice, int]]:
    """Splits the batch by length if that saves at least `worth` padded keys.

    Each part's rows, and the keys of its longest: a row is computed as long as that.
    """
    keys = [length + 1 for length in batch.num_computed_tokens]
    if len(keys) * max(keys) - sum(keys) <= worth:
        return [(slice(0, len(keys)), max(keys))]
    return split_rows(keys, worth, 0)


def split_rows(keys: list[int], worth: int, first: int) -> list[tuple[slice, int]]:
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
        if rows * longest - cost > worth:
            shorter = split_rows(keys[:cut], worth, first)
            return shorter + split_rows(keys[cut:], worth, first + cut)
    return [(slice(first, first + rows), longest)]


def signed(sin: Tensor) -> Tensor:
    """sin (..., R) with the first half negated, as the first of each pair wants it."""
    first, second = sin.chunk(2, dim=-1)
    return torch.cat((-first, second), dim=-1)


def apply_rotary_(x: Tensor, cos: Tensor, signed_sin: Tensor) -> None:
    """`qwenlab.model.layers.apply_rotary`, but changes x (B, W, heads, D) in place."""
    rotary_dim = cos.shape[-1]
    rotated = x.narrow(-1, 0, rotary_dim)
    partner = rotated.roll(rotary_dim // 2, -1)
    rotated.mul_(cos).addcmul_(partner, signed_sin)


def update_cache(
    batch: ForwardBatch, layer: int, keys: Tensor, values: Tensor
) -> tuple[Tensor, Tensor]:
    """`ForwardBatch.update_cache`, with one head of one token as a line: index_copy_ is faster than
    an index over two dimensions."""
    if batch.state is None:
        return keys.transpose(1, 2), values.transpose(1, 2)
    cache = batch.state.layers[layer]
    lines = once(batch, "lines", lambda: cache_lines(batch, cache["keys"]))
    whole = []
    for name, new in (("keys", keys), ("values", values)):
        kept = cache[name]
        size = kept.shape[3]
        if batch.valid_mask is not None:
            new = new[batch.valid_mask]  # (N, KVH, D)
        kept.view(-1, size).index_copy_(0, lines, new.reshape(-1, size))
        kept = kept.narrow(2, 0, batch.num_keys)
        whole.append(kept if batch.all_slots else kept[batch.slot_index])
    return whole[0], whole[1]


def cache_lines(batch: ForwardBatch, kept: Tensor) -> Tensor:
    """(N * KVH,): where each head of each real token stands in the cache seen as lines of D."""
    _, kv_heads, capacity, _ = kept.shape
    one_each = batch.width == 1 and batch.valid_mask is None
    if batch.level and one_each and isinstance(batch.slots, range):
        first, last = batch.slots.start * kv_heads, batch.slots.stop * kv_heads
        start = batch.num_computed_tokens[0]
        return torch.arange(first * capacity + start, last * capacity + start, capacity)
    slots, positions = batch.cache_index  # (N,)
    heads = slots[:, None] * kv_heads + torch.arange(kv_heads, device=kept.device)  # (N, KVH)
    return (heads * capacity + positions[:, None]).flatten()
