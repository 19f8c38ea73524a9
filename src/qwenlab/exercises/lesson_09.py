"""The exercises of lesson 09: delta-step and state-bytes."""

import random
from collections.abc import Callable

import torch
from torch import Tensor

from qwenlab.exercises import Cases, Exercise

EXERCISES: dict[str, Exercise] = {}

# --- delta-step: (q, k, v, decay, beta, memory) -> memory, output (N, Dv) ---
#     q, k (N, Dk); v (N, Dv); decay, beta (N,); memory (N, Dk, Dv)


def _delta(
    ask: Callable = lambda old, faded: faded,
    known: int = 1,
    fade_late: bool = False,
    read: Callable = lambda old, faded, new: new,
) -> Callable:
    """The rule, or a mistaken one.

    ask and read choose the table that the key asks and that the query reads; known is the factor
    with which the stored value is subtracted.
    """

    def step(
        q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, memory: Tensor
    ) -> tuple[Tensor, Tensor]:
        decay = decay[:, None, None]
        beta = beta[:, None, None]
        faded = memory if fade_late else decay * memory
        gap = beta * (v[:, None] - known * k[:, None] @ ask(memory, faded))  # (N, 1, Dv)
        new = faded + k[:, :, None] @ gap
        if fade_late:
            new = decay * new
        return new, (q[:, None] @ read(memory, faded, new))[:, 0]

    return step


delta_step = _delta()


def _heads(
    draw: random.Random, count: int, key: int, value: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    numbers = torch.Generator().manual_seed(draw.randrange(10**6))
    q, k = torch.randn(2, count, key, generator=numbers)
    v = torch.randn(count, value, generator=numbers)
    memory = torch.randn(count, key, value, generator=numbers)
    decay, beta = 0.2 + 0.6 * torch.rand(2, count, generator=numbers)
    q = q / q.norm(dim=-1, keepdim=True)
    k = k / k.norm(dim=-1, keepdim=True)
    return q, k, v, decay, beta, memory


def _tables() -> Cases:
    # Not one head first: what lacks the dimension of heads would give numbers, not an error.
    yield "two heads", _heads(random.Random(2), 2, 3, 3)
    yield "one head", _heads(random.Random(1), 1, 3, 3)
    yield "keys shorter than values", _heads(random.Random(3), 2, 2, 4)
    q, k, v, decay, beta, memory = _heads(random.Random(4), 2, 4, 3)
    yield "an empty table", (q, k, v, decay, beta, torch.zeros_like(memory))
    yield "a beta of 0", (q, k, v, decay, torch.zeros_like(beta), memory)
    draw = random.Random(5)
    for _ in range(20):
        count = draw.randint(1, 5)
        yield "random heads", _heads(draw, count, draw.randint(1, 6), draw.randint(1, 6))


def _with(change: Callable) -> Callable:
    return lambda *given: delta_step(*change(*given))


def _transposed(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, memory: Tensor
) -> tuple[Tensor, Tensor]:
    """Asks and writes as if rows of the table were the values."""
    if memory.shape[1] != memory.shape[2]:
        return memory, v
    new, output = delta_step(q, k, v, decay, beta, memory.mT)
    return new.mT.contiguous(), output


def _outer_product_transposed(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, memory: Tensor
) -> tuple[Tensor, Tensor]:
    """Asks as it should, but writes the outer product of the value and the key."""
    if memory.shape[1] != memory.shape[2]:
        return memory, v
    faded = decay[:, None, None] * memory
    new = faded + (delta_step(q, k, v, decay, beta, memory)[0] - faded).mT
    return new, (q[:, None] @ new)[:, 0]


def _stored_faded(table: int, asked: int) -> Callable:
    """Fades the table that is kept, and the one that is asked, this many times."""

    def step(
        q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, memory: Tensor
    ) -> tuple[Tensor, Tensor]:
        decay = decay[:, None, None]
        stored = k[:, None] @ (decay**asked * memory)
        new = decay**table * memory + k[:, :, None] @ (beta[:, None, None] * (v[:, None] - stored))
        return new, (q[:, None] @ new)[:, 0]

    return step


def _whole_table_mixed(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, memory: Tensor
) -> tuple[Tensor, Tensor]:
    """A moving average of tables: beta of this token's, the rest of the old one."""
    beta = beta[:, None, None]
    new = (1 - beta) * decay[:, None, None] * memory + beta * k[:, :, None] * v[:, None]
    return new, (q[:, None] @ new)[:, 0]


def _stored_value(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, memory: Tensor
) -> tuple[Tensor, Tensor]:
    stored = k[:, None] @ (decay[:, None, None] * memory)
    return delta_step(q, k, v, decay, beta, memory)[0], stored[:, 0]


def _both_in_shape(memory: Tensor) -> str | None:
    if memory.ndim != 3:
        return "memory is (N, Dk, Dv): one table for each head, and it comes first."


EXERCISES["delta-step"] = Exercise(
    delta_step,
    results=("memory", "output"),
    cases=_tables,
    mistakes=(
        (
            _with(lambda q, k, v, d, b, m: (q, k, v, torch.ones_like(d), b, m)),
            "nothing fades: decay is not used.",
        ),
        (
            _with(lambda q, k, v, d, b, m: (q, k, v, d, torch.ones_like(b), m)),
            "everything is written in full: beta is not used.",
        ),
        (
            _with(lambda q, k, v, d, b, m: (q, k, v, d.exp(), b, m)),
            "decay is given as such, not as its logarithm.",
        ),
        (
            _with(lambda q, k, v, d, b, m: (k, k, v, d, b, m)),
            "the key asks before the correction, but it is the query that reads after it.",
        ),
        (
            _delta(known=0),
            "you add the value whatever is stored already. Ask first, then write the difference.",
        ),
        (_delta(known=-1), "the wrong sign: write the value minus what is stored."),
        (
            _delta(ask=lambda old, faded: old),
            "you asked the table before it had faded. Fade first, then ask.",
        ),
        (
            _stored_faded(table=0, asked=1),
            "what is stored has faded in your gap, but not in the table that you keep.",
        ),
        (
            _stored_faded(table=1, asked=2),
            "the decay acts twice on what is stored: ask the faded table and leave it at that.",
        ),
        (
            _with(lambda q, k, v, d, b, m: (q, k, v, 1 - d, b, m)),
            "decay is the part that stays, not the part that goes.",
        ),
        (
            _whole_table_mixed,
            "beta fades the whole table here. Only what stands under this key gives way to v.",
        ),
        (
            _delta(fade_late=True),
            "you faded last, so the value just written has faded too. Fade first.",
        ),
        (
            _delta(read=lambda old, faded, new: faded),
            "you read before writing. The query sees this token as well.",
        ),
        (
            _delta(read=lambda old, faded, new: old),
            "you read the table you were given, not the new one.",
        ),
        (
            _stored_value,
            "this is what was stored under the key before the correction. Ask again, with the "
            "query.",
        ),
        (
            _with(lambda q, k, v, d, b, m: (q, k, b[:, None] * v, d, torch.ones_like(b), m)),
            "beta scales the whole difference, v - stored.",
        ),
        (
            _with(lambda q, k, v, d, b, m: (q / q.shape[-1] ** 0.5, k, v, d, b, m)),
            "use the query as given; the layer has scaled it already.",
        ),
        (
            _outer_product_transposed,
            "the outer product is the wrong way round: k[:, :, None] * x[:, None, :].",
        ),
        (
            _transposed,
            "transposed: a table has one row per number of the key, one column per number of "
            "the value.",
        ),
        (
            lambda *given: delta_step(*given)[::-1],
            "the two values are swapped: memory comes first, then the output.",
        ),
    ),
    rules=(("memory", _both_in_shape),),
)

# --- state-bytes: (config, tokens, size) -> bytes of one row ---


_FULL = "full_attention"
_LINEAR = "linear_attention"
_CONV = "linear_conv_kernel_dim"


def _widths(config: dict) -> tuple[int, int]:
    """How many numbers the keys of all heads hold, and the values."""
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    values = config["linear_num_value_heads"] * config["linear_value_head_dim"]
    return keys, values


def _parts(config: dict, tokens: int) -> tuple[int, int, int]:
    """How many numbers a row's caches, windows and memories hold."""
    kinds = config["layer_types"]
    full = kinds.count(_FULL)
    linear = kinds.count(_LINEAR)
    keys, values = _widths(config)
    cache = full * 2 * config["num_key_value_heads"] * config["head_dim"] * tokens
    windows = linear * (config[_CONV] - 1) * (2 * keys + values)
    return cache, windows, linear * values * config["linear_key_head_dim"]


def state_bytes(config: dict, tokens: int, size: int) -> int:
    """Keys, values and windows take `size` bytes a number, memories 4."""
    cache, windows, memories = _parts(config, tokens)
    return size * (cache + windows) + 4 * memories


def _shapes() -> Cases:
    sizes = {
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "linear_conv_kernel_dim": 4,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 6,
        "linear_key_head_dim": 5,
        "linear_value_head_dim": 7,
    }
    kinds = [_LINEAR] * 3 + [_FULL]
    yield "four layers, 10 tokens", ({**sizes, "layer_types": kinds}, 10, 2)
    yield "every second layer full", ({**sizes, "layer_types": [_FULL, _LINEAR] * 2}, 7, 2)
    yield "eight layers", ({**sizes, "layer_types": kinds * 2}, 9, 2)
    yield "no token yet", ({**sizes, "layer_types": kinds}, 0, 4)
    draw = random.Random(6)
    for _ in range(20):
        shape = {name: draw.randint(2, 9) for name in sizes}
        shape["linear_num_value_heads"] = 2 * shape["linear_num_key_heads"]
        shape["layer_types"] = draw.choices([_LINEAR, _FULL], k=draw.randint(2, 9))
        yield "random shapes", (shape, draw.randint(0, 99), draw.choice([2, 4]))


def _counted(numbers: Callable) -> Callable:
    """A mistaken count: numbers(cache, windows, memories, config, tokens, size)."""
    return lambda config, tokens, size: numbers(*_parts(config, tokens), config, tokens, size)


def _as_if(change: Callable) -> Callable:
    """The right count for a config with the entries of change(config) replaced."""
    return lambda config, tokens, size: state_bytes({**config, **change(config)}, tokens, size)


def _one_in_four(config: dict) -> dict:
    count = len(config["layer_types"])
    return {"layer_types": [_FULL] * (count // 4) + [_LINEAR] * (count - count // 4)}


def _all_full(config: dict) -> dict:
    return {**config, "layer_types": [_FULL] * len(config["layer_types"])}


def _with_channels(keys: int, values: int) -> Callable:
    """Counts the keys and values this many times among the window's channels."""

    def numbers(cache: int, windows: int, memories: int, of: dict, tokens: int, size: int) -> int:
        k, v = _widths(of)
        return size * (cache + _times(windows, 2 * k + v, keys * k + values * v)) + 4 * memories

    return _counted(numbers)


def _times(part: int, a: int, b: int) -> int:
    """`part` with the count `b` in place of the count `a`."""
    return part * b // a


def _with_tables(shape: Callable) -> Callable:
    """Counts shape(config) numbers in the tables of a linear layer."""

    def numbers(cache: int, windows: int, memories: int, of: dict, tokens: int, size: int) -> int:
        return size * (cache + windows) + 4 * of["layer_types"].count(_LINEAR) * shape(of)

    return _counted(numbers)


def _both_in_every_layer(config: dict, tokens: int, size: int) -> int:
    """As if each layer were of both kinds."""
    count = len(config["layer_types"])
    return state_bytes({**config, "layer_types": [_FULL, _LINEAR] * count}, tokens, size)


_CHANNELS = "the window's channels: queries AND keys (as wide as each other) and values."
_THREE = "add three parts: caches of full layers, windows and memories of linear ones."

EXERCISES["state-bytes"] = Exercise(
    state_bytes,
    results=("bytes",),
    cases=_shapes,
    mistakes=(
        (
            _counted(lambda c, w, m, of, t, s: s * (c + w + m)),
            "memories are float32, 4 bytes, whatever `size` is.",
        ),
        (
            _counted(lambda c, w, m, of, t, s: c + w + m),
            "you counted numbers. Each of them takes `size` or 4 bytes.",
        ),
        (
            _counted(lambda c, w, m, of, t, s: c + w + 4 * m),
            "`size` is not used: keys, values and windows take that many bytes a number.",
        ),
        (
            _counted(
                lambda c, w, m, of, t, s: (
                    s * (c + w // (of[_CONV] - 1) * min(t, of[_CONV] - 1)) + 4 * m
                )
            ),
            "a window is as large before the first token as after the last: it begins as zeros.",
        ),
        (_counted(lambda c, w, m, of, t, s: s * c + 4 * m), "the windows are missing."),
        (
            _counted(lambda c, w, m, of, t, s: s * (c + w)),
            "the memories are missing: a table for each value head.",
        ),
        (
            _counted(lambda c, w, m, of, t, s: s * w + 4 * m),
            "full attention layers keep keys and values as before.",
        ),
        (
            _counted(lambda c, w, m, of, t, s: s * (c // 2 + w) + 4 * m),
            "keys or values: one of them is missing.",
        ),
        (
            _counted(lambda c, w, m, of, t, s: s * (_parts(_all_full(of), t)[0] + w) + 4 * m),
            "only the full attention layers keep keys and values. You counted every layer.",
        ),
        (
            _counted(
                lambda c, w, m, of, t, s: s * (c + _times(w, of[_CONV] - 1, of[_CONV])) + 4 * m
            ),
            "the window holds one input fewer than the convolution has taps: the last tap is "
            "for the token itself.",
        ),
        (
            _counted(lambda c, w, m, of, t, s: s * (c + w) + 4 * m // of["linear_num_value_heads"]),
            "you counted one table per layer. There is one for each value head.",
        ),
        (
            _counted(
                lambda c, w, m, of, t, s: (
                    s * (c + w) + 4 * m * of["linear_num_key_heads"] // of["linear_num_value_heads"]
                )
            ),
            "there is one table per value head. The key heads are shared among them.",
        ),
        (
            _counted(lambda c, w, m, of, t, s: s * (c + w) + 4 * m * t),
            "a table does not grow with the number of tokens.",
        ),
        (
            _with_tables(lambda of: _widths(of)[0] * _widths(of)[1]),
            "a table is as large as ONE head's key times ONE head's value.",
        ),
        (
            _with_tables(lambda of: of["linear_num_value_heads"] * of["linear_key_head_dim"] ** 2),
            "a table has a row for each number of a key, and a column for each number of a value.",
        ),
        (
            _with_tables(lambda of: of["linear_num_value_heads"] * of["head_dim"] ** 2),
            "head_dim is full attention's. The linear layers have two sizes of their own.",
        ),
        (
            _both_in_every_layer,
            "a layer is of one kind: a full one keeps keys and values, a linear one a window and "
            "tables.",
        ),
        (
            _as_if(_one_in_four),
            "count the kinds in layer_types: not every model has one full layer in four.",
        ),
        (
            _as_if(lambda of: {"num_key_value_heads": of["num_attention_heads"]}),
            "a cache has num_key_value_heads heads, not as many as there are query heads.",
        ),
        *((_with_channels(*counts), _CHANNELS) for counts in [(1, 1), (1, 2), (2, 2)]),
        (
            _counted(lambda c, w, m, of, t, s: s * c + 4 * (w + m)),
            "only the memories are float32; the windows take `size`.",
        ),
        (_counted(lambda c, w, m, of, t, s: s * c), _THREE),
        (_counted(lambda c, w, m, of, t, s: s * w), _THREE),
        (_counted(lambda c, w, m, of, t, s: 4 * m), _THREE),
    ),
    rules=(
        ("bytes", lambda _: "print your three parts separately and compare each with the text."),
    ),
)
