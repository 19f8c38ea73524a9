"""Grouped-query attention with a norm per head, in Qwen3.5 with a gate on what it returns."""

from functools import cache

import torch
from torch import Tensor, nn

from qwenlab.model.call import Call
from qwenlab.model.config import Config
from qwenlab.model.joined import Joined, Owner, project
from qwenlab.model.layers import RMSNorm, rms_norm, rotate


class Attention(Owner):
    """Qwen3's attention: query and key normed per head, then rotated; fewer key than query heads (arXiv:2305.13245).

    Qwen3.5's q_proj gives each head its query and, right behind it, a gate: the head's output times sigmoid(gate).
    """

    def __init__(self, config: Config):
        super().__init__()
        self.head_dim, self.turned, self.gated = config.head_dim, config.rotary_dim, config.is_qwen3_5
        self.scale = config.head_dim**-0.5
        query_width = config.num_attention_heads * config.head_dim
        kv_width = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, (1 + self.gated) * query_width, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.o_proj = nn.Linear(query_width, config.hidden_size, bias=False)
        self.joined = Joined("q_proj", "k_proj", "v_proj")
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps, config.is_qwen3_5)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps, config.is_qwen3_5)
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.norms = Joined("q_norm", "k_norm")
        self.lay_out()

    def forward(self, x: Tensor, call: Call, layer: int) -> Tensor:
        """x (B * W, hidden) to the same. `layer` is this layer's number: where the state keeps its keys and values."""
        h, kvh = self.heads, self.kv_heads
        asking = 2 * h if self.gated else h
        heads = self.joined(self, x).view(call.batch, -1, asking + 2 * kvh, self.head_dim)  # (B, W, H + 2 KVH, D)
        qk = heads.narrow(2, 0, asking + kvh)
        if self.gated:  # query, gate, query, gate, ...
            gate = qk[:, :, 1:asking:2]
            qk = torch.cat((qk[:, :, :asking:2], qk[:, :, asking:]), 2)
        qk = rotate(self.normed(qk), call.cos, call.sin, self.turned)  # (B, W, H + KVH, D)
        q, k, v = qk.narrow(2, 0, h), qk.narrow(2, h, kvh), heads.narrow(2, asking + kvh, kvh)
        k, v = call.remember(layer, k, v)  # (B, KVH, K, D): with a state, the row's earlier tokens too
        out = call.attend(q.transpose(1, 2), k, v, self.scale)
        out = out.transpose(1, 2)  # (B, W, H, D)
        if self.gated:
            out = out * gate.sigmoid()
        return project(self._modules["o_proj"], out.reshape(len(x), -1))  # (B * W, H * D) -> (B * W, hidden)

    def normed(self, heads: Tensor) -> Tensor:
        """Query and key heads (B, W, H + KVH, D), each by its own norm, in one go where nobody could tell."""
        norms = q_norm, k_norm = self.norms.modules(self)
        if not self.norms.usable(norms, RMSNorm) or q_norm.eps != k_norm.eps:
            q, k = heads.split([self.heads, self.kv_heads], dim=2)
            return torch.cat([q_norm(q), k_norm(k)], dim=2)
        weights = self.norms.block.view(2, -1)  # (2, D): the query's, the key's
        which = owners(self.heads, self.kv_heads, heads.device)
        weight = weights.index_select(0, which)  # (H + KVH, D)
        return rms_norm(heads, weight, q_norm.eps, q_norm.around_zero)


@cache
def owners(heads: int, kv_heads: int, device: torch.device) -> Tensor:
    """(H + KVH,): 0 for a query head, 1 for a key head."""
    with torch.inference_mode(False):
        return torch.tensor([0] * heads + [1] * kv_heads, device=device)
