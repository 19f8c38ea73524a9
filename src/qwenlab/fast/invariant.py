"""Attention that gives a query the same bits whatever stands beside it or behind its keys.

A kernel divides its sums by shape: over 100 keys it adds in another order than over 99 keys and a
pad, and each order rounds differently. Here every product has one fixed shape, a block of KEYS
keys, and the blocks are added in order (Thinking Machines, "Defeating nondeterminism in LLM
inference", 2025, names the same cure: fix the size of the pieces, not their number).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from qwenlab.model.layers import at_least_float32

KEYS = 64  # keys in a block


def attention_in_blocks(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    """`qwenlab.model.attention.eager`, KEYS keys at a time and in float32 at least.

    q (B, H, Q, D); k, v (B, KVH, K, D); mask (B, 1, Q, K) bool, True = may attend. Returns
    (B, H, Q, D). A block in which a query may see nothing adds an exact zero to its sums, so K may
    be any number beyond the last key that the query sees. The exponent is taken of the score less
    the query's highest, which is the same number in whatever order it is found.
    """
    rows, heads, queries, head_dim = q.shape
    kv_heads, keys = k.shape[1:3]
    group_size = heads // kv_heads
    # The query heads that share a KV head are several queries of that head.
    q = at_least_float32(q).reshape(rows * kv_heads, group_size * queries, head_dim)
    starts = range(0, keys, KEYS)
    blocks = [q @ block(k, start).mT for start in starts]  # (N, G * Q, KEYS) each
    scores = torch.cat(blocks, dim=-1)  # (N, G * Q, K')
    hidden = F.pad(~mask, (0, -keys % KEYS), value=True)[:, :, None]  # (B, 1, 1, Q, K')
    scores.view(rows, kv_heads, group_size, queries, -1).masked_fill_(hidden, float("-inf"))
    # Never -inf itself, so that a query which may see nothing gets no -inf minus -inf.
    highest = scores.amax(-1, keepdim=True).clamp_(min=torch.finfo(scores.dtype).min)
    weights = scores.sub_(highest).mul_(scale).exp_()
    total = weights.new_zeros(*weights.shape[:2], 1)
    out = weights.new_zeros(q.shape)
    for start in starts:
        part = weights[..., start : start + KEYS].contiguous()  # (N, G * Q, KEYS)
        total += part.sum(-1, keepdim=True)
        out += part @ block(v, start)
    out /= total.masked_fill_(total == 0, 1)
    return out.view(rows, heads, queries, head_dim).to(v.dtype)


def block(cached: Tensor, start: int) -> Tensor:
    """Keys or values start..start+KEYS-1 of cached (B, KVH, K, D), zeros beyond the last.

    Returns (B * KVH, KEYS, D) in float32 at least, in memory of its own: with the cache's strides,
    which depend on the capacity, a product might take another kernel.
    """
    part = at_least_float32(cached[:, :, start : start + KEYS])
    part = F.pad(part, (0, 0, 0, KEYS - part.shape[2]))
    return part.reshape(-1, KEYS, part.shape[3]).contiguous()
