"""Gated DeltaNet: attention's place taken by a memory of fixed size (Yang, Kautz and Hatamizadeh, arXiv:2412.06464).

Each head keeps a matrix S that answers a key with a value. A token first lets S fade, then looks up what S says
about its key, and corrects S towards its own value: S <- decay S; S <- S + k beta (v - S^T k). It reads S^T q.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qwenlab.model.call import Call
from qwenlab.model.config import Config
from qwenlab.model.joined import Joined
from qwenlab.model.layers import RMSNorm, constant

# Published in float32 whatever the other tensors are: small changes here add up over the tokens.
KEPT_FLOAT32 = ("linear_attn.A_log", "linear_attn.norm.weight")


class DeltaNet(nn.Module):
    """Qwen3.5's linear attention: short convolution, delta rule, gated norm. Key heads serve equal runs of value heads.

    A row's state is its "window", the K - 1 last inputs of the convolution, and its "memory", S of every value head.
    """

    def __init__(self, config: Config):
        super().__init__()
        self.key_heads, self.value_heads = config.linear_num_key_heads, config.linear_num_value_heads
        self.key_dim, self.value_dim = config.linear_key_head_dim, config.linear_value_head_dim
        self.keys, self.values = self.key_heads * self.key_dim, self.value_heads * self.value_dim
        channels = 2 * self.keys + self.values
        self.widths = [channels, self.values, self.value_heads, self.value_heads]
        names = ["in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"]
        for name, width in zip(names, self.widths, strict=True):
            self.add_module(name, nn.Linear(config.hidden_size, width, bias=False))
        self.joined, self.out = Joined(*names), Joined("out_proj")
        self.conv1d = nn.Conv1d(channels, channels, config.linear_conv_kernel_dim, groups=channels, bias=False)
        # As the authors start them: heads that remember for 1 to 1,000 tokens or more.
        rate = torch.empty(self.value_heads).uniform_(math.log(0.001), math.log(0.1)).exp()
        self.dt_bias = nn.Parameter(rate + (-torch.expm1(-rate)).log())  # softplus of it is `rate`
        self.A_log = nn.Parameter(torch.empty(self.value_heads).uniform_(0.01, 16).log())
        # The queries' 1 / sqrt(key_dim) is left out: this norm divides by the size anyway, so only its eps notices.
        self.norm = RMSNorm(self.value_dim, config.rms_norm_eps * self.key_dim)
        self.out_proj = nn.Linear(self.values, config.hidden_size, bias=False)

    def forward(self, x: Tensor, call: Call, layer: int) -> Tensor:
        """x (B * W, hidden) to the same. `layer` is this layer's number: where the state keeps window and memory."""
        batch = call.batch
        qkv, z, b, a = self.joined(self, x).split(self.widths, dim=-1)
        if call.state is None:
            window = qkv.new_zeros(batch, self.conv1d.kernel_size[0] - 1, self.widths[0])
            memory = x.new_zeros(batch, self.value_heads, self.key_dim, self.value_dim, dtype=torch.float32)
        else:
            window, memory = call.recall(layer)
        inputs = torch.cat((window, qkv.view(batch, -1, self.widths[0])), 1)  # (B, K - 1 + W, channels)
        mixed = F.silu(convolve(inputs, self.conv1d.weight.squeeze(1).t()))  # (B, W, channels), float32
        width = mixed.shape[1]

        qk = unit(mixed[..., : 2 * self.keys].view(batch, width, 2 * self.key_heads, self.key_dim))
        q, k = qk.chunk(2, dim=2)  # (B, W, key heads, key_dim)
        if self.key_heads < self.value_heads:
            q, k = (part.repeat_interleave(self.value_heads // self.key_heads, dim=2) for part in (q, k))
        v = mixed[..., 2 * self.keys :].view(batch, width, self.value_heads, self.value_dim)
        g, beta = log_decay(a, self.A_log, self.dt_bias), b.float().sigmoid()  # (B * W, value heads)
        if call.real is not None:  # a pad lets nothing fade and writes nothing: S stays as it is, bit by bit
            pads = ~call.real.view(-1, 1)
            g, beta = g.masked_fill(pads, 0), beta.masked_fill(pads, 0)

        g, beta = (part.view(batch, width, self.value_heads, 1) for part in (g, beta))
        q, k, v, g, beta = map(by_head, (q, k, v, g, beta))  # (N, W, ...), N = B * value heads
        lines = memory.view(-1, self.key_dim, self.value_dim)
        if call.state is None:
            out, _ = delta_chunks(q, k, v, g, beta, lines, call.chunk)
        else:
            call.replace(layer, window=last_inputs(inputs, width, call.real))
            if width == 1:
                out = delta_step(q, k, v, g.exp(), beta, lines)
            else:
                out, lines = delta_chunks(q, k, v, g, beta, lines, call.chunk)
            if width > 1 or isinstance(call.rows, Tensor):  # else it was changed in place
                call.replace(layer, memory=lines.view(memory.shape))

        out = out.view(batch, self.value_heads, width, -1).transpose(1, 2)  # (B, W, value heads, value_dim)
        out = self.norm(out) * F.silu(z.float().view(out.shape))
        return self.out(self, out.reshape(len(x), -1).to(x.dtype))  # (B * W, values) -> (B * W, hidden)


def by_head(x: Tensor) -> Tensor:
    """(B, W, heads, D) to (B * heads, W, D): every row's every head by itself."""
    batch, width, heads, size = x.shape
    return (x.transpose(1, 2) if width > 1 else x).reshape(batch * heads, width, size)


def last_inputs(inputs: Tensor, width: int, real: Tensor | None) -> Tensor:
    """The next call's window: of inputs (B, K - 1 + W, C) the K - 1 that end with each row's last real one."""
    if real is None:
        return inputs[:, width:]
    ends = real.sum(1, keepdim=True) + torch.arange(inputs.shape[1] - width, device=inputs.device)  # (B, K - 1)
    return inputs[torch.arange(len(inputs), device=inputs.device)[:, None], ends]


def convolve(inputs: Tensor, taps: Tensor) -> Tensor:
    """Short causal convolution, every channel by itself, in float32: (B, K - 1 + W, C), taps (K, C) to (B, W, C).

    The first K - 1 inputs are those before this call's, or zeros.
    """
    inputs, taps = inputs.float(), taps.float()
    width = inputs.shape[1] - len(taps) + 1
    if width == 1:
        return (inputs * taps).sum(1, keepdim=True)
    taps = taps.contiguous()  # channels beside each other, as the inputs have them
    out = inputs[:, :width] * taps[0]
    for place in range(1, len(taps)):
        out.addcmul_(inputs[:, place : place + width], taps[place])
    return out


def unit(x: Tensor) -> Tensor:
    """x / |x| over the last dimension, with 1e-6 added to the square of |x|."""
    norm = torch.linalg.vector_norm(x, 2, -1, True)
    return x * torch.addcmul(constant(1e-6, x.device), norm, norm).rsqrt_()


def log_decay(a: Tensor, A_log: Tensor, dt_bias: Tensor) -> Tensor:
    """-e^A_log softplus(a + dt_bias), never above 0, in float32: a (N, heads), the others (heads,)."""
    rate = F.softplus(a.float() + dt_bias.float())
    return torch.addcmul(constant(0.0, a.device), rate, A_log.float().exp(), value=-1)


def delta_step(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, memory: Tensor) -> Tensor:
    """The gated delta rule for one token; changes `memory` (N, Dk, Dv) in place, N = rows x heads.

    q, k (N, 1, Dk), k of length 1; v (N, 1, Dv); decay, beta (N, 1, 1). Returns S^T q (N, 1, Dv).
    """
    memory.mul_(decay)
    error = torch.baddbmm(v, k, memory, alpha=-1)  # v - S^T k
    memory.baddbmm_(k.transpose(1, 2), error * beta)
    return torch.bmm(q, memory)


def delta_steps(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    """The rule token by token: the slow obvious path beside `delta_chunks`, with its arguments and results."""
    memory, out = memory.clone(), []
    for t in range(q.shape[1]):
        now = slice(t, t + 1)
        out.append(delta_step(q[:, now], k[:, now], v[:, now], g[:, now].exp(), beta[:, now], memory))
    return torch.cat(out, 1), memory


def delta_chunks(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, memory: Tensor, chunk: int = 64
) -> tuple[Tensor, Tensor]:
    """The rule for many tokens, `chunk` of them at a time as matrix products (Yang et al., arXiv:2406.06484).

    q, k (N, W, Dk), k of length 1; v (N, W, Dv); g (N, W, 1) the log of the decay, not above 0; beta (N, W, 1);
    memory (N, Dk, Dv), left as it is. Returns S^T q after each token (N, W, Dv) and the new memory.
    """
    out = []
    for tokens in zip(*(x.split(chunk, dim=1) for x in (q, k, v, g, beta)), strict=True):
        said, memory = delta_chunk(*tokens, memory)
        out.append(said)
    return torch.cat(out, 1), memory


def delta_chunk(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    """One chunk of `delta_chunks`. Token i writes d_i = beta_i (v_i - what S says to k_i), and S holds the start's
    memory and the earlier tokens' d_j, all faded since: linear equations in d, solved from the first token on."""
    since = g.cumsum(1).exp()  # (N, L, 1): what is left at token i of what stood there before the chunk
    # (N, L, L): what is left at token i of what token j wrote. The sums are of what lies between: differences of sums
    # from the start would lose the small ones behind the large.
    between = g.expand(-1, -1, g.shape[1]).tril(-1).cumsum(1).exp().tril()
    keys = k.transpose(1, 2)
    equations = beta * (k @ keys) * between  # (N, L, L), read below the diagonal only, with 1 on it
    wanted = beta * torch.baddbmm(v, k * since, memory, alpha=-1)  # (N, L, Dv)
    written = torch.linalg.solve_triangular(equations, wanted, upper=False, unitriangular=True)  # d (N, L, Dv)
    out = torch.baddbmm(((q @ keys) * between) @ written, q * since, memory)
    return out, torch.baddbmm(memory * since[:, -1:], keys * between[:, -1:], written)
