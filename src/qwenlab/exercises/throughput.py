"""The exercises of lesson 01: bytes-per-step and batch-where-it-bends."""

import math
import random

from qwenlab.teach.checking import exercise

# --- bytes-per-step: (config, rows, context, size) -> bytes that one decode step reads ---


def bytes_per_step(config, rows, context, size):
    """All matrices once, keys and values once a row. config: a dict of config.json's; size: bytes a number."""
    layers, head, cached = _parts(config, context)
    return size * (layers + head + rows * cached)


def _parts(config, context):
    """How many numbers the layers' matrices hold, the head's, and one row's keys and values."""
    layers, hidden, head_dim = config["num_hidden_layers"], config["hidden_size"], config["head_dim"]
    query, shared = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    one = 2 * hidden * query + 2 * hidden * shared + 3 * hidden * config["intermediate_size"]  # q o, k v, MLP
    return layers * one, config["vocab_size"] * hidden, 2 * layers * shared * context


def _shapes():
    shape = dict(vocab_size=10, hidden_size=8, intermediate_size=12, num_hidden_layers=3)
    shape |= dict(num_attention_heads=4, num_key_value_heads=2, head_dim=4)
    yield "one row without a context", (shape, 1, 0, 4)
    yield "one row with a context", (shape, 1, 5, 4)
    yield "four rows without a context", (shape, 4, 0, 2)
    yield "four rows with a context", (shape, 4, 5, 2)
    draw = random.Random(1)
    for _ in range(20):
        shape = {name: draw.randint(2, 40) for name in shape}
        shape["num_attention_heads"] = 2 * shape["num_key_value_heads"]
        yield "random shapes", (shape, draw.randint(1, 64), draw.randint(0, 99), draw.choice([2, 4]))


def _counted(numbers):
    """A mistaken count: numbers(layers, head, cached, rows, config), times the size."""
    return lambda config, rows, context, size: size * numbers(*_parts(config, context), rows, config)


def _every_head(cached, config):
    return cached * config["num_attention_heads"] // config["num_key_value_heads"]


exercise(
    "bytes-per-step",
    bytes_per_step,
    results=("bytes",),
    cases=_shapes,
    mistakes=(
        (lambda *given: bytes_per_step(*given[:3], 1), "you counted numbers. Each of them takes `size` bytes."),
        (
            _counted(lambda w, h, c, rows, _: rows * (w + h + c)),
            "you read the weights once a row. One reading serves all rows: that is what a batch shares.",
        ),
        (_counted(lambda w, h, c, rows, _: w + h), "keys and values are missing: a step reads those of every row."),
        (
            _counted(lambda w, h, c, rows, _: w + h + rows * c // 2),
            "a step reads keys and values. One of them is missing.",
        ),
        (_counted(lambda w, h, c, rows, _: w + h + c), "keys and values are each row's own: they are read once a row."),
        (
            _counted(lambda w, h, c, rows, of: w + h + rows * _every_head(c, of)),
            "you kept keys and values for every query head. There are only num_key_value_heads of them.",
        ),
        (
            _counted(lambda w, h, c, rows, of: w + h + rows * c // of["num_hidden_layers"]),
            "keys and values of one layer only. Each layer has its own.",
        ),
        (_counted(lambda w, h, c, rows, _: w + rows * c), "the head is missing: vocab_size x hidden_size numbers."),
        (_counted(lambda w, h, c, rows, _: w + 2 * h + rows * c), "a row looks up one line of the embedding, not all."),
    ),
    rules=(("bytes", lambda _: "count the matrices of a layer: q, k, v, o, gate, up, down. Then head and cache."),),
)

# --- batch-where-it-bends: (weights, cached, size, bandwidth, flops) -> rows, a float ---


def bend(weights, cached, size, bandwidth, flops, operations=2):
    """Rows at which arithmetic takes as long as reading; math.inf where it never does."""
    # Each row more lets arithmetic catch up by its own seconds, less the seconds to read its keys and values.
    gained = operations * weights / flops - size * cached / bandwidth
    return size * weights / bandwidth / gained if gained > 0 else math.inf


def _machines():
    yield "weights only", (1000, 0, 2, 100.0, 5000.0)
    yield "keys and values too", (1000, 50, 2, 100.0, 400.0)
    yield "lines that never cross", (1000, 50, 2, 100.0, 5000.0)
    draw = random.Random(4)
    for _ in range(20):
        weights, bandwidth = draw.randint(10**6, 10**9), draw.uniform(1e10, 4e12)
        cached, flops = draw.randint(0, weights // 50), bandwidth * draw.uniform(2, 300)
        yield "random machines", (weights, cached, draw.choice([2, 4]), bandwidth, flops)


def _signed(weights, cached, size, bandwidth, flops):
    return size * weights / bandwidth / (2 * weights / flops - size * cached / bandwidth)


exercise(
    "batch-where-it-bends",
    bend,
    results=("rows",),
    cases=_machines,
    mistakes=(
        (lambda *given: bend(*given, operations=1), "a weight costs two operations: a multiplication and an addition."),
        (
            lambda w, c, size, *rates: bend(w, c, 1, *rates),
            "bandwidth counts bytes, and a number takes `size` of them.",
        ),
        (lambda w, c, *rest: bend(w, 0, *rest), "every row also reads its own keys and values, `cached` numbers."),
        (
            lambda w, c, s, read, flops: s * (w + c) / read / (2 * w / flops),
            "keys and values grow with the rows: each row reads its own.",
        ),
        (
            lambda w, c, s, read, flops: s * w / read / (2 * w / flops + s * c / read),
            "both times grow with the rows. What a row adds to reading comes off what it adds to arithmetic.",
        ),
        (lambda *given: 1 / bend(*given), "upside down: this is one over the right answer."),
        (_signed, "a negative number of rows: the lines never cross. Return math.inf there."),
    ),
)
