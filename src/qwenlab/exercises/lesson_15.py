"""The exercises of lesson 15: rows-that-fit, batch-bytes and rows-in-budget."""

import random
from collections.abc import Callable

from qwenlab.exercises import Cases, Exercise

EXERCISES: dict[str, Exercise] = {}

# --- rows-that-fit: (device, weights, token, fixed, moment, context) -> rows ---


def rows_that_fit(
    device: int, weights: int, token: int, fixed: int, moment: int, context: int
) -> int:
    """How many rows of `context` tokens have room beside the weights, all in bytes."""
    return max(0, device - weights) // (fixed + context * token + moment)


def _devices() -> Cases:
    yield "a hybrid", (5000, 300, 2, 7, 32, 6)
    yield "a dense model", (1000, 100, 2, 0, 10, 20)
    yield "exactly three rows", (250, 100, 2, 5, 5, 20)
    yield "less than one row", (140, 100, 2, 0, 10, 20)
    yield "weights that do not fit", (90, 100, 2, 0, 10, 20)
    draw = random.Random(15)
    for _ in range(20):
        weights = draw.randint(50, 400)
        yield (
            "random devices",
            (
                draw.randint(100, 5000),
                weights,
                draw.randint(1, 4),
                draw.choice([0, draw.randint(1, 90)]),
                draw.randint(1, 60),
                draw.randint(5, 60),
            ),
        )


def _with_row(row: Callable) -> Callable:
    """A mistaken row: row(token, fixed, moment, context) bytes."""
    return lambda device, weights, *rest: max(0, device - weights) // row(*rest)


EXERCISES["rows-that-fit"] = Exercise(
    rows_that_fit,
    results=("rows",),
    cases=_devices,
    mistakes=(
        (
            lambda *given: max(1, rows_that_fit(*given)),
            "where not even one row fits, the answer is 0.",
        ),
        (
            lambda device, weights, token, fixed, moment, context: (
                (device - weights) // (fixed + context * token + moment)
            ),
            "a negative number of rows: where the weights alone do not fit, the answer is 0.",
        ),
        (
            lambda device, weights, *rest: rows_that_fit(device, 0, *rest),
            "the weights are missing. They are there once, before any row.",
        ),
        (
            _with_row(lambda token, fixed, moment, context: fixed + context * token),
            "each row also needs what lives for a moment, or the run ends at its first large pass.",
        ),
        (
            _with_row(lambda token, fixed, moment, context: context * token),
            "a row takes more than its cache: its tables, and what lives for a moment.",
        ),
        (
            _with_row(lambda token, fixed, moment, context: fixed + context * (token + moment)),
            "`moment` is a row's, whatever its tokens are.",
        ),
        (
            lambda device, weights, token, fixed, moment, context: (
                max(0, device - weights - fixed - moment) // (context * token)
            ),
            "each row has tables and a moment of its own. Only the weights are shared.",
        ),
        (
            lambda device, weights, *rest: rows_that_fit(device - 1, weights, *rest),
            "a row that fits to the last byte fits.",
        ),
        (
            _with_row(lambda token, fixed, moment, context: context * token + moment),
            "the tables of a hybrid are missing: `fixed` bytes a row.",
        ),
        (
            _with_row(lambda token, fixed, moment, context: fixed + token + moment),
            "`token` is one token's cache, and a row holds `context` of them.",
        ),
        (
            _with_row(lambda token, fixed, moment, context: context * (fixed + token) + moment),
            "the tables do not grow with the tokens: `fixed` counts once a row.",
        ),
        (
            lambda device, weights, token, fixed, moment, context: (
                max(0, device - weights - moment) // (fixed + context * token)
            ),
            "all rows go through a pass together, so `moment` counts for each of them.",
        ),
        (
            lambda device, weights, token, fixed, moment, context: (
                device // (weights + fixed + context * token + moment)
            ),
            "you gave every row weights of its own. They are shared.",
        ),
        (
            lambda device, weights, token, fixed, moment, context: (
                -(-max(0, device - weights) // (fixed + context * token + moment))
            ),
            "round down: a row that fits in part does not fit.",
        ),
    ),
    rules=(
        (
            "rows",
            lambda value: "a number of rows is whole: round down." if float(value) % 1 else None,
        ),
    ),
)

# --- batch-bytes: (weights, config, rows, context, size) -> bytes ---


def batch_bytes(weights: int, config: dict, rows: int, context: int, size: int) -> int:
    """The weights, and keys and values of all tokens of all rows."""
    return weights + rows * context * _token(config) * size


def _token(config: dict, heads: str = "num_key_value_heads") -> int:
    """Numbers that a token keeps in all layers."""
    return 2 * config["num_hidden_layers"] * config[heads] * config["head_dim"]


def _shape(layers: int, heads: int, kv_heads: int, head_dim: int) -> dict:
    return {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "hidden_size": 3 * heads * head_dim // 4 + 1,  # not heads * head_dim, as in Qwen3
    }


def _batches() -> Cases:
    yield "four query heads to a key/value head", (500, _shape(5, 12, 3, 4), 6, 8, 4)
    yield "no grouped heads", (500, _shape(3, 4, 4, 4), 5, 7, 2)
    yield "two query heads to a key/value head", (500, _shape(3, 4, 2, 4), 5, 7, 4)
    yield "one row", (500, _shape(2, 6, 2, 4), 1, 9, 2)
    yield "no tokens yet", (500, _shape(2, 6, 2, 4), 4, 0, 2)
    draw = random.Random(16)
    for _ in range(20):
        kv_heads = draw.randint(1, 4)
        heads = kv_heads * draw.choice([1, 2, 4, 8])
        shape = _shape(draw.randint(2, 9), heads, kv_heads, draw.choice([4, 8, 16]))
        yield (
            "random shapes",
            (
                draw.randint(100, 9999),
                shape,
                draw.randint(1, 30),
                draw.randint(0, 99),
                draw.choice([2, 4]),
            ),
        )


def _tokens_of(numbers: Callable) -> Callable:
    """A mistaken token: numbers(config) of them."""
    return lambda weights, config, rows, context, size: (
        weights + rows * context * numbers(config) * size
    )


def _by_groups(config: dict) -> int:
    shared = config["num_attention_heads"] // config["num_key_value_heads"]
    return _token(config) // config["num_key_value_heads"] * shared


def _narrower_heads(config: dict) -> int:
    width = config["hidden_size"] // config["num_attention_heads"]
    return _token(config) // config["head_dim"] * width


EXERCISES["batch-bytes"] = Exercise(
    batch_bytes,
    results=("bytes",),
    cases=_batches,
    mistakes=(
        (
            _tokens_of(lambda config: _token(config, "num_attention_heads") // 2),
            "that is the colleague's: query heads instead of key/value heads, and one of keys and "
            "values. With two query heads to each key/value head the mistakes cancel.",
        ),
        (
            _tokens_of(lambda config: _token(config, "num_attention_heads")),
            "you counted query heads. Those that share a key/value head share its cache.",
        ),
        (
            _tokens_of(lambda config: _token(config) // 2),
            "the heads are right. A token keeps a key and a value, though: twice as much.",
        ),
        (
            _tokens_of(lambda config: 2 * config["num_hidden_layers"] * config["hidden_size"]),
            "keys and values are not as wide as hidden_size: num_key_value_heads * head_dim.",
        ),
        (
            _tokens_of(_by_groups),
            "heads divided by heads is how many query heads share a key/value head, not how many "
            "of these there are.",
        ),
        (
            _tokens_of(_narrower_heads),
            "a head is head_dim wide. In Qwen3 that is not hidden_size / num_attention_heads.",
        ),
        (
            lambda weights, config, rows, context, size: batch_bytes(
                weights, config, rows, min(1, context), size
            ),
            "that is one token of each row. A row holds `context` of them.",
        ),
        (
            _tokens_of(lambda config: _token(config) // config["num_hidden_layers"]),
            "one layer only. Each layer has a cache of its own.",
        ),
        (
            lambda weights, config, rows, context, size: batch_bytes(
                weights, config, rows, context, 1
            ),
            "you counted numbers. Each takes `size` bytes; the weights are in bytes already.",
        ),
        (
            lambda weights, config, rows, context, size: batch_bytes(
                weights, config, 1, context, size
            ),
            "each row has keys and values of its own.",
        ),
        (
            lambda weights, config, rows, context, size: batch_bytes(
                0, config, rows, context, size
            ),
            "the weights are missing.",
        ),
        (
            lambda weights, config, rows, context, size: batch_bytes(
                rows * weights, config, rows, context, size
            ),
            "the weights are there once, whatever the number of rows.",
        ),
    ),
    rules=(
        (
            "bytes",
            lambda _: (
                "print the two parts for this case: the weights, which are in bytes already, and "
                "what all rows keep."
            ),
        ),
    ),
)

# --- rows-in-budget: (once, own, each, patience, fits) -> rows ---


def rows_in_budget(once: float, own: float, each: float, patience: float, fits: int) -> int:
    """The most rows whose step keeps to `patience` seconds and which have room in memory."""
    rows = 0
    while rows < fits and _step(once, own, each, rows + 1) <= patience:
        rows += 1
    return rows


def _step(once: float, own: float, each: float, rows: int) -> float:
    return max(once + rows * own, rows * each)


def _budgets() -> Cases:
    """Seconds are sums of powers of two, so that dividing and trying give the same rows."""
    yield "reading takes longest", (13.0, 2.0, 1.0, 33.5, 34)
    yield "arithmetic takes longest", (8.0, 0.25, 2.0, 21.0, 100)
    yield "memory ends first", (8.0, 0.25, 1.0, 20.0, 7)
    yield "one row is too slow", (8.0, 1.0, 1.0, 4.0, 100)
    yield "no context, so that a row has nothing of its own to read", (8.0, 0.0, 1.0, 20.0, 100)
    yield "exactly the patience of the users", (8.0, 1.0, 1.0, 16.0, 100)
    draw = random.Random(17)
    for _ in range(20):
        once = float(draw.randint(1, 16))
        own = draw.choice([0.0, 0.25, 0.5, 1.0, 2.0])
        each = draw.choice([0.25, 0.5, 1.0, 2.0])
        yield "random budgets", (once, own, each, float(draw.randint(1, 64)), draw.randint(1, 60))


def _keeping(holds: Callable) -> Callable:
    """A mistaken condition: holds(once, own, each, patience, rows) says whether so many may run."""

    def wrong(once: float, own: float, each: float, patience: float, fits: int) -> int:
        rows = 0
        while rows < fits and holds(once, own, each, patience, rows + 1):
            rows += 1
        return rows

    return wrong


def _unbounded_below(once: float, own: float, each: float, patience: float, fits: int) -> int:
    """Divides instead of trying, and forgets that nothing may be left."""
    by_reading = fits if own == 0 else (patience - once) // own
    return int(min(fits, by_reading, patience // each))


EXERCISES["rows-in-budget"] = Exercise(
    rows_in_budget,
    results=("rows",),
    cases=_budgets,
    mistakes=(
        (
            _keeping(lambda once, own, each, patience, rows: once + rows * own <= patience),
            "arithmetic is missing: a step takes as long as the longer of reading and arithmetic.",
        ),
        (
            _keeping(lambda once, own, each, patience, rows: rows * each <= patience),
            "reading is missing: a step takes as long as the longer of reading and arithmetic.",
        ),
        (
            _keeping(lambda *given: given[0] + given[4] * (given[1] + given[2]) <= given[3]),
            "you added the two times. A device reads and computes at the same time, so the longer "
            "one counts.",
        ),
        (
            _keeping(
                lambda once, own, each, patience, rows: _step(once, own, each, rows) < patience
            ),
            "a step of exactly `patience` seconds is still accepted.",
        ),
        (
            lambda once, own, each, patience, fits: rows_in_budget(
                once, own, each, patience, 10 * fits
            ),
            "more rows than fit in memory: never more than `fits`.",
        ),
        (
            _unbounded_below,
            "where even one row is too slow, the answer is 0, not a negative number of rows.",
        ),
        (
            _keeping(lambda once, own, each, patience, rows: rows * (once + own) <= patience),
            "the weights are read once a step, not once for each row.",
        ),
        (
            lambda once, own, each, patience, fits: rows_in_budget(
                once, own, each, patience, fits - 1
            ),
            "as many rows as fit may run. `range(1, fits)` ends one too early.",
        ),
        (
            lambda *given: max(1, rows_in_budget(*given)),
            "where even one row is too slow, the answer is 0.",
        ),
        (
            lambda *given: rows_in_budget(*given) + 1,
            "one row too many: the last step was already too slow, or had no room.",
        ),
        (
            lambda once, own, each, patience, fits: fits,
            "that is what memory allows. The users' patience is not used.",
        ),
        (
            lambda once, own, each, patience, fits: rows_in_budget(0.0, own, each, patience, fits),
            "reading the weights takes `once` seconds of every step.",
        ),
    ),
    rules=(
        (
            "rows",
            lambda value: "a number of rows is whole: round down." if float(value) % 1 else None,
        ),
    ),
)
