"""Gated DeltaNet with one product for its four projections, and a decode step that changes its
state in place.

The norm is read from `self._modules`, for speed: see `qwenlab.fast.fused`.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qwenlab.fast.fused import FusedOwner, apply_linear, is_plain, runs_plain
from qwenlab.fast.layers import norm
from qwenlab.fast.linear import product
from qwenlab.model.batch import ForwardBatch
from qwenlab.model.deltanet import DeltaNet, l2norm, log_decay
from qwenlab.model.layers import at_least_float32


class FastDeltaNet(FusedOwner, DeltaNet):
    """The four projections as one product. A decode step, one token per row, takes a path of its
    own."""

    NAMES = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")

    def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        weight = self.fused_weight() if self.is_plain_decode_step(x, batch) else None
        if weight is None:
            return super().forward(x, batch)
        qkv, z, b, a = self.split_projected(product(x[:, 0], weight))  # (B, ...)
        beta = at_least_float32(b).sigmoid()[..., None]  # (B, value heads, 1)
        decay = log_decay(a, self.A_log, self.dt_bias).exp()[..., None]
        conv_state, recurrent_state = self.read_state(batch, qkv.dtype)
        inputs = torch.cat((conv_state, qkv[:, None]), dim=1)  # (B, taps, channels)
        taps = self.conv1d.weight[:, 0].t()  # (taps, channels)
        mixed = (at_least_float32(inputs) * at_least_float32(taps)).sum(1)  # (B, channels)
        q, k, v = self.step_heads(F.silu(mixed))
        out = delta_step_(q, k, v, decay, beta, recurrent_state)  # (B, value heads, Dv)
        self.write_step(batch, inputs[:, 1:], recurrent_state)
        return self.gated_output(out, z)[:, None]

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        weight = None if runs_plain(x, DeltaNet) else self.fused_weight()
        if weight is None:
            return super().project(x)
        return self.split_projected(product(x, weight))

    def split_projected(self, projected: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(..., all outputs) to qkv, z, b and a."""
        channels = 2 * self.key_width + self.value_width
        widths = [channels, self.value_width, self.value_heads, self.value_heads]
        return projected.split_with_sizes(widths, dim=-1)

    def is_plain_decode_step(self, x: Tensor, batch: ForwardBatch) -> bool:
        """Whether each row decodes one token, through nothing but plain modules."""
        if batch.state is None or batch.width > 1 or batch.valid_mask is not None:
            return False
        return not runs_plain(x, DeltaNet) and is_plain(self.conv1d, nn.Conv1d)

    def convolve(self, inputs: Tensor) -> Tensor:
        """As the plain one, tap by tap: PyTorch's depthwise convolution is several times slower on
        a CPU."""
        if runs_plain(inputs, DeltaNet) or not is_plain(self.conv1d, nn.Conv1d):
            return super().convolve(inputs)
        inputs = at_least_float32(inputs)
        taps = at_least_float32(self.conv1d.weight[:, 0].t()).contiguous()  # (taps, channels)
        width = inputs.shape[1] - self.taps + 1
        mixed = inputs[:, :width] * taps[0]
        for tap in range(1, self.taps):
            mixed.addcmul_(inputs[:, tap : tap + width], taps[tap])
        return F.silu(mixed)

    def gated_output(self, out: Tensor, z: Tensor) -> Tensor:
        """As the plain one; of a decode step without its dimension W."""
        if runs_plain(out, DeltaNet):
            return super().gated_output(out, z)
        gate = F.silu(at_least_float32(z).view(out.shape))
        out = (norm(self._modules["norm"], out) * gate).flatten(-2)
        return apply_linear(self.out_proj, out.to(z.dtype))

    def step_heads(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """mixed (B, channels) to q, k (B, value heads, Dk) and v (B, value heads, Dv)."""
        qk = mixed.narrow(1, 0, 2 * self.key_width)
        qk = l2norm(qk.view(len(mixed), 2, self.key_heads, self.head_k_dim))
        group_size = self.value_heads // self.key_heads
        if group_size > 1:
            qk = qk.repeat_interleave(group_size, dim=2)
        q, k = qk.unbind(1)
        v = mixed.narrow(1, 2 * self.key_width, self.value_width)
        v = v.view(len(mixed), self.value_heads, self.head_v_dim)
        return q / math.sqrt(self.head_k_dim), k, v

    def write_step(self, batch: ForwardBatch, conv_state: Tensor, recurrent_state: Tensor) -> None:
        """Stores both in the rows' slots, unless they are there already.

        With a slice, `recurrent_state` is a view and delta_step_ has already updated the state.
        With an index tensor it is a copy and must be written back.
        """
        kept = batch.state.layers[self.layer]
        kept["conv_state"][batch.slot_index] = conv_state
        if isinstance(batch.slot_index, Tensor):
            kept["recurrent_state"][batch.slot_index] = recurrent_state


def delta_step_(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, recurrent_state: Tensor
) -> Tensor:
    """`qwenlab.model.deltanet.delta_step`, but changes `recurrent_state` in place.

    q, k (B, heads, Dk); v (B, heads, Dv); decay, beta (B, heads, 1); recurrent_state, S in
    the formulas, (B, heads, Dk, Dv). Returns S^T q (B, heads, Dv).
    """
    shape = v.shape
    S = recurrent_state.view(-1, *recurrent_state.shape[2:])  # (N, Dk, Dv), N = B * heads
    q, k, v = (x.reshape(len(S), 1, -1) for x in (q, k, v))
    S.mul_(decay.reshape(-1, 1, 1))
    error = torch.baddbmm(v, k, S, alpha=-1)  # v - S^T k: (N, 1, Dv)
    S.baddbmm_(k.transpose(1, 2), error * beta.reshape(-1, 1, 1))
    return torch.bmm(q, S).view(shape)
