"""The small parts of a decoder layer: RMS norm, rotary positions, gated MLP."""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qwenlab.model.config import Config
from qwenlab.model.joined import FORWARDS, Joined, Owner, project


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last dimension, computed in float32 (Zhang & Sennrich, arXiv:1910.07467).

    Qwen3.5 stores weight - 1 (`around_zero`), so that weight decay draws towards doing nothing.
    """

    def __init__(self, size: int, eps: float, around_zero: bool = False):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size) if around_zero else torch.ones(size))
        self.eps, self.around_zero = eps, around_zero

    def forward(self, x: Tensor) -> Tensor:
        weight = self._parameters.get("weight")  # a dictionary: quicker, but not if parametrized
        weight = self.weight if weight is None else weight
        return rms_norm(x, weight, self.eps, self.around_zero)


FORWARDS[RMSNorm] = RMSNorm.forward


def rms_norm(x: Tensor, weight: Tensor, eps: float, around_zero: bool) -> Tensor:
    """What RMSNorm computes; `weight` may differ along other dimensions too."""
    # Small operations cost their start, not their work, so there are as few as can be.
    wide = None if x.dtype is torch.float32 else torch.float32
    norm = torch.linalg.vector_norm(x, 2, -1, True, dtype=wide)  # the root of the sum of squares, (..., 1)
    scale = torch.addcmul(constant(eps, x.device), norm, norm, value=1 / x.shape[-1]).rsqrt_()
    normed = x * scale
    if around_zero:  # the reference rounds after this weight, but before the other kind
        normed = torch.addcmul(normed, normed, weight)
        return normed if wide is None else normed.to(x.dtype)
    return (normed if wide is None else normed.to(x.dtype)).mul_(weight)


@cache
def constant(value: float, device: torch.device) -> Tensor:
    """A number as a tensor of no dimension: operations take it faster than a Python number."""
    with torch.inference_mode(False):  # it outlives the call, so it must serve training as well
        return torch.tensor(value, device=device)


class MLP(Owner):
    """down(silu(gate(x)) * up(x)): the gated unit of Shazeer, arXiv:2002.05202. (N, hidden) to the same."""

    def __init__(self, config: Config):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.joined = Joined("gate_proj", "up_proj")
        self.lay_out()

    def forward(self, x: Tensor) -> Tensor:
        both = self.joined(self, x)  # (N, 2 * intermediate)
        size = both.shape[1] // 2
        return project(self._modules["down_proj"], F.silu(both[:, :size]).mul_(both[:, size:]))


class Rotary:
    """Cosine and sine of every position's angles, looked up once a call (RoFormer, arXiv:2104.09864).

    The table grows by doubling to the highest position asked for. It holds constants only. Of a head's `head_dim`
    features the first `turned` are turned; the others get cosine 1 and sine 0.
    """

    def __init__(self, head_dim: int, theta: float, turned: int | None = None):
        self.head_dim, self.theta, self.turned = head_dim, theta, turned or head_dim
        self.table = torch.empty(0), torch.empty(0)  # cosines and sines, of one length always

    def at(self, positions: Tensor | slice, highest: int, dtype: torch.dtype, device) -> tuple[Tensor, Tensor]:
        """positions (B, T) int64, or a slice where all rows agree, none above `highest`, which the host knows.

        Returns two tensors (B, T, 1, head_dim), or (T, 1, head_dim), for `rotate`; the 1 stands for the heads.
        """
        cos, sin = self.table  # read once and set at once: another thread may be at it
        if highest >= len(cos) or cos.dtype != dtype or cos.device != device:
            with torch.inference_mode(False):  # the table outlives the call
                every = torch.arange(max(highest + 1, 2 * len(cos), 64), device=device)
                cos, sin = self.table = self.angles(every, dtype)
        return cos[positions], sin[positions]

    def angles(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The same without a table, for positions of any shape (...) and value, below 0 too: (..., 1, head_dim)."""
        pairs = torch.arange(0, self.turned, 2, device=positions.device, dtype=torch.float32)
        frequencies = 1.0 / self.theta ** (pairs / self.turned)  # (turned / 2,)
        angles = positions[..., None, None].float() * frequencies  # (..., 1, turned / 2)
        cos, sin, rest = angles.cos(), angles.sin(), (0, self.head_dim - self.turned)
        # (..., 1, head_dim): laid out for `rotate`, the minus of the first half already in
        cos, sin = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
        return F.pad(cos, rest, value=1.0).to(dtype), F.pad(sin, rest).to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, turned: int) -> Tensor:
    """Turns the first `turned` features of x (B, T, heads, head_dim) by its position. Qwen pairs feature i with
    i + turned / 2 (half-split): (a, b) becomes (a cos - b sin, b cos + a sin), here as (a, b) * cos +
    (b, a) * (-sin, sin). What is not turned stays: its cosine is 1, its sine 0."""
    half = turned // 2
    if turned == x.shape[-1]:
        other = x.roll(half, -1)
    else:
        other = torch.cat((x[..., half:turned], x[..., :half], x[..., turned:]), -1)
    return (x * cos).addcmul_(other, sin)
