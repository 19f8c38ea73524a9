"""Grouped-query attention with a norm per head; in Qwen3.5 with a gate on the output."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qwenlab.model.batch import ForwardBatch
from qwenlab.model.config import Config
from qwenlab.model.layers import RMSNorm, apply_rotary, at_least_float32
from qwenlab.model.softmax import masked_softmax


class Attention(nn.Module):
    """Attention with fewer key than query heads (arXiv:2305.13245), q and k normed
    (after arXiv:2010.04245) and rotated.

    Qwen3.5's q_proj gives each head its query and, right behind it, a gate: the head's output is
    multiplied by sigmoid(gate). `function` computes the attention itself: `sdpa`, `eager` or a
    custom function (q, k, v, mask, scale).
    """

    def __init__(self, config: Config, layer: int):
        super().__init__()
        self.layer = layer  # where the state keeps this layer's keys and values
        self.function: Callable = sdpa
        self.heads = config.num_attention_heads
        self.kv_heads = config.num_key_value_heads
        self.head_dim = config.head_dim
        self.scale = 1 / math.sqrt(config.head_dim)
        self.gated = config.is_qwen3_5
        query_width = self.heads * self.head_dim
        kv_width = self.kv_heads * self.head_dim
        gates = query_width if self.gated else 0
        self.q_proj = nn.Linear(config.hidden_size, query_width + gates, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.o_proj = nn.Linear(query_width, config.hidden_size, bias=False)
        self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps, config.is_qwen3_5)
        self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps, config.is_qwen3_5)

    def forward(self, x: Tensor, batch: ForwardBatch, cos: Tensor, sin: Tensor) -> Tensor:
        """x (B, W, hidden) to the same; cos, sin (B, W, 1, R) of this pass's positions."""
        rows, width, _ = x.shape
        q = self.q_proj(x).view(rows, width, self.heads, -1)  # (B, W, H, D), or 2 D with a gate
        k = self.k_proj(x).view(rows, width, self.kv_heads, self.head_dim)  # (B, W, KVH, D)
        v = self.v_proj(x).view(rows, width, self.kv_heads, self.head_dim)
        if self.gated:
            q, gate = q.chunk(2, dim=-1)  # (B, W, H, D) each
        q = apply_rotary(self.q_norm(q), cos, sin)
        k = apply_rotary(self.k_norm(k), cos, sin)
        k, v = batch.update_cache(self.layer, k, v)  # (B, KVH, K, D): earlier tokens too
        q = q.transpose(1, 2)  # (B, H, W, D)
        function = batch.attention or self.function
        out = function(q, k, v, batch.attention_mask, self.scale)
        out = out.transpose(1, 2)  # (B, W, H, D)
        if self.gated:
            out = out * gate.sigmoid()
        out = out.reshape(rows, width, -1)  # (B, W, H * D)
        return self.o_proj(out)


def causal_mask(queries: int, keys: int, device: torch.device | None = None) -> Tensor:
    """(Q, K) bool, True = may attend, bottom-right aligned: the last query sees all keys, the one
    before it all but one.

    Anchored top-left instead, a cached step (Q = 1) would see nothing but the first key.
    """
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def repeat_heads(x: Tensor, times: int) -> Tensor:
    """x (B, KVH, K, D) to (B, H, K, D): each KV head repeated for the query heads that share it."""
    return x.repeat_interleave(times, dim=1)


def eager(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    """softmax(q k^T / sqrt(D)) v, step by step; the softmax in float32 at least.

    q (B, H, Q, D); k, v (B, KVH, K, D), not repeated; mask (B, 1, Q, K) bool, True = may attend;
    scale = 1 / sqrt(D). Returns (B, H, Q, D). A query that may see nothing gets zeros, as in
    `sdpa`.
    """
    group_size = q.shape[1] // k.shape[1]
    k = repeat_heads(k, group_size)  # (B, H, K, D)
    v = repeat_heads(v, group_size)
    scores = at_least_float32(q @ k.mT) * scale  # (B, H, Q, K)
    weights = masked_softmax(scores, mask).to(v.dtype)
    return weights @ v  # (B, H, Q, D)


def sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    """The same through PyTorch's fused kernel (FlashAttention, arXiv:2205.14135); shapes as in
    `eager`."""
    if q.shape[2] == 1 and not q.is_cpu:
        # Decoding is bound by memory traffic, so don't materialise repeated keys.
        return grouped_sdpa(q, k, v, mask, scale)
    # Otherwise repeat them: on a CPU, enable_gqa would leave the fused kernel for a slow one.
    group_size = q.shape[1] // k.shape[1]
    k = repeat_heads(k, group_size)
    v = repeat_heads(v, group_size)
    return F.scaled_dot_product_attention(q, k, v, mask, scale=scale)


def grouped_sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """`sdpa` for one query per row: treats the query heads that share a KV head as several queries
    of that head, so no key is repeated.

    q (B, H, 1, D); k, v (B, KVH, K, D); mask (B, 1, 1, K), None = sees all. Returns (B, H, 1, D).
    """
    rows, heads, _, head_dim = q.shape
    kv_heads = k.shape[1]
    grouped = q.reshape(rows, kv_heads, heads // kv_heads, head_dim)
    return F.scaled_dot_product_attention(grouped, k, v, mask, scale=scale).view(q.shape)


BY_NAME = {"sdpa": sdpa, "eager": eager}
