"""RMS norm, rotary positions, MLP and decoder layer with fewer operations and fewer calls.

Submodules are read from `self._modules`, for speed: see `qwenlab.fast.fused`.
"""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qwenlab.fast.fused import apply_linear, is_plain, runs_plain
from qwenlab.model.batch import ForwardBatch
from qwenlab.model.layers import MLP, RMSNorm, Rotary, at_least_float32
from qwenlab.model.model import Layer


def norm(module: nn.Module, x: Tensor) -> Tensor:
    """module(x). A plain RMSNorm takes few operations, because small ones cost their calls, not
    their arithmetic."""
    if x.requires_grad or not is_plain(module, RMSNorm):
        return module(x)
    normed = scaled_to_unit(x, module.eps)
    weight = module._parameters["weight"]
    if module.zero_centred:
        return in_dtype(torch.addcmul(normed, normed, weight), x.dtype)
    return in_dtype(normed, x.dtype).mul_(weight)


def in_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x.to(dtype), skipped if it would change nothing, since even then it costs as much as a small
    operation."""
    return x if x.dtype is dtype else x.to(dtype)


def scaled_to_unit(x: Tensor, eps: float) -> Tensor:
    """x / rms(x) over the last dimension, in float32 at least."""
    x = at_least_float32(x)
    length = torch.linalg.vector_norm(x, 2, -1, True)  # root of the sum of squares
    scale = torch.addcmul(constant(eps, x.dtype), length, length, value=1 / x.shape[-1]).rsqrt_()
    return x * scale


@cache
def constant(value: float, dtype: torch.dtype) -> Tensor:
    """A number as a 0-d tensor, which addcmul requires."""
    with torch.inference_mode(False):  # it outlives the call, so it must serve training as well
        return torch.tensor(value, dtype=dtype, device="cpu")


class FastLayer(Layer):
    def forward(self, x: Tensor, batch: ForwardBatch, cos: Tensor, sin: Tensor) -> Tensor:
        if runs_plain(x, Layer):
            return super().forward(x, batch, cos, sin)
        parts = self._modules
        normed = norm(parts["input_layernorm"], x)
        if self.is_linear:
            x = x + parts["linear_attn"](normed, batch)
        else:
            x = x + parts["self_attn"](normed, batch, cos, sin)
        return x + parts["mlp"](norm(parts["post_attention_layernorm"], x))


class FastMLP(MLP):
    """Computes each product with the fastest kernel. Fusing gate and up would gain nothing, because
    reading the halves of the result costs as much."""

    def forward(self, x: Tensor) -> Tensor:
        if runs_plain(x, MLP):
            return super().forward(x)
        parts = self._modules
        gate = F.silu(apply_linear(parts["gate_proj"], x))  # (B, W, intermediate)
        return apply_linear(parts["down_proj"], gate * apply_linear(parts["up_proj"], x))


class FastRotary(Rotary):
    """Looks cosine and sine up in a table, which grows by doubling to the highest position."""

    # (what it is for, cos, sin, signed sin); read once, set at once, because threads share it
    table: tuple | None = None

    def forward(self, batch: ForwardBatch, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        if batch.custom_mask or runs_plain(batch.input_ids, Rotary):
            return super().forward(batch, dtype)
        end = max(batch.num_computed_tokens) + batch.width
        kind = (self.theta, self.rotary_dim, dtype)
        table = self.table
        if table is None or table[0] != kind or table[1].shape[1] < end:
            with torch.inference_mode(False):  # the table outlives the call
                positions = torch.arange(max(2 * end, 64), device="cpu")[None]
                cos, sin = self.angles(positions, dtype)  # (1, positions, 1, R)
                table = (kind, cos, sin, signed(sin))
            self.table = table
        if batch.aligned:
            start = end - batch.width
            angles = [angle.narrow(1, start, batch.width) for angle in table[1:]]  # (1, W, 1, R)
        else:
            angles = [angle[0, batch.position_ids] for angle in table[1:]]  # (B, W, 1, R)
        cos, sin, batch.scratch["signed_sin"] = angles
        return cos, sin


def signed(sin: Tensor) -> Tensor:
    """sin (..., R) with the first half negated: the sign it has for the first of each pair."""
    first, second = sin.chunk(2, dim=-1)
    return torch.cat((-first, second), dim=-1)
