"""The two ways to compute attention that ship with qwenlab; a reader's own function takes the same arguments."""

import torch
import torch.nn.functional as F
from torch import Tensor

from qwenlab.model.softmax import masked_softmax


def causal_mask(queries: int, keys: int, device=None) -> Tensor:
    """(Q, K) bool, True = may attend, bottom-right aligned: the last query sees all keys, the one before all but one.

    Anchored top-left instead, a cached step (Q = 1) would see nothing but the first key.
    """
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def eager(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Attention in the open: scores, softmax in float32 whatever the dtype, weighted mean of the values.

    q (B, H, Q, D); k, v (B, KVH, K, D); mask (B, 1, Q, K) bool or None = causal. Returns (B, H, Q, D).
    A query that may see nothing gets zeros, as `sdpa` gives it.
    """
    batch, heads, queries, size = q.shape
    kv_heads, keys = k.shape[1:3]
    if mask is None:
        mask = causal_mask(queries, keys, q.device)[None, None]  # (1, 1, Q, K)
    grouped = q.reshape(batch, kv_heads, -1, size)  # (B, KVH, H / KVH * Q, D): each key head with its query heads
    scores = (grouped @ k.transpose(-1, -2)).float() * scale  # (B, KVH, H / KVH * Q, K)
    weights = masked_softmax(scores.view(batch, heads, queries, keys), mask).to(v.dtype)
    return (weights.view(batch, kv_heads, -1, keys) @ v).view(batch, heads, queries, size)


FEW = 2**15  # numbers in the keys of all rows


def sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """The same through PyTorch's fused kernel; shapes as in `eager`. A float mask is added to the scores."""
    batch, heads, queries, size = q.shape
    kv_heads, keys = k.shape[1:3]
    if queries == 1:
        # One query a row: the query heads of a key head can stand where queries stand, so no key is repeated.
        # But for a few keys that takes the kernel for matrices, whose wide instructions make some processors lower
        # their clock, for all that comes after: the tiny model's step took a sixth longer.
        if k.numel() <= FEW and k.is_cpu:
            return F.scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=True)
        grouped = q.reshape(batch, kv_heads, heads // kv_heads, size)
        return F.scaled_dot_product_attention(grouped, k, v, mask, scale=scale).view(q.shape)
    if mask is None and queries != keys:
        mask = causal_mask(queries, keys, q.device)[None, None]
    # Repeated by hand: enable_gqa leaves the fused CPU kernel for the slow one.
    k, v = (x.repeat_interleave(heads // kv_heads, dim=1) for x in (k, v))  # (B, H, K, D)
    return F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, scale=scale)


BY_NAME = {"sdpa": sdpa, "eager": eager}
