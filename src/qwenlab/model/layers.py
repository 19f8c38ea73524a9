"""The small parts of a decoder layer: RMS norm, rotary positions, gated MLP."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qwenlab.model.config import Config


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last dimension, computed in float32 (Zhang & Sennrich, arXiv:1910.07467)."""

    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * (wide * scale).to(x.dtype)


class MLP(nn.Module):
    """down(silu(gate(x)) * up(x)): the gated unit of Shazeer, arXiv:2002.05202. (B, T, hidden) to the same."""

    def __init__(self, config: Config):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


def rotary_table(positions: Tensor, head_dim: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine of each position's angles (RoFormer, arXiv:2104.09864).

    positions (B, T) int64, or (1, T) where all rows agree. Returns two tensors (B, T, 1, head_dim / 2) of
    `dtype`, worked out in float32; the 1 stands for the heads.
    """
    pairs = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32)
    frequencies = 1.0 / theta ** (pairs / head_dim)  # (head_dim / 2,)
    angles = positions[..., None, None].float() * frequencies  # (B, T, 1, head_dim / 2)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns x (B, T, heads, head_dim) by its position. Qwen pairs feature i with i + head_dim / 2 (half-split)."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
