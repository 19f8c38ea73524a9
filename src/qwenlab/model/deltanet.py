"""Gated DeltaNet: attention replaced by a memory of fixed size (Yang et al., arXiv:2412.06464).

Each head keeps a matrix S that answers a key with a value. A token first lets S decay, then looks
up what S holds for its key, and corrects S towards its own value:

    S <- e^g S;   d = beta (v - S^T k);   S <- S + k d^T;   o = S^T q
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qwenlab.model.batch import ForwardBatch
from qwenlab.model.config import Config
from qwenlab.model.layers import RMSNorm, at_least_float32

CHUNK_SIZE = 64  # tokens that the rule takes at a time
# Published in float32 whatever the other tensors are: small changes here add up over the tokens.
KEPT_FLOAT32 = ("linear_attn.A_log", "linear_attn.norm.weight")


class DeltaNet(nn.Module):
    """Qwen3.5's linear attention: short convolution, gated delta rule, gated norm.

    A row's state: `conv_state`, the last inputs of the convolution, one fewer than it has taps, and
    `recurrent_state`, S of every value head. Adjacent value heads share a key head.
    `chunk_size` is how many tokens the rule takes at a time.
    """

    def __init__(self, config: Config, layer: int):
        super().__init__()
        self.layer = layer  # where the state keeps this layer's two tensors
        self.chunk_size = CHUNK_SIZE
        self.key_heads = config.linear_num_key_heads
        self.value_heads = config.linear_num_value_heads
        self.head_k_dim = config.linear_key_head_dim
        self.head_v_dim = config.linear_value_head_dim
        self.key_width = self.key_heads * self.head_k_dim
        self.value_width = self.value_heads * self.head_v_dim
        channels = config.conv_channels
        hidden = config.hidden_size
        self.in_proj_qkv = nn.Linear(hidden, channels, bias=False)
        self.in_proj_z = nn.Linear(hidden, self.value_width, bias=False)
        self.in_proj_b = nn.Linear(hidden, self.value_heads, bias=False)
        self.in_proj_a = nn.Linear(hidden, self.value_heads, bias=False)
        self.taps = config.linear_conv_kernel_dim
        self.conv1d = nn.Conv1d(channels, channels, self.taps, groups=channels, bias=False)
        self.dt_bias = nn.Parameter(torch.empty(self.value_heads))
        self.A_log = nn.Parameter(torch.empty(self.value_heads))
        if not self.A_log.is_meta:  # there torch would import its compiler to compute nothing
            self.start_decay()
        self.norm = RMSNorm(self.head_v_dim, config.rms_norm_eps)
        self.out_proj = nn.Linear(self.value_width, hidden, bias=False)

    @torch.no_grad()
    def start_decay(self) -> None:
        """The authors' initial values: heads that remember for 1 to 1,000 tokens or more."""
        rate = torch.empty(self.value_heads).uniform_(math.log(0.001), math.log(0.1)).exp()
        self.dt_bias.copy_(rate + (-torch.expm1(-rate)).log())  # softplus of it is `rate`
        self.A_log.copy_(torch.empty(self.value_heads).uniform_(0.01, 16).log())

    def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """x (B, W, hidden) to the same."""
        qkv, z, b, a = self.project(x)
        beta = at_least_float32(b).sigmoid()  # (B, W, value heads)
        g = log_decay(a, self.A_log, self.dt_bias)  # (B, W, value heads)
        if batch.valid_mask is not None:
            # g = 0 and beta = 0 at a pad leave S unchanged, bit for bit.
            pads = ~batch.valid_mask[..., None]  # (B, W, 1)
            g = g.masked_fill(pads, 0)
            beta = beta.masked_fill(pads, 0)
        conv_state, recurrent_state = self.read_state(batch, qkv.dtype)
        inputs = torch.cat((conv_state, qkv), dim=1)  # (B, taps - 1 + W, channels)
        q, k, v = self.heads(self.convolve(inputs))  # (B, W, value heads, Dk or Dv)
        out, recurrent_state = delta_chunks(q, k, v, g, beta, recurrent_state, self.chunk_size)
        # The convolution is causal and pads trail, so no real output saw one; only the state kept
        # for the next call must skip them.
        self.write_state(batch, batch.last_inputs(inputs), recurrent_state)
        return self.gated_output(out, z)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """x (B, W, hidden) to the inputs of the other steps.

        qkv (B, W, channels) for queries, keys and values; z (B, W, value heads * Dv) for the output
        gate; b and a (B, W, value heads) for beta and the decay.
        """
        return self.in_proj_qkv(x), self.in_proj_z(x), self.in_proj_b(x), self.in_proj_a(x)

    def convolve(self, inputs: Tensor) -> Tensor:
        """Causal depthwise convolution and silu.

        inputs (B, taps - 1 + W, channels); returns (B, W, channels).
        """
        mixed = self.conv1d(inputs.transpose(1, 2))  # (B, channels, W)
        return F.silu(at_least_float32(mixed.transpose(1, 2)))

    def heads(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """mixed (B, W, channels) to q, k (B, W, value heads, Dk) and v (B, W, value heads, Dv)."""
        rows, width, _ = mixed.shape
        q, k, v = mixed.split([self.key_width, self.key_width, self.value_width], dim=-1)
        q = l2norm(q.view(rows, width, self.key_heads, self.head_k_dim))
        k = l2norm(k.view(rows, width, self.key_heads, self.head_k_dim))
        v = v.view(rows, width, self.value_heads, self.head_v_dim)
        q = q / math.sqrt(self.head_k_dim)
        group_size = self.value_heads // self.key_heads  # value heads that share a key head
        if group_size > 1:
            q = q.repeat_interleave(group_size, dim=2)
            k = k.repeat_interleave(group_size, dim=2)
        return q, k, v

    def gated_output(self, out: Tensor, z: Tensor) -> Tensor:
        """out (B, W, value heads, Dv), normalised and gated by z (B, W, value heads * Dv), to
        (B, W, hidden)."""
        gate = F.silu(at_least_float32(z).view(out.shape))  # (B, W, value heads, Dv)
        out = (self.norm(out) * gate).flatten(2)  # (B, W, value heads * Dv)
        return self.out_proj(out.to(z.dtype))

    def read_state(self, batch: ForwardBatch, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """conv_state (B, taps - 1, channels) and recurrent_state (B, value heads, Dk, Dv).

        Both are zeros where the batch has no state, for inputs of `dtype`.
        """
        if batch.state is None:
            rows = len(batch.input_ids)
            channels = 2 * self.key_width + self.value_width
            device = batch.input_ids.device
            conv_state = torch.zeros(rows, self.taps - 1, channels, dtype=dtype, device=device)
            shape = (rows, self.value_heads, self.head_k_dim, self.head_v_dim)
            recurrent_dtype = torch.promote_types(dtype, torch.float32)
            return conv_state, torch.zeros(shape, dtype=recurrent_dtype, device=device)
        kept = batch.state.layers[self.layer]
        return kept["conv_state"][batch.slot_index], kept["recurrent_state"][batch.slot_index]

    def write_state(self, batch: ForwardBatch, conv_state: Tensor, recurrent_state: Tensor) -> None:
        """Puts both in the rows' slots, in place."""
        if batch.state is not None:
            kept = batch.state.layers[self.layer]
            kept["conv_state"][batch.slot_index] = conv_state
            kept["recurrent_state"][batch.slot_index] = recurrent_state


def l2norm(x: Tensor) -> Tensor:
    """x / |x| over the last dimension, with 1e-6 added to the square of |x|."""
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6)


def log_decay(a: Tensor, A_log: Tensor, dt_bias: Tensor) -> Tensor:
    """g = -e^A_log softplus(a + dt_bias), never above 0: a (..., heads) to the same, in float32 at
    least."""
    rate = F.softplus(at_least_float32(a) + at_least_float32(dt_bias))
    return -at_least_float32(A_log).exp() * rate


def delta_step(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, recurrent_state: Tensor
) -> tuple[Tensor, Tensor]:
    """The gated delta rule for one token, as in the paper.

    q, k (B, heads, Dk), k of length 1; v (B, heads, Dv); g, beta (B, heads); recurrent_state, S in
    the formulas, (B, heads, Dk, Dv). Returns S^T q (B, heads, Dv) and the new S.
    """
    decayed = g.exp()[..., None, None] * recurrent_state
    recalled = torch.einsum("bhkv,bhk->bhv", decayed, k)  # S^T k
    delta = beta[..., None] * (v - recalled)
    recurrent_state = decayed + torch.einsum("bhk,bhv->bhkv", k, delta)  # S + k d^T
    return torch.einsum("bhkv,bhk->bhv", recurrent_state, q), recurrent_state


def delta_steps(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, recurrent_state: Tensor
) -> tuple[Tensor, Tensor]:
    """The rule token by token: the obvious counterpart of `delta_chunks`, with the same arguments
    and results."""
    outputs = []
    for t in range(q.shape[1]):
        token = [x[:, t] for x in (q, k, v, g, beta)]
        out, recurrent_state = delta_step(*token, recurrent_state)
        outputs.append(out)
    return torch.stack(outputs, dim=1), recurrent_state


def delta_chunks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    recurrent_state: Tensor,
    chunk_size: int = CHUNK_SIZE,
) -> tuple[Tensor, Tensor]:
    """The rule for many tokens, `chunk_size` at a time as matrix products (arXiv:2406.06484).

    q, k (B, W, heads, Dk), k of length 1; v (B, W, heads, Dv); g (B, W, heads) the log of the
    decay, not above 0; beta (B, W, heads); recurrent_state S (B, heads, Dk, Dv), which stays
    unchanged. Returns S^T q after each token (B, W, heads, Dv) and the new S.
    """
    # (B, heads, W, D), contiguous because the products below would copy them one after another.
    q, k, v, g, beta = (x.transpose(1, 2).contiguous() for x in (q, k, v, g, beta))
    g = g[..., None]  # (B, heads, W, 1)
    beta = beta[..., None]
    outputs = []
    for start in range(0, q.shape[2], chunk_size):
        tokens = slice(start, start + chunk_size)
        chunk = [x[:, :, tokens] for x in (q, k, v, g, beta)]
        out, recurrent_state = delta_chunk(*chunk, recurrent_state)
        outputs.append(out)
    return torch.cat(outputs, dim=2).transpose(1, 2), recurrent_state


def delta_chunk(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, recurrent_state: Tensor
) -> tuple[Tensor, Tensor]:
    """One chunk of L tokens, shapes (..., L, D) and (..., L, 1). Returns outputs and S.

    Token i writes d_i = beta_i (v_i - S^T k_i), and the S that it meets holds the S before the
    chunk and the earlier tokens' d_j, all decayed since: linear equations in d, lower triangular.
    """
    since_start = g.cumsum(-2).exp()  # (..., L, 1): what is left at i of the S before the chunk
    # (..., L, L): what is left at i of what j wrote. Each entry sums the decays between j and i;
    # differences of sums from the start would lose the small ones behind the large.
    between = g.expand(*g.shape[:-1], g.shape[-2]).tril(-1).cumsum(-2).exp().tril()
    matrix = beta * (k @ k.mT) * between  # (..., L, L), read below the diagonal only, with 1 on it
    right_side = beta * (v - since_start * (k @ recurrent_state))  # (..., L, Dv)
    d = torch.linalg.solve_triangular(matrix, right_side, upper=False, unitriangular=True)
    out = since_start * (q @ recurrent_state) + ((q @ k.mT) * between) @ d
    left_at_end = between[..., -1:, :].mT  # (..., L, 1): what is left of d_j after the chunk
    recurrent_state = since_start[..., -1:, :] * recurrent_state + (left_at_end * k).mT @ d
    return out, recurrent_state
