"""The small parts of a decoder layer: RMS norm, rotary positions, gated MLP."""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qwenlab.model.config import Config
from qwenlab.model.joined import Joined


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last dimension, computed in float32 (Zhang & Sennrich, arXiv:1910.07467)."""

    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """What RMSNorm computes; `weight` may differ along other dimensions too."""
    # Small operations cost their start, not their work, so there are as few as can be.
    wide = None if x.dtype is torch.float32 else torch.float32
    norm = torch.linalg.vector_norm(x, 2, -1, True, dtype=wide)  # the root of the sum of squares, (..., 1)
    scale = torch.addcmul(constant(eps, x.device), norm, norm, value=1 / x.shape[-1]).rsqrt_()
    return (x * scale if wide is None else (x * scale).to(x.dtype)) * weight


@cache
def constant(value: float, device: torch.device) -> Tensor:
    """A number as a tensor of no dimension: operations take it faster than a Python number."""
    with torch.inference_mode(False):  # it outlives the call, so it must serve training as well
        return torch.tensor(value, device=device)


class MLP(nn.Module):
    """down(silu(gate(x)) * up(x)): the gated unit of Shazeer, arXiv:2002.05202. (N, hidden) to the same."""

    def __init__(self, config: Config):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.joined, self.down = Joined("gate_proj", "up_proj"), Joined("down_proj")

    def forward(self, x: Tensor) -> Tensor:
        both = self.joined(self, x)  # (N, 2 * intermediate)
        size = both.shape[1] // 2
        return self.down(self, F.silu(both[:, :size]) * both[:, size:])


class Rotary:
    """Cosine and sine of every position's angles, looked up once a call (RoFormer, arXiv:2104.09864).

    The table grows by doubling to the highest position asked for. It holds constants only.
    """

    def __init__(self, head_dim: int, theta: float):
        self.head_dim, self.theta = head_dim, theta
        self.cos = self.sin = torch.empty(0)

    def at(self, positions: Tensor | slice, highest: int, dtype: torch.dtype, device) -> tuple[Tensor, Tensor]:
        """positions (B, T) int64, or a slice where all rows agree, none above `highest`, which the host knows.

        Returns two tensors (B, T, 1, head_dim), or (T, 1, head_dim), for `rotate`; the 1 stands for the heads.
        """
        if highest >= len(self.cos) or self.cos.dtype != dtype or self.cos.device != device:
            with torch.inference_mode(False):  # the table outlives the call
                table = torch.arange(max(highest + 1, 2 * len(self.cos), 64), device=device)
                self.cos, self.sin = self.angles(table, dtype)
        return self.cos[positions], self.sin[positions]

    def angles(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The same without a table, for positions of any shape (...) and value, below 0 too: (..., 1, head_dim)."""
        pairs = torch.arange(0, self.head_dim, 2, device=positions.device, dtype=torch.float32)
        frequencies = 1.0 / self.theta ** (pairs / self.head_dim)  # (head_dim / 2,)
        angles = positions[..., None, None].float() * frequencies  # (..., 1, head_dim / 2)
        cos, sin = angles.cos(), angles.sin()
        # (..., 1, head_dim): laid out for `rotate`, the minus of the first half already in
        return torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns x (B, T, heads, head_dim) by its position. Qwen pairs feature i with i + head_dim / 2 (half-split):
    (a, b) becomes (a cos - b sin, b cos + a sin), here as (a, b) * cos + (b, a) * (-sin, sin)."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)
