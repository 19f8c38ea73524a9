"""The exercises of lesson 01: bytes-per-step and batch-where-it-bends."""

import math
import random
from collections.abc import Callable

from qwenlab.exercises import Cases, Exercise

EXERCISES: dict[str, Exercise] = {}

# --- bytes-per-step: (config, rows, context, size) -> bytes that one decode step reads ---


def bytes_per_step(config: dict, rows: int, context: int, size: int) -> int:
    """All matrices once, keys and values once per row.

    config: the entries of config.json; size: bytes per number.
    """
    layers, head, cached = _parts(config, context)
    return size * (layers + head + rows * cached)


def _parts(config: dict, context: int) -> tuple[int, int, int]:
    """How many numbers the layers' matrices hold, the head's, and one row's keys and values."""
    layers = config["num_hidden_layers"]
    hidden = config["hidden_size"]
    query = config["num_attention_heads"] * config["head_dim"]
    shared = config["num_key_value_heads"] * config["head_dim"]
    attention = 2 * hidden * query + 2 * hidden * shared  # q and o, k and v
    mlp = 3 * hidden * config["intermediate_size"]
    cached = 2 * layers * shared * context
    return layers * (attention + mlp), config["vocab_size"] * hidden, cached


def _shapes() -> Cases:
    shape = dict(vocab_size=10, hidden_size=12, intermediate_size=20, num_hidden_layers=3)
    shape |= dict(num_attention_heads=4, num_key_value_heads=2, head_dim=4)
    yield "one row without a context", (shape, 1, 0, 4)
    yield "one row with a context", (shape, 1, 5, 4)
    yield "four rows without a context", (shape, 4, 0, 2)
    yield "four rows with a context", (shape, 4, 5, 2)
    draw = random.Random(1)
    for _ in range(20):
        shape = {name: draw.randint(2, 40) for name in shape}
        shape["num_attention_heads"] = 2 * shape["num_key_value_heads"]
        yield (
            "random shapes",
            (shape, draw.randint(1, 64), draw.randint(0, 99), draw.choice([2, 4])),
        )


def _counted(numbers: Callable) -> Callable:
    """A mistaken count: numbers(layers, head, cached, rows, config), times the size."""
    return lambda config, rows, context, size: (
        size * numbers(*_parts(config, context), rows, config)
    )


def _shaped(change: Callable) -> Callable:
    """The right count for a shape read wrongly: change(config) has the entries read instead."""
    return lambda config, *rest: bytes_per_step({**config, **change(config)}, *rest)


def _every_head(cached: int, config: dict) -> int:
    return cached * config["num_attention_heads"] // config["num_key_value_heads"]


def _hidden_wide(cached: int, config: dict) -> int:
    return cached * config["hidden_size"] // (config["num_key_value_heads"] * config["head_dim"])


def _wide_projections(config: dict, rows: int, context: int, size: int) -> int:
    layers, head, _ = _parts({**config, "num_key_value_heads": config["num_attention_heads"]}, 0)
    return size * (layers + head + rows * _parts(config, context)[2])


def _square(config: dict, rows: int, context: int, size: int) -> int:
    """Four attention matrices of hidden_size x hidden_size."""
    hidden = config["hidden_size"]
    layer = 4 * hidden * hidden + 3 * hidden * config["intermediate_size"]
    _, head, cached = _parts(config, context)
    return size * (config["num_hidden_layers"] * layer + head + rows * cached)


_KEY_HEADS_HINT = (
    "you gave keys and values as many heads as queries. Their matrices are hidden_size by "
    "num_key_value_heads * head_dim."
)

EXERCISES["bytes-per-step"] = Exercise(
    bytes_per_step,
    results=("bytes",),
    cases=_shapes,
    mistakes=(
        (
            lambda *given: bytes_per_step(*given[:3], 1),
            "you counted numbers. Each of them takes `size` bytes.",
        ),
        (
            _counted(lambda w, h, c, rows, _: rows * (w + h + c)),
            "you read the weights once per row. One read serves all rows: that is what a batch "
            "shares.",
        ),
        (
            _counted(lambda w, h, c, rows, _: w + h),
            "keys and values are missing: a step reads those of every row.",
        ),
        (
            _counted(lambda w, h, c, rows, _: w + h + rows * c // 2),
            "a step reads both keys and values. One of them is missing.",
        ),
        (
            _counted(lambda w, h, c, rows, _: w + h + c),
            "each row has keys and values of its own, so they are read once per row.",
        ),
        (
            _counted(lambda w, h, c, rows, of: w + h + rows * _every_head(c, of)),
            "you kept keys and values for every query head. There are only num_key_value_heads "
            "of them.",
        ),
        (_shaped(lambda of: {"num_key_value_heads": of["num_attention_heads"]}), _KEY_HEADS_HINT),
        (_wide_projections, _KEY_HEADS_HINT),
        (
            _square,
            "the attention's matrices are not square. One side is hidden_size, the other is "
            "head_dim times the number of heads.",
        ),
        (
            _shaped(lambda of: {"head_dim": of["hidden_size"] // of["num_attention_heads"]}),
            "head_dim is an entry of its own: in Qwen3 it is not hidden_size // "
            "num_attention_heads.",
        ),
        (
            _counted(lambda w, h, c, rows, of: w + h + rows * c // of["num_hidden_layers"]),
            "keys and values of one layer only. Each layer has its own.",
        ),
        (
            _counted(lambda w, h, c, rows, of: w + h + rows * _hidden_wide(c, of)),
            "you kept keys and values as wide as hidden_size. Each token keeps num_key_value_heads "
            "* head_dim numbers of either.",
        ),
        (
            _counted(lambda w, h, c, rows, of: w // of["num_hidden_layers"] + h + rows * c),
            "the matrices of one layer only. Each layer has its own.",
        ),
        (
            _counted(lambda w, h, c, rows, of: w + of["num_hidden_layers"] * h + rows * c),
            "you counted the head in every layer. It comes once, after the last of them.",
        ),
        (
            _counted(lambda w, h, c, rows, _: w + rows * c),
            "the head is missing: vocab_size x hidden_size numbers.",
        ),
        (
            _counted(lambda w, h, c, rows, _: w + 2 * h + rows * c),
            "each row looks up a single line of the embedding, not the whole matrix.",
        ),
    ),
    rules=(
        (
            "bytes",
            lambda _: (
                "count the matrices of a layer: q, k, v, o, gate, up, down, each with the shape "
                "that config gives it. Then head and cache."
            ),
        ),
    ),
)

# --- batch-where-it-bends: (weights, cached, size, bandwidth, flops) -> rows, a float ---


def bend(
    weights: int, cached: int, size: int, bandwidth: float, flops: float, operations: int = 2
) -> float:
    """Rows at which arithmetic takes as long as reading; math.inf where it never does."""
    # Each further row adds its own arithmetic, less the time to read its keys and values: by that
    # much arithmetic catches up with reading.
    gained = operations * weights / flops - size * cached / bandwidth
    return size * weights / bandwidth / gained if gained > 0 else math.inf


def _machines() -> Cases:
    """All quantities are powers of two, or few of them, so that each bend is a whole number
    without rounding: who rounds to whole rows is right too."""
    yield "weights only", (1024, 0, 2, 128.0, 8192.0)
    yield "keys and values too", (1024, 64, 4, 128.0, 512.0)
    yield "lines that never cross", (1024, 64, 4, 128.0, 8192.0)
    yield "parallel lines", (1024, 64, 4, 128.0, 1024.0)
    draw = random.Random(4)
    for _ in range(20):
        weights = 2 ** draw.randint(20, 30)
        bandwidth = 2.0 ** draw.randint(34, 41)
        intensity = draw.randint(1, 8)  # 2 ** intensity operations a byte
        size = draw.choice([2, 4])
        # In units of 1 / bandwidth seconds: a row's arithmetic, and by how much it exceeds the time
        # to read the row's keys and values.
        arithmetic = 2 * weights // 2**intensity
        excess = 2 ** draw.randint(4, arithmetic.bit_length() - 1)
        cached = (arithmetic - excess) // size
        yield "random machines", (weights, cached, size, bandwidth, bandwidth * 2**intensity)


def _searched(*given: float) -> float:
    rows = bend(*given)
    return rows if rows <= 100 else math.inf


def _signed(weights: int, cached: int, size: int, bandwidth: float, flops: float) -> float:
    gained = 2 * weights / flops - size * cached / bandwidth
    return size * weights / bandwidth / gained if gained else math.inf


EXERCISES["batch-where-it-bends"] = Exercise(
    bend,
    results=("rows",),
    cases=_machines,
    mistakes=(
        (
            _searched,
            "the lines do meet, at more rows than you tried. Solve the equation for the rows.",
        ),
        (
            lambda *given: bend(*given, operations=1),
            "a weight costs two operations: a multiplication and an addition.",
        ),
        (
            lambda w, c, size, *rates: bend(w, c, 1, *rates),
            "bandwidth counts bytes, and a number takes `size` of them.",
        ),
        (
            lambda w, c, size, *rates: bend(w, c / size, size, *rates),
            "keys and values take `size` bytes a number too.",
        ),
        (
            lambda w, c, *rest: bend(w, 0, *rest),
            "every row also reads its own keys and values, `cached` numbers.",
        ),
        (
            lambda w, c, s, read, flops: s * (w + c) / read / (2 * w / flops),
            "keys and values grow with the number of rows: each row reads its own.",
        ),
        (
            lambda w, c, s, read, flops: s * w / read / (2 * w / flops + s * c / read),
            "both times grow with the rows, so subtract what a row adds to reading from what "
            "it adds to arithmetic.",
        ),
        (lambda *given: 1 / bend(*given), "inverted: this is one over the right answer."),
        (_signed, "a negative number of rows: the lines never cross. Return math.inf there."),
    ),
)
