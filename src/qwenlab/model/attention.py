"""Grouped-query attention with a norm per head."""

from torch import Tensor, nn

from qwenlab.model.call import Call
from qwenlab.model.config import Config
from qwenlab.model.layers import RMSNorm, rotate
from qwenlab.model.linear import Joined


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
        self.joined = Joined("q_proj", "k_proj", "v_proj")
        self.heads = [config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads]
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)

    def forward(self, x: Tensor, call: Call, layer: int) -> Tensor:
        """x (B * W, hidden) to the same. `layer` is this layer's number: where the state keeps its keys and values."""
        heads = self.joined(self, x).view(call.batch, -1, sum(self.heads), self.head_dim)  # (B, W, H + 2 KVH, D)
        q, k, v = heads.split(self.heads, dim=2)
        q = rotate(self.q_norm(q), call.cos, call.sin)
        k = rotate(self.k_norm(k), call.cos, call.sin)
        k, v = call.remember(layer, k, v)  # (B, KVH, K, D): with a state, the row's earlier tokens too
        out = call.attention(q.transpose(1, 2), k, v, call.mask, self.scale)
        # (B, H, W, D) -> (B * W, H * D)
        return self.o_proj(out.transpose(1, 2).reshape(len(x), -1))
