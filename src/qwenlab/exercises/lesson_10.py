"""The exercises of lesson 10: hide-gates, next-window and next-positions."""

import random
from collections.abc import Callable

import torch
from torch import Tensor

from qwenlab.exercises import Cases, Exercise

EXERCISES: dict[str, Exercise] = {}

# --- hide-gates: (g, beta (B, T, heads), real (B, T) bool) -> g, beta ---


def hide_gates(
    g: Tensor, beta: Tensor, real: Tensor, no_decay: float = 0.0, no_write: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Log-decay 0 and beta 0 at every pad."""
    pads = ~real[..., None]  # (B, T, 1)
    return g.masked_fill(pads, no_decay), beta.masked_fill(pads, no_write)


def _mask(rows: list[list[int]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.bool)


def _random_mask(draw: random.Random, rows: int, width: int) -> Tensor:
    """(rows, width) bool, six in ten True."""
    real = [draw.random() < 0.6 for _ in range(rows * width)]
    return torch.tensor(real).view(rows, width)


def _gates() -> Cases:
    numbers = torch.Generator().manual_seed(8)

    def gates(real: Tensor, heads: int = 2) -> tuple[Tensor, Tensor, Tensor]:
        g, beta = torch.rand(2, *real.shape, heads, generator=numbers)
        return -g - 0.1, beta, real

    yield "pads on the left", gates(_mask([[0, 0, 1], [1, 1, 1]]))
    yield "pads on the right and inside", gates(_mask([[1, 0, 1, 0], [1, 1, 0, 0]]))
    g, beta, real = gates(_mask([[1, 0, 1]]))
    yield "NaN at a pad", (*hide_gates(g, beta, real, torch.nan, torch.nan), real)
    yield "no pads", gates(_mask([[1, 1]]))
    draw = random.Random(8)
    for _ in range(20):
        width = draw.randint(1, 6)
        real = _random_mask(draw, draw.randint(1, 3), width)
        yield "random masks", gates(real, draw.randint(1, 4))


EXERCISES["hide-gates"] = Exercise(
    hide_gates,
    results=("g", "beta"),
    cases=_gates,
    mistakes=(
        (
            lambda g, b, real: (g * real[..., None], b * real[..., None]),
            "0 x NaN is NaN. Multiplying does not replace the value at a pad; masked_fill does.",
        ),
        (
            lambda g, b, real: (hide_gates(g, b, real)[0], b * real[..., None]),
            "g is right. But 0 x NaN is NaN: beta needs masked_fill as well.",
        ),
        (
            lambda g, b, real: (g * real[..., None], hide_gates(g, b, real)[1]),
            "beta is right. But 0 x NaN is NaN: g needs masked_fill as well.",
        ),
        (
            lambda g, b, real: (g, hide_gates(g, b, real)[1]),
            "nothing is written, but a pad still fades: g is not 0.",
        ),
        (
            lambda g, b, real: (hide_gates(g, b, real)[0], b),
            "nothing fades, but a pad still writes: beta is not 0.",
        ),
        (
            lambda g, b, real: hide_gates(g, b, real, -torch.inf),
            "a log-decay of -inf erases the table. 0 leaves it as it is.",
        ),
        (
            lambda g, b, real: hide_gates(g.exp(), b, real, 1.0),
            "g stays a logarithm; do not take exp.",
        ),
        (lambda g, b, real: hide_gates(g.exp(), b, real), "g stays a logarithm; do not take exp."),
        (
            lambda g, b, real: hide_gates(g, b, real, 1.0),
            "g is a logarithm: a decay of 1 has the log-decay 0.",
        ),
        (
            lambda g, b, real: hide_gates(g, b, real, 0.0, 1.0),
            "a beta of 1 writes everything. A beta of 0 writes nothing.",
        ),
        (
            lambda g, b, real: hide_gates(g, b, real, 0.0, -torch.inf),
            "g is right. But beta is no logarithm: a beta of 0 writes nothing.",
        ),
        (
            lambda g, b, real: hide_gates(g, b, ~real),
            "inverted: real tokens lost their gates, and pads kept theirs.",
        ),
        (
            lambda g, b, real: hide_gates(g, b, real)[::-1],
            "the two values are swapped: g comes first, then beta.",
        ),
        (
            lambda g, b, real: hide_gates(g, b, real.all(1, keepdim=True).expand(real.shape)),
            "a row with a pad lost all its gates. Hide its pads only.",
        ),
        (lambda g, b, real: (g, b), "nothing is hidden: both are as they were."),
    ),
)

# --- next-window: (window (B, W, C), inputs (B, T, C), real (B, T) bool) -> (B, W, C) ---


def _by_row(pick: Callable) -> Callable:
    """pick(old window (W, C), real inputs (N, C), all inputs (T, C), real (T,)) for each row."""

    def picked(window: Tensor, inputs: Tensor, real: Tensor) -> Tensor:
        rows = zip(window, inputs, real, strict=True)
        return torch.stack([pick(old, new[keep], new, keep) for old, new, keep in rows])

    return picked


def _last(width: int, *parts: Tensor) -> Tensor:
    return torch.cat(parts)[-width:]


next_window = _by_row(lambda old, new, _all, _real: _last(len(old), old, new))


def _with_zeros(old: Tensor, new: Tensor) -> Tensor:
    return _last(len(old), torch.zeros_like(old), new)


def _as_if_pads_came_last(old: Tensor, new: Tensor, every: Tensor, _real: Tensor) -> Tensor:
    return torch.cat([old, every])[len(new) : len(new) + len(old)]


def _windows() -> Cases:
    def numbered(real: Tensor, width: int, channels: int = 2) -> tuple[Tensor, Tensor, Tensor]:
        inputs = torch.arange(1.0, 1 + real.numel() * channels)
        window = -torch.arange(1.0, 1 + len(real) * width * channels)
        return (
            window.view(len(real), width, channels),
            inputs.view(*real.shape, channels),
            real,
        )

    yield "pads on the left and inside", numbered(_mask([[0, 1, 1, 0, 1, 1], [1] * 6]), 3)
    yield "pads on the right", numbered(_mask([[1, 1, 1, 1, 0, 0], [1] * 6]), 3)
    yield "fewer real inputs than the window", numbered(_mask([[0, 0, 0, 1], [1] * 4]), 3)
    yield "a row of pads only", numbered(_mask([[0, 0], [1, 1]]), 3)
    yield "no pads", numbered(_mask([[1] * 4]), 3)
    draw = random.Random(9)
    for _ in range(20):
        width = draw.randint(1, 7)
        real = _random_mask(draw, draw.randint(1, 3), width)
        yield "random masks", numbered(real, draw.randint(1, 3), draw.randint(1, 3))


EXERCISES["next-window"] = Exercise(
    next_window,
    results=("window",),
    cases=_windows,
    mistakes=(
        (
            _by_row(lambda old, new, every, real: _with_zeros(old, new)),
            "with few real inputs, the earliest places still come from the old window.",
        ),
        (
            _by_row(
                lambda old, new, every, real: new[-len(old) :] if len(new) >= len(old) else old
            ),
            "even a few real inputs enter the window; only the remaining places come from the "
            "old one.",
        ),
        (
            _by_row(lambda old, new, every, real: _last(len(old), old, every)),
            "these are the last columns, pads included. Take the last real inputs.",
        ),
        (
            _by_row(lambda old, new, every, real: _last(len(old), old, every * real[:, None])),
            "pads are zeroed but still in the window, where real inputs should be.",
        ),
        (
            _by_row(
                lambda old, new, every, real: _last(len(old), old, every) if real.all() else old
            ),
            "a row with pads has real inputs too, and they enter its window.",
        ),
        (
            _by_row(_as_if_pads_came_last),
            "you counted the real inputs, but there may be pads between them.",
        ),
        (
            _by_row(lambda old, new, every, real: torch.cat([old, new])[: len(old)]),
            "this is the old window again. Take the last inputs: this call's come after it.",
        ),
        (
            _by_row(lambda old, new, every, real: _last(len(old), old, new[:-1])),
            "off by one: the last real input itself is missing.",
        ),
        (
            _by_row(lambda old, new, every, real: _last(len(old), old, new).flip(0)),
            "the order is reversed.",
        ),
        (
            _by_row(lambda old, new, every, real: _last(len(old), old, every[~real])),
            "inverted: these are the pads' inputs. Keep those where real is True.",
        ),
    ),
    rules=(
        (
            "window",
            lambda value: (
                "inputs[real] joins the rows into one. Go row by row: inputs[row][real[row]]."
                if value.ndim != 3
                else None
            ),
        ),
    ),
)

# --- next-positions: (lengths (B,), real (B, T) bool) -> position_ids (B, T), lengths (B,) ---


def next_positions(
    lengths: Tensor, real: Tensor, first: int = 0, pads: int = 0
) -> tuple[Tensor, Tensor]:
    """Real tokens continue from `lengths`; pads get `pads`."""
    places = lengths[:, None] + real.cumsum(1) - 1 + first
    return places.masked_fill(~real, pads), lengths + real.sum(1)


def _calls() -> Cases:
    yield "pads on the left", (torch.tensor([4, 2]), _mask([[0, 0, 1, 1], [1, 1, 1, 1]]))
    yield (
        "pads on the right and inside",
        (torch.tensor([5, 3]), _mask([[1, 0, 1, 0], [1, 1, 1, 1]])),
    )
    yield "a row of pads only", (torch.tensor([7, 3]), _mask([[0, 0], [1, 1]]))
    yield "a first call", (torch.tensor([0, 0]), _mask([[0, 1, 1], [1, 1, 1]]))
    draw = random.Random(10)
    for _ in range(20):
        rows = draw.randint(1, 4)
        real = _random_mask(draw, rows, draw.randint(1, 6))
        lengths = [draw.randint(0, 30) for _ in range(rows)]
        yield "random calls", (torch.tensor(lengths), real)


def _columns(lengths: Tensor, real: Tensor) -> Tensor:
    return (lengths[:, None] + torch.arange(real.shape[1])).masked_fill(~real, 0)


def _less_all_pads(lengths: Tensor, real: Tensor) -> Tensor:
    """Columns less the row's pads, wherever these stand."""
    places = lengths[:, None] + torch.arange(real.shape[1]) - (~real).sum(1, keepdim=True)
    return places.masked_fill(~real, 0)


def _from_positions(pick: Callable) -> Callable:
    """Lengths that are taken from the positions, one more than pick(positions)."""

    def wrong(lengths: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        positions = next_positions(lengths, real)[0]
        return positions, pick(positions) + 1

    return wrong


def _of_whole_numbers(value: Tensor) -> str | None:
    if value.dtype != torch.int64:
        return "positions and lengths are counts, int64: real.cumsum(dim=1) makes them."


EXERCISES["next-positions"] = Exercise(
    next_positions,
    results=("position_ids", "lengths"),
    cases=_calls,
    mistakes=(
        (
            lambda n, real: (next_positions(0 * n, real)[0], n + real.sum(1)),
            "positions start at 0 in each call. Continue from lengths.",
        ),
        (
            lambda n, real: (_columns(n, real), n + real.sum(1)),
            "pads were counted: the first real token is at lengths.",
        ),
        (
            lambda n, real: next_positions(n, real, 1),
            "off by one: the first real token of the call is at lengths.",
        ),
        (
            lambda n, real: (n[:, None] + real.cumsum(1) - 1, n + real.sum(1)),
            "real tokens are right, but pads must get 0.",
        ),
        (
            lambda n, real: next_positions(n, real, pads=-1),
            "pads get 0. A -1 picks the last row of a table.",
        ),
        (
            lambda n, real: (_less_all_pads(n, real), n + real.sum(1)),
            "right for pads on the left only: take off the pads that come before a token, not "
            "all of the row's.",
        ),
        (
            _from_positions(lambda positions: positions.amax(1)),
            "a row of pads only has no position of its own here, and keeps the length it had.",
        ),
        (
            _from_positions(lambda positions: positions[:, -1]),
            "the last column may be a pad. Count the row's real tokens instead.",
        ),
        (
            lambda n, real: (next_positions(n, real)[0], n + real.shape[1]),
            "the new lengths count pads too.",
        ),
        (
            lambda n, real: (next_positions(n, real)[0], n),
            "the lengths have not grown by this call's real tokens.",
        ),
        (
            lambda n, real: (next_positions(n, real)[0], real.sum(1)),
            "these are this call's tokens only. Add the earlier ones.",
        ),
        (
            lambda n, real: next_positions(n, real)[::-1],
            "the two values are swapped: position_ids come first.",
        ),
        (
            lambda n, real: (next_positions(n.max().expand(n.shape), real)[0], n + real.sum(1)),
            "all rows start where the longest one does. Each row has a length of its own.",
        ),
    ),
    rules=(
        ("position_ids", _of_whole_numbers),
        ("lengths", _of_whole_numbers),
    ),
)
