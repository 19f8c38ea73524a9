"""What a row of a batch takes in memory, worked out from the model's shape.

Counted is the model as `load` makes it for a CPU (`qwenlab.fast`), run by Engine: at each moment of
a pass, the tensors that are alive in the layer at work. A layer frees its own before the next one
runs, so only the worst moment of one layer counts, and the logits come when all layers are done.
An invariant run is not planned: its passes have a fixed number of rows.
Tests hold the sums against the bytes that PyTorch's profiler counts.

On a GPU, and with `load(fast=False)`, the plain code runs. Its weights, state and logits are the
same, and a prefill's activations differ by some 10 %. A decode step on a CPU takes more there: as
much again as the row's keys and values in one layer, once for each query head that shares them.

Left out, because it doesn't grow with the rows or is small: the tables of RoPE (3 * rotary_dim
numbers per position, once); what kernels keep for themselves (attention's about 150 KiB per thread,
a bfloat16 product's tens of KiB); up to 64 MiB while `fast.linear` times its kernels on a new
number of rows; and the copy of a slot for each shared prefix. A GPU's caching allocator holds more
than what it is asked for.
"""

from dataclasses import dataclass

import torch

from qwenlab.model.config import Config
from qwenlab.model.deltanet import CHUNK_SIZE

CHUNK = 256  # prompt tokens that a slot prefills per step, unless the caller says otherwise
INDEX_BYTES = 8  # an int64


@dataclass(frozen=True)
class RowBytes:
    """Bytes of one row. `state`: what its slot holds in the end, the room that growth left unused
    included; `growth`: the old keys and values beside it, while they are copied; `prefill` and
    `decode`: activations of the largest such pass; `logits`: those of its last token, with what
    sampling derives from them. `peak`: all that is held at the worst moment; it is less than the
    sum, because growth, a pass and sampling come one after another."""

    state: int
    growth: int
    prefill: int
    decode: int
    logits: int
    peak: int


def bytes_per_row(
    config: Config,
    dtype: torch.dtype,
    context: int,
    prompt_tokens: int | None = None,
    *,
    chunk: int = CHUNK,
    grows: bool = True,
    draws: bool = False,
) -> RowBytes:
    """What a row takes whose prompt and answer have `context` tokens together.

    prompt_tokens: how many of them are the prompt, if all rows are alike and start together; the
    figures are then those of the run. None: prompts of any length come and go, and the figures are
    a bound: the keys and values are doubled when they hold all tokens but the last, and a whole
    chunk is prefilled at the end of the context.

    chunk: tokens that a slot prefills per step. grows: False for a state of fixed capacity. draws:
    whether tokens are drawn rather than the most probable taken.
    """
    per_token = cache_bytes_per_token(config, dtype)
    fixed = recurrent_bytes(config, dtype) + INDEX_BYTES  # and the slot's length
    logits = logits_bytes(config, draws)
    held = context - 1  # the last token is sampled, but never stored
    if prompt_tokens is None:
        old = held * per_token if grows else 0
        state = fixed + (2 * old if grows else context * per_token)
        prefill = pass_bytes(config, dtype, min(chunk, held), held, ragged=True)
        decode = pass_bytes(config, dtype, 1, held, ragged=True)
        return RowBytes(
            state, old, prefill, decode, logits, state + max(old, prefill, decode, logits)
        )
    capacity = 0 if grows else context
    growth = 0
    peak = fixed
    prefill = 0
    decode = 0
    ends = [*range(chunk, prompt_tokens, chunk), prompt_tokens]
    start = 0
    for end in ends:
        grown = grown_to(capacity, end)
        if grown > capacity:
            growth = max(growth, capacity)
            peak = max(peak, fixed + (capacity + grown) * per_token)
        capacity = grown
        activations = pass_bytes(config, dtype, end - start, end)
        prefill = max(prefill, activations)
        peak = max(peak, fixed + capacity * per_token + activations)
        start = end
    while capacity < held:
        grown = grown_to(capacity, capacity + 1)
        growth = max(growth, capacity)
        peak = max(peak, fixed + (capacity + grown) * per_token)
        capacity = grown
    if held > prompt_tokens:
        decode = pass_bytes(config, dtype, 1, held)
    state = fixed + capacity * per_token
    peak = max(peak, state + max(decode, logits))
    return RowBytes(state, growth * per_token, prefill, decode, logits, peak)


def grown_to(capacity: int, length: int) -> int:
    """Tokens that a slot has room for once it must hold `length`: `State.make_room`."""
    return capacity if length <= capacity else max(length, 2 * capacity)


# --- The state ---


def cache_bytes_per_token(config: Config, dtype: torch.dtype) -> int:
    """Keys and values of one token in all layers of full attention: 2 * layers * kv_heads *
    head_dim numbers (Shazeer, arXiv:1911.02150; grouped as in arXiv:2305.13245).

    Qwen3-0.6B in bfloat16: 2 * 28 * 8 * 128 * 2 = 114,688 bytes.
    """
    layers_full = config.layer_types.count("full_attention")
    return 2 * layers_full * config.num_key_value_heads * config.head_dim * dtype.itemsize


def recurrent_bytes(config: Config, dtype: torch.dtype) -> int:
    """conv_state and recurrent_state of one row in all layers of Gated DeltaNet (arXiv:2412.06464),
    the same however many tokens it has read.

    A conv_state has taps - 1 inputs of the short convolution, in the model's dtype; a
    recurrent_state a matrix of key_dim * value_dim per value head, in float32 at least.
    """
    layers_linear = config.layer_types.count("linear_attention")
    taps = config.linear_conv_kernel_dim
    heads = config.linear_num_value_heads
    recurrent_state = heads * config.linear_key_head_dim * config.linear_value_head_dim
    conv_state = (taps - 1) * config.conv_channels
    return layers_linear * (conv_state * dtype.itemsize + recurrent_state * precise_size(dtype))


def precise_size(dtype: torch.dtype) -> int:
    """Bytes of a number in what norms and the delta rule compute in: float32 at least."""
    return max(dtype.itemsize, 4)


# --- Logits ---


def logits_bytes(config: Config, draws: bool) -> int:
    """The logits of a row in float32, and what `engine.sampling` holds beside them.

    Greedy: their log-softmax. If tokens are drawn, the most that top-p over the whole vocabulary
    asks for: probabilities, their sums and their order.
    """
    return (40 if draws else 8) * config.vocab_size


# --- Activations ---


def pass_bytes(
    config: Config, dtype: torch.dtype, width: int, keys: int, ragged: bool = False
) -> int:
    """Activations of one row at the worst moment of a pass that reads `width` tokens, after which
    the row holds `keys` tokens.

    ragged: whether rows start the pass at different positions. Then each row has cosines and sines
    of its own, and attention needs a mask; otherwise a first piece of a prompt and a decode step
    need none.
    """
    size = dtype.itemsize
    hidden = config.hidden_size
    indices = width * (3 + config.num_key_value_heads) * INDEX_BYTES  # ids, positions, cache lines
    angles = 3 * width * config.rotary_dim * size if ragged else 0
    has_full = "full_attention" in config.layer_types
    has_mask = has_full and (ragged or 1 < width < keys)
    # Made by the first layer that needs it and kept for those behind it: once as bool, once as the
    # numbers that the kernel adds.
    mask = width * keys * (1 + size) if has_mask else 0
    logits = config.vocab_size * (size if size > 2 else size + 4)
    moments = [mask + mlp_bytes(config, dtype, width), mask + 2 * hidden * size + logits]
    if has_full:
        for moment in attention_moments(config, dtype, width, keys, has_mask):
            moments.append(mask + moment)
    if "linear_attention" in config.layer_types:
        first = config.layer_types.index("full_attention") if has_full else len(config.layer_types)
        follows = "linear_attention" in config.layer_types[first:]
        for moment in deltanet_moments(config, dtype, width):
            moments.append(moment + (mask if follows else 0))
    return indices + angles + max(moments)


def mlp_bytes(config: Config, dtype: torch.dtype, width: int) -> int:
    """The layer's input, its norm, the sum after attention and its norm; gate, up and their
    product."""
    features = 4 * config.hidden_size + 3 * config.intermediate_size
    return width * features * dtype.itemsize


def attention_moments(
    config: Config, dtype: torch.dtype, width: int, keys: int, has_mask: bool
) -> list[int]:
    """Bytes beside the mask when heads are normed, when the mask is made, and when the kernel
    runs."""
    size = dtype.itemsize
    precise = precise_size(dtype)
    query_width = config.num_attention_heads * config.head_dim
    kv_width = config.num_key_value_heads * config.head_dim
    gates = query_width if config.is_qwen3_5 else 0
    projected = query_width + gates + 2 * kv_width
    qk = query_width + kv_width
    held = width * (2 * config.hidden_size + projected) * size  # input and its norm; projections
    # q and k behind each other (moved together where gates stand between them), each number once
    # more in float32 if it isn't already, and its normed value.
    copied = qk * size if gates else 0
    converted = qk * precise if precise > size else 0
    norming = held + width * (copied + converted + qk * precise)
    held += width * qk * size
    masking = held + (width * keys * 4 if has_mask and size < 4 else 0)
    # Keys and values are repeated for the query heads that share them; a decode step groups the
    # queries instead.
    repeated = 2 * keys * query_width if width > 1 else 0
    attending = held + (repeated + width * query_width) * size
    return [norming, masking, attending]


def deltanet_moments(config: Config, dtype: torch.dtype, width: int) -> list[int]:
    """Bytes in the short convolution, in each chunk of the delta rule, when its outputs are joined,
    and in the gated norm; of a decode step in the convolution, where most is held."""
    size = dtype.itemsize
    precise = precise_size(dtype)
    heads = config.linear_num_value_heads
    key_dim = config.linear_key_head_dim
    value_dim = config.linear_value_head_dim
    taps = config.linear_conv_kernel_dim
    channels = config.conv_channels
    value_width = heads * value_dim
    # The layer's input and its norm; qkv, z, b and a.
    held = width * (2 * config.hidden_size + channels + value_width + 2 * heads) * size
    held += 2 * width * heads * precise  # beta and the decay
    inputs = (taps - 1 + width) * channels  # of the convolution, with the row's earlier ones
    held += inputs * size
    converted = inputs * precise if precise > size else 0
    if width == 1:
        return [held + converted + (taps + 1) * channels * precise]
    mixed = width * channels * precise
    convolving = held + converted + 2 * mixed
    qk = 2 * width * heads * key_dim * precise
    held += mixed + qk  # v is a part of `mixed`
    out = width * value_width * precise
    gating = held + 4 * out  # the rule's output, the gate, their product, in order
    ordered = qk + out + 2 * width * heads * precise  # q, k, v, decay and beta, head by head
    memory = heads * key_dim * value_dim * precise  # a recurrent_state
    joining = held + ordered + 2 * out + memory
    moments = [convolving, joining, gating]
    for start in range(0, width, CHUNK_SIZE):
        length = min(CHUNK_SIZE, width - start)
        square = heads * length * length * precise
        values = heads * length * value_dim * precise
        keys = heads * length * key_dim * precise
        outputs = start * value_width * precise  # of the chunks before
        before = memory if start else 0  # the first chunk reads the state itself
        solving = max(4 * square + 3 * values, 3 * square + 4 * values, 2 * square + 5 * values)
        updating = 2 * square + 3 * values + 2 * memory + max(keys, memory)
        moments.append(held + ordered + outputs + before + max(solving, updating))
    return moments
