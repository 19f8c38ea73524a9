"""The exercises of lesson 17: fair-share, wire-bytes and fewest-devices."""

import math
import random
from collections.abc import Callable
from itertools import pairwise

from qwenlab.exercises import Cases, Exercise

EXERCISES: dict[str, Exercise] = {}

# --- fair-share: (count, n) -> bounds ---


def fair_share(count: int, n: int) -> list[int]:
    """n + 1 bounds: process `rank` of n takes the problems from bounds[rank] up to the next."""
    size, left = divmod(count, n)
    return [rank * size + min(rank, left) for rank in range(n + 1)]


def _counts() -> Cases:
    yield "500 problems, three processes", (500, 3)
    yield "500 problems, 200 processes", (500, 200)
    yield "no remainder", (12, 4)
    yield "one process", (7, 1)
    yield "more processes than problems", (2, 5)
    yield "no problems", (0, 3)
    draw = random.Random(17)
    for _ in range(20):
        yield "random shares", (draw.randint(0, 60), draw.randint(1, 9))


def _last_takes_the_rest(count: int, n: int) -> list[int]:
    return [rank * (count // n) for rank in range(n)] + [count]


def _rounded_up(count: int, n: int) -> list[int]:
    return [min(count, rank * math.ceil(count / n)) for rank in range(n + 1)]


def _sizes(count: int, n: int) -> list[int]:
    bounds = fair_share(count, n)
    return [stop - start for start, stop in pairwise(bounds)]


EXERCISES["fair-share"] = Exercise(
    fair_share,
    results=("bounds",),
    cases=_counts,
    mistakes=(
        (
            lambda count, n: [rank * (count // n) for rank in range(n + 1)],
            "that is the colleague's: what is left over after dividing is taken by nobody.",
        ),
        (
            _last_takes_the_rest,
            "each problem is taken once, but the last process may have nearly twice as many as "
            "the others, and everybody waits for it.",
        ),
        (
            lambda count, n: [rank * math.ceil(count / n) for rank in range(n + 1)],
            "the last shares end beyond the last problem.",
        ),
        (
            _rounded_up,
            "rounding up lets the last process have far fewer than the others, or none. Nobody "
            "may have more than one more than another.",
        ),
        (
            lambda count, n: [rank * count // n for rank in range(n + 1)],
            "each problem is taken once and the shares are even, but those with one more are not "
            "the first ones.",
        ),
        (
            lambda count, n: [round(rank * count / n) for rank in range(n + 1)],
            "each problem is taken once and the shares are even, but rounding puts those with one "
            "more anywhere. They come first.",
        ),
        (
            lambda count, n: [rank * count / n for rank in range(n + 1)],
            "a bound is a place in a list of problems, so it is a whole number.",
        ),
        (
            _sizes,
            "that is how many each takes. The bounds are where each begins, and where the last "
            "ends.",
        ),
        (
            lambda count, n: fair_share(count, n)[:-1],
            "that is where each begins. The last bound, where the last process ends, is missing.",
        ),
        (
            lambda count, n: fair_share(count, n)[1:],
            "that is where each ends. The first bound, 0, is missing.",
        ),
        (
            lambda count, n: [0] + [r * (count // n) + count % n for r in range(1, n + 1)],
            "the first process takes all that is left over. The first so many take one more each.",
        ),
        (
            lambda count, n: [r * (count // n) + int(r < count % n) for r in range(n + 1)],
            "a bound moves by one for every process before it that takes one more, and not only by "
            "one of its own.",
        ),
        (
            lambda count, n: [b - 1 for b in fair_share(count, n)],
            "a share goes up to its end without including it, so the bounds begin with 0.",
        ),
    ),
)

# --- wire-bytes: (layers, hidden, rows, size, n) -> bytes ---


def wire_bytes(layers: int, hidden: int, rows: int, size: int, n: int) -> float:
    """What each device sends in a decode step: two all-reduces a layer."""
    return 2 * layers * 2 * rows * hidden * size * (n - 1) / n


def _cuts() -> Cases:
    yield "six devices", (3, 128, 5, 8, 6)
    yield "two devices", (3, 128, 8, 4, 2)
    yield "one device", (3, 128, 8, 4, 1)
    yield "one row", (28, 1024, 1, 2, 8)
    yield "Qwen3-32B", (64, 5120, 64, 2, 8)
    draw = random.Random(18)
    for _ in range(20):
        yield (
            "random cuts",
            (
                draw.randint(1, 40),
                64 * draw.randint(1, 40),
                draw.randint(1, 64),
                draw.choice([2, 4]),
                2 ** draw.randint(0, 5),
            ),
        )


def _times(factor: Callable) -> Callable:
    """A mistaken answer: the right one times factor(layers, hidden, rows, size, n)."""
    return lambda *given: wire_bytes(*given) * factor(*given)


EXERCISES["wire-bytes"] = Exercise(
    wire_bytes,
    results=("bytes",),
    cases=_cuts,
    mistakes=(
        (
            lambda layers, hidden, rows, size, n: 2 * layers * rows * hidden * size,
            "that is what is summed. A device sends nearly twice as much: (n - 1) / n of it to "
            "sum, and as much again to hand out the sum.",
        ),
        (
            lambda layers, hidden, rows, size, n: 4 * layers * rows * hidden * size,
            "a device need not send its own part to itself: (n - 1) / n of the bytes travel.",
        ),
        (
            _times(lambda layers, hidden, rows, size, n: 0.5),
            "that is half of it. There are two all-reduces a layer, one after attention and one "
            "after the feed-forward part, and each sends its bytes twice.",
        ),
        (
            _times(lambda layers, hidden, rows, size, n: 0.25),
            "two all-reduces a layer, and each sends its bytes twice: once to sum, once to hand "
            "out the sum.",
        ),
        (
            _times(lambda layers, hidden, rows, size, n: 1 / size),
            "you counted numbers. Each takes `size` bytes.",
        ),
        (
            _times(lambda layers, hidden, rows, size, n: 1 / rows),
            "that is one row. The hidden vectors of all rows are summed.",
        ),
        (
            _times(lambda layers, hidden, rows, size, n: 1 / layers),
            "that is one layer. The sums of each layer cross the wire.",
        ),
        (
            _times(lambda layers, hidden, rows, size, n: n),
            "that is what all devices send together. One of them sends an n-th of it.",
        ),
        (
            lambda layers, hidden, rows, size, n: layers * rows * hidden * size,
            "that is all rows' hidden vectors once a layer. Each layer sums them twice, and a sum "
            "costs each device 2 (n - 1) / n of its bytes.",
        ),
        (
            _times(lambda layers, hidden, rows, size, n: 1 / n),
            "`rows` are the rows in all. Each device has a part of every row's columns, so all "
            "rows' vectors are summed, not an n-th of them.",
        ),
    ),
)

# --- fewest-devices: (weights, row, rows, memory, heads) -> devices ---


def fewest_devices(weights: int, row: int, rows: int, memory: int, heads: int) -> int:
    """The smallest divisor of `heads` whose devices have room together; 0 if none has."""
    for n in range(1, heads + 1):
        if heads % n == 0 and weights + rows * row <= n * memory:
            return n
    return 0


def _models() -> Cases:
    yield "fits on one", (50, 1, 20, 80, 64)
    yield "fits on one exactly", (60, 1, 20, 80, 64)
    yield "needs four, because three do not divide", (200, 1, 20, 80, 64)
    yield "exactly two", (140, 1, 20, 80, 64)
    yield "one for each head", (400, 1, 20, 80, 8)
    yield "not even one for each head", (2000, 1, 20, 80, 8)
    yield "three divide twelve heads", (200, 1, 20, 80, 12)
    yield "the weights fit, the rows do not", (79, 2, 50, 80, 32)
    draw = random.Random(19)
    for _ in range(20):
        yield (
            "random models",
            (
                draw.randint(10, 900),
                draw.randint(1, 5),
                draw.randint(1, 64),
                draw.choice([24, 48, 80]),
                draw.choice([8, 12, 16, 40, 64]),
            ),
        )


def _any_number(weights: int, row: int, rows: int, memory: int, heads: int) -> int:
    n = math.ceil((weights + rows * row) / memory)
    return n if n <= heads else 0


def _powers_of_two(weights: int, row: int, rows: int, memory: int, heads: int) -> int:
    n = 1
    while n <= heads:
        if weights + rows * row <= n * memory:
            return n
        n *= 2
    return 0


def _copies_of_rows(weights: int, row: int, rows: int, memory: int, heads: int) -> int:
    for n in range(1, heads + 1):
        if heads % n == 0 and weights / n + rows * row <= memory:
            return n
    return 0


def _copies_of_weights(weights: int, row: int, rows: int, memory: int, heads: int) -> int:
    for n in range(1, heads + 1):
        if heads % n == 0 and weights + rows * row / n <= memory:
            return n
    return 0


def _one_too_early(weights: int, row: int, rows: int, memory: int, heads: int) -> int:
    found = fewest_devices(weights, row, rows, memory, heads)
    return 0 if found == heads else found


def _two_at_least(weights: int, row: int, rows: int, memory: int, heads: int) -> int:
    for n in range(2, heads + 1):
        if heads % n == 0 and weights + rows * row <= n * memory:
            return n
    return 0


def _strictly(weights: int, row: int, rows: int, memory: int, heads: int) -> int:
    return fewest_devices(weights + 1, row, rows, memory, heads)


def _none_instead(weights: int, row: int, rows: int, memory: int, heads: int) -> int:
    return fewest_devices(weights, row, rows, memory, heads) or heads


EXERCISES["fewest-devices"] = Exercise(
    fewest_devices,
    results=("devices",),
    cases=_models,
    mistakes=(
        (
            _any_number,
            "that many have room, but the heads can't be shared out evenly among them.",
        ),
        (
            _powers_of_two,
            "a number that divides the heads need not be a power of two.",
        ),
        (
            lambda weights, row, rows, memory, heads: fewest_devices(weights, 0, 0, memory, heads),
            "the rows take memory too.",
        ),
        (
            lambda weights, row, rows, memory, heads: fewest_devices(
                weights, row, 1, memory, heads
            ),
            "that has room for one row only.",
        ),
        (
            _one_too_early,
            "as many devices as heads are allowed. `range(1, heads)` ends one too early.",
        ),
        (
            _copies_of_rows,
            "the rows are spread over the devices as the weights are: each has a part of every "
            "row's heads.",
        ),
        (
            _copies_of_weights,
            "the weights are spread over the devices: each has a part of every matrix.",
        ),
        (
            _strictly,
            "what fits to the last byte fits.",
        ),
        (
            _two_at_least,
            "one device is enough where all of it fits there.",
        ),
        (
            _none_instead,
            "where not even `heads` devices have room, the answer is 0.",
        ),
    ),
)
