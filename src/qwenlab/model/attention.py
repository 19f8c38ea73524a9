"""Grouped-query attention with a norm per head."""

from functools import cache

import torch
from torch import Tensor, nn

from qwenlab.model.call import Call
from qwenlab.model.config import Config
from qwenlab.model.joined import Block, Joined, plain
from qwenlab.model.layers import RMSNorm, rms_norm, rotate


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
        self.joined, self.out = Joined("q_proj", "k_proj", "v_proj"), Joined("o_proj")
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.heads, self.kv_heads, self.norms = config.num_attention_heads, config.num_key_value_heads, Block()

    def forward(self, x: Tensor, call: Call, layer: int) -> Tensor:
        """x (B * W, hidden) to the same. `layer` is this layer's number: where the state keeps its keys and values."""
        h, kvh = self.heads, self.kv_heads
        heads = self.joined(self, x).view(call.batch, -1, h + 2 * kvh, self.head_dim)  # (B, W, H + 2 KVH, D)
        turned = rotate(self.normed(heads.narrow(2, 0, h + kvh)), call.cos, call.sin)  # (B, W, H + KVH, D)
        q, k, v = turned.narrow(2, 0, h), turned.narrow(2, h, kvh), heads.narrow(2, h + kvh, kvh)
        k, v = call.remember(layer, k, v)  # (B, KVH, K, D): with a state, the row's earlier tokens too
        out = call.attention(q.transpose(1, 2), k, v, call.mask, self.scale)
        # (B, H, W, D) -> (B * W, H * D)
        return self.out(self, out.transpose(1, 2).reshape(len(x), -1))

    def normed(self, heads: Tensor) -> Tensor:
        """Query and key heads (B, W, H + KVH, D), each by its own norm, in one go where nobody could tell."""
        norms = [self._modules["q_norm"], self._modules["k_norm"]]
        if torch.is_grad_enabled() or not all([plain(norm, RMSNorm) for norm in norms]):
            q, k = heads.split([self.heads, self.kv_heads], dim=2)
            return torch.cat([self.q_norm(q), self.k_norm(k)], dim=2)
        weights = self.norms.of(norms).view(2, -1)  # (2, D): the query's, the key's
        weight = weights.index_select(0, owners(self.heads, self.kv_heads, heads.device))  # (H + KVH, D)
        return rms_norm(heads, weight, norms[0].eps)


@cache
def owners(heads: int, kv_heads: int, device: torch.device) -> Tensor:
    """(H + KVH,): 0 for a query head, 1 for a key head."""
    with torch.inference_mode(False):
        return torch.tensor([0] * heads + [1] * kv_heads, device=device)
