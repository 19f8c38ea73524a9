"""Grouped-query attention with a norm per head, in Qwen3.5 with a gate on what it returns."""

from torch import Tensor, nn

from qwenlab.model.call import Call
from qwenlab.model.config import Config
from qwenlab.model.layers import RMSNorm, rotate
from qwenlab.model.linear import Joined


class Attention(nn.Module):
    """Qwen3's attention: query and key normed per head, then rotated; fewer key than query heads (arXiv:2305.13245).

    Qwen3.5's q_proj gives each head its query and, right behind it, a gate: the head's output times sigmoid(gate).
    """

    def __init__(self, config: Config):
        super().__init__()
        self.head_dim, self.turned, self.gated = config.head_dim, config.rotary_dim, config.is_qwen3_5
        self.scale = config.head_dim**-0.5
        query_width = config.num_attention_heads * config.head_dim
        kv_width = config.num_key_value_heads * config.head_dim
        asking = config.num_attention_heads * (1 + self.gated)  # heads of q_proj, each gate counted as one
        self.q_proj = nn.Linear(config.hidden_size, asking * config.head_dim, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.o_proj = nn.Linear(query_width, config.hidden_size, bias=False)
        self.joined = Joined("q_proj", "k_proj", "v_proj")
        self.heads = [asking, config.num_key_value_heads, config.num_key_value_heads]
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps, config.is_qwen3_5)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps, config.is_qwen3_5)

    def forward(self, x: Tensor, call: Call, layer: int) -> Tensor:
        """x (B * W, hidden) to the same. `layer` is this layer's number: where the state keeps its keys and values."""
        heads = self.joined(self, x).view(call.batch, -1, sum(self.heads), self.head_dim)  # (B, W, H + 2 KVH, D)
        q, k, v = heads.split(self.heads, dim=2)
        if self.gated:  # query, gate, query, gate, ...: (B, W, 2 H, D)
            q, gate = q[:, :, ::2], q[:, :, 1::2]
        q = rotate(self.q_norm(q), call.cos, call.sin, self.turned)
        k = rotate(self.k_norm(k), call.cos, call.sin, self.turned)
        k, v = call.remember(layer, k, v)  # (B, KVH, K, D): with a state, the row's earlier tokens too
        out = call.attention(q.transpose(1, 2), k, v, call.mask, self.scale)
        out = out.transpose(1, 2)  # (B, W, H, D)
        if self.gated:
            out = out * gate.sigmoid()
        return self.o_proj(out.reshape(len(x), -1))  # (B * W, H * D) -> (B * W, hidden)
