"""The third exercise of lesson 06: row-steps. The others are in leaving.py."""

import random

from qwenlab.teach.checking import exercise

# --- row-steps: (lengths, slots, leave) -> steps, real, wasted, idle ---


def row_steps(lengths, slots, leave):
    """What batches of `slots` rows cost, one after another. lengths: tokens said, the stop id included."""
    batches = _batches(lengths, slots)
    steps = sum(map(max, batches))
    after = sum(max(batch) - length for batch in batches for length in batch)  # row-steps after the row's own end
    empty = sum((slots - len(batch)) * max(batch) for batch in batches)  # seats that nobody took
    return steps, sum(lengths), 0 if leave else after, empty + (after if leave else 0)


def _batches(lengths, slots):
    return [lengths[first : first + slots] for first in range(0, len(lengths), slots)]


def _queues():
    for leave in (False, True):
        ends = "rows leave" if leave else "rows stay"
        yield f"one batch, {ends}", ([4, 12, 5, 17], 4, leave)
        yield f"two batches, {ends}", ([2, 6, 3, 5], 2, leave)
        yield f"an empty seat, {ends}", ([5, 3, 4], 2, leave)
    draw = random.Random(10)
    for _ in range(20):
        lengths = [draw.randint(1, 20) for _ in range(draw.randint(1, 12))]
        slots = draw.randint(1, min(5, len(lengths)))  # as many as requests at most: so does `generate`
        yield "random queues", (lengths, slots, draw.random() < 0.5)


def _wrong(count):
    """A mistaken count: count(steps, real, wasted, idle, lengths, slots, leave) -> the same four."""
    return lambda lengths, slots, leave: count(*row_steps(lengths, slots, leave), lengths, slots, leave)


def _one_batch(lengths, slots, leave):
    after = max(lengths) * len(lengths) - sum(lengths)
    return max(lengths), sum(lengths), 0 if leave else after, after if leave else 0


def _at_once(lengths, slots, leave):
    """Continuous batching: whoever is next takes the seat that is free first."""
    ends = [0] * slots
    for length in lengths:
        ends[ends.index(min(ends))] += length
    free = slots * max(ends) - sum(lengths)
    return max(ends), sum(lengths), 0 if leave else free, free if leave else 0


def _filled(lengths, slots, leave):
    steps = max(max(lengths), -(-sum(lengths) // slots))
    free = steps * slots - sum(lengths)
    return steps, sum(lengths), 0 if leave else free, free if leave else 0


_JOINED = "you let the next row in at once. Here a batch must end before the next one begins."

exercise(
    "row-steps",
    row_steps,
    results=("steps", "real", "wasted", "idle"),
    cases=_queues,
    mistakes=(
        (
            lambda lengths, slots, leave: row_steps(lengths, slots, not leave),
            "upside down: a row that stays wastes what comes after its end; one that leaves makes its seat idle.",
        ),
        (
            _wrong(lambda steps, real, wasted, idle, lengths, slots, leave: (sum(lengths), real, wasted, idle)),
            "rows of a batch share a step. A batch takes as many as its longest row.",
        ),
        (_at_once, _JOINED),
        (_one_batch, "you seated all rows at once. There are only `slots` seats: the others form the next batch."),
        (
            lambda lengths, slots, leave: row_steps(sorted(lengths), slots, leave),
            "the batches are taken in the order given, not sorted.",
        ),
        (
            _wrong(lambda steps, real, wasted, idle, lengths, slots, leave: (steps, steps * slots, wasted, idle)),
            "you counted every seat at every step as real. Real is what the rows say: their lengths.",
        ),
        (
            _wrong(
                lambda steps, real, wasted, idle, lengths, slots, leave: (
                    (steps, real, steps * slots - real, 0) if not leave else (steps, real, 0, steps * slots - real)
                )
            ),
            "a seat that nobody ever took is idle, not wasted: no row is computed there.",
        ),
        (
            _wrong(
                lambda steps, real, wasted, idle, lengths, slots, leave: (
                    steps,
                    real,
                    wasted,
                    idle - row_steps(lengths, slots, False)[3],
                )
            ),
            "the last batch may be smaller than `slots`. Its empty seats are idle as well.",
        ),
        (_filled, _JOINED),
        (
            lambda lengths, slots, leave: row_steps(lengths[: len(lengths) // slots * slots], slots, leave),
            "you left out the last batch, since it isn't full. It is computed all the same.",
        ),
        (
            lambda lengths, slots, leave: row_steps([length - 1 for length in lengths], slots, leave),
            "the lengths have the stop id in them, and the row that says it is computed. Take nothing off.",
        ),
        (
            _wrong(
                lambda steps, real, wasted, idle, lengths, slots, leave: (steps, real, wasted, steps * slots - real)
            ),
            "you counted some as wasted and idle. Real, wasted and idle together are slots times steps.",
        ),
    ),
)
