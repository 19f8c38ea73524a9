"""RMS norm, rotary positions, MLP and decoder layer with fewer operations and fewer calls."""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qwenlab.fast.fused import FusedOwner, is_plain, project, runs_plain
from qwenlab.fast.linear import product
from qwenlab.model.batch import ForwardBatch
from qwenlab.model.layers import MLP, RMSNorm, Rotary
from qwenlab.model.model import Layer


def norm(module: nn.Module, x: Tensor) -> Tensor:
    """module(x), a plain RMSNorm's in four operations:
    a small one costs its start, not its work."""
    if not is_plain(module, RMSNorm):
        return module(x)
    normed = scaled_to_unit(x, module.eps)
    weight = module._parameters["weight"]
    if module.zero_centred:
        return torch.addcmul(normed, normed, weight).to(x.dtype)
    return normed.to(x.dtype).mul_(weight)


def scaled_to_unit(x: Tensor, eps: float) -> Tensor:
    """x / rms(x) over the last dimension, in float32."""
    wide = None if x.dtype is torch.float32 else torch.float32
    length = torch.linalg.vector_norm(x, 2, -1, True, dtype=wide)  # root of the sum of squares
    scale = torch.addcmul(constant(eps), length, length, value=1 / x.shape[-1]).rsqrt_()
    return x * scale


@cache
def constant(value: float) -> Tensor:
    """A number as a tensor of no dimension: operations take it faster than a Python number."""
    with torch.inference_mode(False):  # it outlives the call, so it must serve training as well
        return torch.tensor(value, device="cpu")


class FastLayer(Layer):
    def forward(self, x: Tensor, batch: ForwardBatch, cos: Tensor, sin: Tensor) -> Tensor:
        if runs_plain(x):
            return super().forward(x, batch, cos, sin)
        parts = self._modules  # a plain dictionary: quicker than attributes
        normed = norm(parts["input_layernorm"], x)
        if self.is_linear:
            x = x + parts["linear_attn"](normed, batch)
        else:
            x = x + parts["self_attn"](normed, batch, cos, sin)
        return x + parts["mlp"](norm(parts["post_attention_layernorm"], x))


class FastMLP(FusedOwner, MLP):
    """gate_proj and up_proj as one product."""

    NAMES = ("gate_proj", "up_proj")

    def forward(self, x: Tensor) -> Tensor:
        if runs_plain(x) or not self.fused.usable(self):
            return super().forward(x)
        gate, up = product(x, self.fused.block).chunk(2, dim=-1)
        return project(self._modules["down_proj"], F.silu(gate).mul_(up))


class FastRotary(Rotary):
    """Looks cosine and sine up in a table, which grows by doubling to the highest position."""

    table: tuple | None = (
        None  # (what it is for, cos, sin); read once, set at once: threads share it
    )

    def forward(self, batch: ForwardBatch, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        if batch.own_mask or not batch.input_ids.is_cpu:
            return super().forward(batch, dtype)
        end = max(batch.num_computed_tokens) + batch.width
        kind = (self.theta, self.rotary_dim, dtype)
        table = self.table
        if table is None or table[0] != kind or len(table[1]) < end:
            with torch.inference_mode(False):  # the table outlives the call
                positions = torch.arange(max(2 * end, 64), device="cpu")
                table = (kind, *self.angles(positions, dtype))  # cos, sin (positions, 1, R)
            self.table = table
        _, cos, sin = table
        if batch.level:
            return cos[None, end - batch.width : end], sin[None, end - batch.width : end]
        return cos[batch.position_ids], sin[batch.position_ids]
