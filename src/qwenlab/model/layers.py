"""The small parts of a decoder layer: RMS norm, rotary positions, gated MLP."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qwenlab.model.batch import ForwardBatch
from qwenlab.model.config import Config


def at_least_float32(x: Tensor) -> Tensor:
    """x in float32, or in float64 if it is already: the precision of sums, exponents and roots."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last dimension (Zhang & Sennrich, arXiv:1910.07467).

    In float32 at least: the published code computes it in float32 even in a float64 model, which we
    leave in float64.

    Qwen3.5's norms are zero-centred: they store weight - 1, so weight decay pulls them towards the
    identity.
    """

    def __init__(self, size: int, eps: float, zero_centred: bool = False):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size) if zero_centred else torch.ones(size))
        self.eps = eps
        self.zero_centred = zero_centred

    def forward(self, x: Tensor) -> Tensor:
        precise = at_least_float32(x)
        mean_square = precise.pow(2).mean(-1, keepdim=True)  # (..., 1)
        normed = precise * torch.rsqrt(mean_square + self.eps)
        if self.zero_centred:
            return (normed * (1 + at_least_float32(self.weight))).to(x.dtype)
        return normed.to(x.dtype) * self.weight


class MLP(nn.Module):
    """down(silu(gate(x)) * up(x)), the gated unit of Shazeer, arXiv:2002.05202."""

    def __init__(self, config: Config):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, W, hidden) to the same."""
        gate = F.silu(self.gate_proj(x))  # (B, W, intermediate)
        return self.down_proj(gate * self.up_proj(x))


class Rotary(nn.Module):
    """Cosine and sine of every position's angles (RoFormer, arXiv:2104.09864).

    R = config.rotary_dim of a head's features are rotated, in pairs (i, i + R / 2). No parameters.
    """

    def __init__(self, config: Config):
        super().__init__()
        self.rotary_dim = config.rotary_dim
        self.theta = config.rope_theta

    def forward(self, batch: ForwardBatch, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and sin (B, W, 1, R) of the batch's positions; the 1 stands for the heads."""
        return self.angles(batch.position_ids, dtype)

    def angles(self, position_ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """position_ids (...) int64 to cos and sin (..., 1, R).

        The angles are computed in float32 at least: in bfloat16 position 1001 would be 1000.
        """
        angle_dtype = torch.promote_types(dtype, torch.float32)
        pairs = torch.arange(0, self.rotary_dim, 2, device=position_ids.device, dtype=angle_dtype)
        frequencies = 1.0 / self.theta ** (pairs / self.rotary_dim)  # (R / 2,)
        angles = position_ids[..., None, None].to(angle_dtype) * frequencies  # (..., 1, R / 2)
        angles = torch.cat((angles, angles), dim=-1)  # (..., 1, R)
        return angles.cos().to(dtype), angles.sin().to(dtype)


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates the first R features of x (B, W, heads, D) by its position; cos, sin (B, W, 1, R).

    Each pair (a, b) becomes (a cos - b sin, b cos + a sin). Qwen pairs feature i with i + R / 2.
    """
    rotary_dim = cos.shape[-1]
    rotated = x[..., :rotary_dim]
    unrotated = x[..., rotary_dim:]
    a, b = rotated.chunk(2, dim=-1)
    partner = torch.cat((-b, a), dim=-1)
    return torch.cat((rotated * cos + partner * sin, unrotated), dim=-1)
