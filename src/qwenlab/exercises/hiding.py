"""The exercises of lesson 10: hide-gates and next-positions."""

import random

import torch

from qwenlab.teach.checking import exercise

# --- hide-gates: (g, beta (B, T, heads), real (B, T) bool) -> g, beta ---


def hide_gates(g, beta, real, no_decay=0.0, no_write=0.0):
    """Log-decay 0 and beta 0 at every pad."""
    pads = ~real[..., None]  # (B, T, 1)
    return g.masked_fill(pads, no_decay), beta.masked_fill(pads, no_write)


def _mask(rows):
    return torch.tensor(rows, dtype=torch.bool)


def _gates():
    numbers = torch.Generator().manual_seed(8)

    def gates(real, heads=2):
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
        rows = [[draw.random() < 0.6 for _ in range(width)] for _ in range(draw.randint(1, 3))]
        yield "random masks", gates(_mask(rows), draw.randint(1, 4))


exercise(
    "hide-gates",
    hide_gates,
    results=("g", "beta"),
    cases=_gates,
    mistakes=(
        (
            lambda g, b, real: (g * real[..., None], b * real[..., None]),
            "0 x NaN is NaN. Multiplying does not replace what stands at a pad; masked_fill does.",
        ),
        (
            lambda g, b, real: (hide_gates(g, b, real)[0], b * real[..., None]),
            "g is right. But 0 x NaN is NaN: beta needs masked_fill as well.",
        ),
        (
            lambda g, b, real: (g * real[..., None], hide_gates(g, b, real)[1]),
            "beta is right. But 0 x NaN is NaN: g needs masked_fill as well.",
        ),
        (lambda g, b, real: (g, hide_gates(g, b, real)[1]), "nothing is written, but a pad still fades: g is not 0."),
        (lambda g, b, real: (hide_gates(g, b, real)[0], b), "nothing fades, but a pad still writes: beta is not 0."),
        (
            lambda g, b, real: hide_gates(g, b, real, -torch.inf),
            "a log-decay of -inf wipes the table. 0 leaves it as it is.",
        ),
        (lambda g, b, real: hide_gates(g.exp(), b, real, 1.0), "g stays a logarithm; do not take exp."),
        (lambda g, b, real: hide_gates(g.exp(), b, real), "g stays a logarithm; do not take exp."),
        (lambda g, b, real: hide_gates(g, b, real, 1.0), "g is a logarithm: a decay of 1 has the log-decay 0."),
        (lambda g, b, real: hide_gates(g, b, real, 0.0, 1.0), "a beta of 1 writes everything. Nothing is a beta of 0."),
        (lambda g, b, real: hide_gates(g, b, ~real), "inverted: real tokens lost their gates, and pads kept theirs."),
        (lambda g, b, real: hide_gates(g, b, real)[::-1], "the two values are swapped: g comes first, then beta."),
        (
            lambda g, b, real: hide_gates(g, b, real.all(1, keepdim=True).expand(real.shape)),
            "a row with a pad lost all its gates. Hide its pads only.",
        ),
        (lambda g, b, real: (g, b), "nothing is hidden: both are as they were."),
    ),
)

# --- next-positions: (lengths (B,) int64, real (B, T) bool) -> position_ids (B, T) int64, lengths (B,) ---


def next_positions(lengths, real, first=0, pads=0):
    """Real tokens go on from `lengths`; pads get `pads`."""
    places = lengths[:, None] + real.cumsum(1) - 1 + first
    return places.masked_fill(~real, pads), lengths + real.sum(1)


def _calls():
    yield "pads on the left", (torch.tensor([4, 2]), _mask([[0, 0, 1, 1], [1, 1, 1, 1]]))
    yield "pads on the right and inside", (torch.tensor([5, 3]), _mask([[1, 0, 1, 0], [1, 1, 1, 1]]))
    yield "a row of pads only", (torch.tensor([7, 3]), _mask([[0, 0], [1, 1]]))
    yield "a first call", (torch.tensor([0, 0]), _mask([[0, 1, 1], [1, 1, 1]]))
    draw = random.Random(10)
    for _ in range(20):
        rows, width = draw.randint(1, 4), draw.randint(1, 6)
        real = _mask([[draw.random() < 0.6 for _ in range(width)] for _ in range(rows)])
        yield "random calls", (torch.tensor([draw.randint(0, 30) for _ in range(rows)]), real)


def _columns(lengths, real):
    return (lengths[:, None] + torch.arange(real.shape[1])).masked_fill(~real, 0)


exercise(
    "next-positions",
    next_positions,
    results=("position_ids", "lengths"),
    cases=_calls,
    mistakes=(
        (lambda n, real: (next_positions(0 * n, real)[0], n + real.sum(1)), "each turn starts at 0. Go on at lengths."),
        (
            lambda n, real: (_columns(n, real), n + real.sum(1)),
            "pads were counted: the first real token is at lengths.",
        ),
        (lambda n, real: next_positions(n, real, 1), "off by one: the first real token of the call is at lengths."),
        (lambda n, real: (n[:, None] + real.cumsum(1) - 1, n + real.sum(1)), "real tokens are right. Give pads 0."),
        (lambda n, real: (next_positions(n, real)[0], n + real.shape[1]), "the new lengths count pads too."),
        (lambda n, real: (next_positions(n, real)[0], n), "the lengths have not grown by this call's real tokens."),
        (lambda n, real: (next_positions(n, real)[0], real.sum(1)), "these are this call's tokens. Add the earlier."),
        (lambda n, real: next_positions(n, real)[::-1], "the two values are swapped: position_ids come first."),
        (
            lambda n, real: (next_positions(n.max().expand(n.shape), real)[0], n + real.sum(1)),
            "all rows start where the longest one does. Each row has its own length.",
        ),
    ),
)
