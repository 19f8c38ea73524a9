"""The exercise of lesson 10 on the convolution's window: next-window."""

import random

import torch

from qwenlab.teach.checking import exercise

# --- next-window: (window (B, W, C), inputs (B, T, C), real (B, T) bool) -> (B, W, C) ---


def _by_row(pick):
    """pick(old window (W, C), real inputs (N, C), all inputs (T, C), real (T,)) for each row."""
    return lambda window, inputs, real: torch.stack(
        [pick(old, new[keep], new, keep) for old, new, keep in zip(window, inputs, real, strict=True)]
    )


def _last(width, *parts):
    return torch.cat(parts)[-width:]


next_window = _by_row(lambda old, new, _all, _real: _last(len(old), old, new))


def _with_zeros(old, new):
    return _last(len(old), torch.zeros_like(old), new)


def _as_if_pads_came_last(old, new, every, _real):
    return torch.cat([old, every])[len(new) : len(new) + len(old)]


def _windows():
    def numbered(rows, width, channels=2):
        real = torch.tensor(rows, dtype=torch.bool)
        places = torch.arange(1.0, 1 + real.numel() * channels).view(*real.shape, channels)
        window = -torch.arange(1.0, 1 + len(real) * width * channels).view(len(real), width, channels)
        return window, places, real

    yield "pads on the left and inside", numbered([[0, 1, 1, 0, 1, 1], [1] * 6], 3)
    yield "pads on the right", numbered([[1, 1, 1, 1, 0, 0], [1] * 6], 3)
    yield "fewer real inputs than the window", numbered([[0, 0, 0, 1], [1] * 4], 3)
    yield "a row of pads only", numbered([[0, 0], [1, 1]], 3)
    yield "no pads", numbered([[1] * 4], 3)
    draw = random.Random(9)
    for _ in range(20):
        width = draw.randint(1, 7)
        rows = [[draw.random() < 0.6 for _ in range(width)] for _ in range(draw.randint(1, 3))]
        yield "random masks", numbered(rows, draw.randint(1, 3), draw.randint(1, 3))


exercise(
    "next-window",
    next_window,
    results=("window",),
    cases=_windows,
    mistakes=(
        (
            _by_row(lambda old, new, every, real: _with_zeros(old, new)),
            "with few real inputs, the earliest places are still the old window's, not zeros.",
        ),
        (
            _by_row(lambda old, new, every, real: new[-len(old) :] if len(new) >= len(old) else old),
            "with few real inputs the new ones still come in; only the rest of the places is the old window's.",
        ),
        (_by_row(lambda old, new, every, real: _last(len(old), old, every)), "these are the last columns, pads too."),
        (
            _by_row(lambda old, new, every, real: _last(len(old), old, every * real[:, None])),
            "pads are zeroed but still in the window, where real inputs should be.",
        ),
        (_by_row(_as_if_pads_came_last), "you counted the real inputs, but pads may stand between them."),
        (
            _by_row(lambda old, new, every, real: torch.cat([old, new])[: len(old)]),
            "this is the old window again. Take the last inputs: this call's come after it.",
        ),
        (
            _by_row(lambda old, new, every, real: _last(len(old), old, new[:-1])),
            "off by one: the last real input itself is missing.",
        ),
        (_by_row(lambda old, new, every, real: _last(len(old), old, new).flip(0)), "the order is turned round."),
        (
            _by_row(lambda old, new, every, real: _last(len(old), old, every[~real])),
            "inverted: these are the pads' inputs. Keep those where real is True.",
        ),
    ),
)
