"""Grouped-query attention with a norm per head, and the two ways to compute it that ship with qwenlab."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qwenlab.model.call import Call
from qwenlab.model.config import Config
from qwenlab.model.layers import RMSNorm, rotate
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


def sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """The same through PyTorch's fused kernel; shapes as in `eager`."""
    batch, heads, queries, size = q.shape
    kv_heads, keys = k.shape[1:3]
    if queries == 1:
        # One query a row: the query heads of a key head can stand where queries stand, so no key is repeated.
        grouped = q.view(batch, kv_heads, heads // kv_heads, size)
        return F.scaled_dot_product_attention(grouped, k, v, mask, scale=scale).reshape(q.shape)
    if mask is None and queries != keys:
        mask = causal_mask(queries, keys, q.device)[None, None]
    # Repeated by hand: enable_gqa leaves the fused CPU kernel for the slow one.
    k, v = (x.repeat_interleave(heads // kv_heads, dim=1) for x in (k, v))  # (B, H, K, D)
    return F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, scale=scale)


BY_NAME = {"sdpa": sdpa, "eager": eager}


class Attention(nn.Module):
    """Qwen3's attention: query and key normed per head, then rotated; fewer key than query heads (arXiv:2305.13245)."""

    def __init__(self, config: Config):
        super().__init__()
        self.head_dim = config.head_dim
        self.scale = config.head_dim**-0.5
        query_width = config.num_attention_heads * config.head_dim
        kv_width = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, query_width, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.o_proj = nn.Linear(query_width, config.hidden_size, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)

    def forward(self, x: Tensor, call: Call, layer: int) -> Tensor:
        """x (B, T, hidden) to the same. `layer` is this layer's number: where the state keeps its keys and values."""
        batch, width, _ = x.shape
        # (B, T, heads * D) -> (B, T, heads, D)
        q = rotate(self.q_norm(self.q_proj(x).view(batch, width, -1, self.head_dim)), call.cos, call.sin)
        k = rotate(self.k_norm(self.k_proj(x).view(batch, width, -1, self.head_dim)), call.cos, call.sin)
        v = self.v_proj(x).view(batch, width, -1, self.head_dim)
        # (B, T, heads, D) -> (B, heads, T, D)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        k, v = call.remember(layer, k, v)  # (B, KVH, K, D): with a state, the row's earlier tokens too
        out = call.attention(q, k, v, call.mask, self.scale)
        # (B, H, T, D) -> (B, T, H * D)
        return self.o_proj(out.transpose(1, 2).reshape(batch, width, -1))
