"""Two exercises of lesson 06: survivors and scatter-back. The third is in counting.py."""

import random

import torch

from qwenlab.teach.checking import exercise

# --- survivors: (rows (R,) int64, done (R,) bool) -> keep (K,) int64, rows (K,) int64 ---


def survivors(rows, done):
    """The places that stay, and whose they are: rows[i] is the request at place i."""
    keep = (~done).nonzero()[:, 0]  # (K,)
    return keep, rows[keep]


def _batches():
    def batch(rows, done):
        return torch.tensor(rows, dtype=torch.int64), torch.tensor(done, dtype=torch.bool)

    yield "the first to leave", batch([0, 2, 3, 5], [True, False, False, False])
    yield "the second to leave", batch([1, 2, 3], [False, True, False])
    yield "two at once", batch([0, 1, 4, 6], [True, False, True, False])
    yield "nobody leaves", batch([4, 7], [False, False])
    yield "everybody leaves", batch([2, 6], [True, True])
    yield "a row that was moved", batch([5, 1, 3], [False, True, False])
    yield "one survivor", batch([3, 4], [True, False])
    draw = random.Random(8)
    for _ in range(20):
        rows = draw.sample(range(12), draw.randint(1, 8))
        yield "random batches", batch(rows, [draw.random() < 0.4 for _ in rows])


def _of(choose):
    """A mistaken choice: choose(keep, left, rows, done), where `left` are the places that leave."""
    return lambda rows, done: choose(survivors(rows, done)[0], done.nonzero()[:, 0], rows, done)


def _numbers(name):
    def rule(value):
        if value.dtype == torch.bool:
            return f"{name} holds numbers, int64. nonzero() turns a mask into the numbers of its True places."
        if value.is_floating_point():
            return (
                f"{name} is int64, also where nobody stays. torch.tensor([]) makes floats: give it dtype=torch.int64."
            )
        if value.ndim == 0:
            return f"with one survivor {name} still has a dimension, (1,). squeeze() takes that away; [:, 0] doesn't."
        if value.dtype != torch.int64 or value.ndim != 1:
            return f"{name} is int64, one number a survivor: (K,). nonzero() of a vector gives (K, 1)."

    return name, rule


_STILL = "rows still has those who leave. It shrinks as keep does."

exercise(
    "survivors",
    survivors,
    results=("keep", "rows"),
    cases=_batches,
    mistakes=(
        (_of(lambda keep, left, rows, done: (left, rows[left])), "you kept those who are done. The others stay."),
        (
            _of(lambda keep, left, rows, done: (rows[keep], rows[keep])),
            "keep holds requests. The state has shrunk before: it knows places only, 0 to R - 1.",
        ),
        (
            _of(lambda keep, left, rows, done: (keep, keep)),
            "rows holds places. Once somebody has left, a place is no longer the number of a request.",
        ),
        (
            _of(lambda keep, left, rows, done: (keep, torch.arange(len(keep)))),
            "the rows are numbered afresh, so nobody knows any more whose they are.",
        ),
        (
            _of(lambda keep, left, rows, done: (keep, rows[: len(keep)])),
            "you cut rows off at the end. Those who leave may stand anywhere.",
        ),
        (_of(lambda keep, left, rows, done: (keep, rows)), _STILL),
        (_of(lambda keep, left, rows, done: (keep, rows.masked_fill(done, -1))), _STILL),
        (
            _of(lambda keep, left, rows, done: (keep, rows[keep].sort().values)),
            "you sorted the rows. They stand in the order of their places: a row that was moved may stand anywhere.",
        ),
        (
            _of(lambda keep, left, rows, done: (rows[keep], keep)),
            "the two values are swapped: first the places that stay, then the requests there.",
        ),
    ),
    rules=(_numbers("keep"), _numbers("rows")),
)

# --- scatter-back: (new (R,) int64, rows (R,) int64, count, pad_id) -> said (count,) int64 ---


def scatter_back(new, rows, count, pad_id):
    """What the survivors say, at their requests' numbers; pad_id where the request has left."""
    said = torch.full((count,), pad_id)  # (B,)
    said[rows] = new
    return said


def _sayings():
    yield "the first has left", (torch.tensor([11, 12, 13]), torch.tensor([1, 2, 3]), 4, 7)
    yield "two have left", (torch.tensor([21, 22]), torch.tensor([1, 3]), 4, 7)
    yield "a row that was moved", (torch.tensor([33, 31]), torch.tensor([3, 1]), 4, 7)
    yield "nobody has left", (torch.tensor([41, 42, 43]), torch.tensor([2, 0, 1]), 3, 7)
    draw = random.Random(9)
    for _ in range(20):
        count = draw.randint(2, 9)
        rows = draw.sample(range(count), draw.randint(1, count))
        yield "random batches", (torch.tensor(draw.choices(range(10, 99), k=len(rows))), torch.tensor(rows), count, 7)


def _at(index):
    """A mistaken place: index(rows, count) instead of rows."""
    return lambda new, rows, count, pad_id: scatter_back(new, index(rows, count), count, pad_id)


_SHAPE = "said has one id for each request, also for those who left: int64, (count,)."

exercise(
    "scatter-back",
    scatter_back,
    results=("said",),
    cases=_sayings,
    mistakes=(
        (_at(lambda rows, count: torch.arange(len(rows))), "you wrote by place. Whose place it is, says `rows`."),
        (
            _at(lambda rows, count: torch.arange(count - len(rows), count)),
            "you wrote to the end. Whose place it is, says `rows`.",
        ),
        (
            _at(lambda rows, count: rows.sort().values),
            "rows need not be in order: a row that was moved stands anywhere. A mask forgets that order.",
        ),
        (lambda new, rows, count, pad_id: scatter_back(new, rows, count, 0), "who has left gets pad_id, not 0."),
        (lambda new, rows, count, pad_id: scatter_back(new, rows, count, -1), "who has left gets pad_id, not -1."),
        (
            lambda new, rows, count, pad_id: torch.full((count,), pad_id),
            "nobody speaks. Write what the survivors say: said[rows] = new.",
        ),
        (lambda new, rows, count, pad_id: new[rows.argsort()], _SHAPE),
    ),
    rules=(("said", lambda value: _SHAPE if value.dtype != torch.int64 or value.ndim != 1 else None),),
)
