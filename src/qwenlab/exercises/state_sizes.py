"""The exercise of lesson 09 on sizes: state-bytes."""

import random

from qwenlab.teach.checking import exercise

# --- state-bytes: (config, tokens, size) -> bytes of one row ---


def _parts(config, tokens):
    """How many numbers a row's caches, windows and memories hold."""
    kinds = config["layer_types"]
    full, linear = kinds.count("full_attention"), kinds.count("linear_attention")
    keys, values = (config[f"linear_num_{x}_heads"] * config[f"linear_{x}_head_dim"] for x in ("key", "value"))
    cache = full * 2 * config["num_key_value_heads"] * config["head_dim"] * tokens
    windows = linear * (config["linear_conv_kernel_dim"] - 1) * (2 * keys + values)
    return cache, windows, linear * values * config["linear_key_head_dim"]


def state_bytes(config, tokens, size):
    """Keys, values and windows take `size` bytes a number, memories 4."""
    cache, windows, memories = _parts(config, tokens)
    return size * (cache + windows) + 4 * memories


def _shapes():
    sizes = dict(num_attention_heads=6, num_key_value_heads=2, head_dim=8, linear_conv_kernel_dim=4)
    sizes |= dict(linear_num_key_heads=2, linear_num_value_heads=6, linear_key_head_dim=5, linear_value_head_dim=7)
    kinds = ["linear_attention"] * 3 + ["full_attention"]
    yield "four layers, 10 tokens", ({**sizes, "layer_types": kinds}, 10, 2)
    yield "every second layer full", ({**sizes, "layer_types": ["full_attention", "linear_attention"] * 2}, 7, 2)
    yield "eight layers", ({**sizes, "layer_types": kinds * 2}, 9, 2)
    yield "no token yet", ({**sizes, "layer_types": kinds}, 0, 4)
    draw = random.Random(6)
    for _ in range(20):
        shape = {name: draw.randint(2, 9) for name in sizes}
        shape["linear_num_value_heads"] = 2 * shape["linear_num_key_heads"]
        mixed = draw.choices(["linear_attention", "full_attention"], k=draw.randint(2, 9))
        yield "random shapes", ({**shape, "layer_types": mixed}, draw.randint(0, 99), draw.choice([2, 4]))


def _counted(numbers):
    """A mistaken count: numbers(cache, windows, memories, config, tokens, size)."""
    return lambda config, tokens, size: numbers(*_parts(config, tokens), config, tokens, size)


def _as_if(change):
    """The right count for a config with the entries that change(config) gives."""
    return lambda config, tokens, size: state_bytes({**config, **change(config)}, tokens, size)


def _one_in_four(config):
    count = len(config["layer_types"])
    return {"layer_types": [_FULL] * (count // 4) + ["linear_attention"] * (count - count // 4)}


def _all_full(config):
    return {**config, "layer_types": [_FULL] * len(config["layer_types"])}


def _with_channels(keys, values):
    """Counts so many times the keys and values among the window's channels."""

    def numbers(cache, windows, memories, of, tokens, size):
        k, v = (of[f"linear_num_{x}_heads"] * of[f"linear_{x}_head_dim"] for x in ("key", "value"))
        return size * (cache + _times(windows, 2 * k + v, keys * k + values * v)) + 4 * memories

    return _counted(numbers)


def _times(part, a, b):
    """`part` with the count `b` in place of the count `a`."""
    return part * b // a


_CONV, _FULL = "linear_conv_kernel_dim", "full_attention"
_CHANNELS = "the window's channels: queries AND keys (as wide as each other) and values."
_THREE = "add three parts: caches of full layers, windows and memories of linear ones."

exercise(
    "state-bytes",
    state_bytes,
    results=("bytes",),
    cases=_shapes,
    mistakes=(
        (_counted(lambda c, w, m, of, t, s: s * (c + w + m)), "memories are float32, 4 bytes, whatever `size` is."),
        (_counted(lambda c, w, m, of, t, s: c + w + m), "you counted numbers. Each of them takes bytes."),
        (_counted(lambda c, w, m, of, t, s: s * c + 4 * m), "the windows are missing."),
        (_counted(lambda c, w, m, of, t, s: s * (c + w)), "the memories are missing: a table for each value head."),
        (_counted(lambda c, w, m, of, t, s: s * w + 4 * m), "full attention layers keep keys and values as before."),
        (_counted(lambda c, w, m, of, t, s: s * (c // 2 + w) + 4 * m), "keys and values: one of them is missing."),
        (
            _counted(lambda c, w, m, of, t, s: s * (_parts(_all_full(of), t)[0] + w) + 4 * m),
            "only the full attention layers keep keys and values. You counted every layer.",
        ),
        (
            _counted(lambda c, w, m, of, t, s: s * (c + _times(w, of[_CONV] - 1, of[_CONV])) + 4 * m),
            "the window holds one input fewer than the convolution has taps: the last tap is for the token itself.",
        ),
        (
            _counted(lambda c, w, m, of, t, s: s * (c + w) + 4 * m // of["linear_num_value_heads"]),
            "one table a layer. There is one for each value head.",
        ),
        (
            _counted(
                lambda c, w, m, of, t, s: (
                    s * (c + w) + 4 * m * of["linear_num_key_heads"] // of["linear_num_value_heads"]
                )
            ),
            "tables are counted by the value heads. Key heads are shared among them.",
        ),
        (_counted(lambda c, w, m, of, t, s: s * (c + w) + 4 * m * t), "a table does not grow with the tokens."),
        (_as_if(_one_in_four), "count the kinds in layer_types; not every model has one full layer in four."),
        (
            _as_if(lambda of: {"num_key_value_heads": of["num_attention_heads"]}),
            "caches are counted by num_key_value_heads, not by the query heads.",
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
    rules=(("bytes", lambda _: "print your three parts by themselves and compare each with the text."),),
)
