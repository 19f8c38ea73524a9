"""The exercises of lesson 06: survivors, scatter-back and row-steps."""

import math
import random
from collections.abc import Callable

import torch
from torch import Tensor

from qwenlab.exercises import Cases, Exercise, random_numbers

EXERCISES: dict[str, Exercise] = {}

# --- survivors: (rows (R,) int64, done (R,) bool) -> keep (K,) int64, rows (K,) int64 ---


def survivors(rows: Tensor, done: Tensor) -> tuple[Tensor, Tensor]:
    """The places that stay and their requests: rows[i] is the request at place i."""
    keep = (~done).nonzero()[:, 0]  # (K,)
    return keep, rows[keep]


def _batches() -> Cases:
    def batch(rows: list[int], done: list[bool]) -> tuple[Tensor, Tensor]:
        return torch.tensor(rows, dtype=torch.int64), torch.tensor(done, dtype=torch.bool)

    yield "the first to leave", batch([0, 2, 3, 5], [True, False, False, False])
    yield "the second to leave", batch([1, 2, 3], [False, True, False])
    yield "two at once", batch([0, 1, 4, 6], [True, False, True, False])
    yield "no row leaves", batch([4, 7], [False, False])
    yield "every row leaves", batch([2, 6], [True, True])
    yield "a row that was moved", batch([5, 1, 3], [False, True, False])
    yield "one survivor", batch([3, 4], [True, False])
    draw = random.Random(8)
    for _ in range(20):
        rows = draw.sample(range(12), draw.randint(1, 8))
        yield "random batches", batch(rows, [draw.random() < 0.4 for _ in rows])


def _of(choose: Callable) -> Callable:
    """A mistaken choice, choose(keep, left, rows, done): `left` holds the places that leave."""
    return lambda rows, done: choose(survivors(rows, done)[0], done.nonzero()[:, 0], rows, done)


def _numbers(name: str) -> tuple[str, Callable]:
    def rule(value: Tensor) -> str | None:
        if value.dtype == torch.bool:
            return (
                f"{name} holds numbers, int64. nonzero() turns a mask into the numbers of the "
                "places where it is True."
            )
        if value.is_floating_point():
            return (
                f"{name} is int64, even where no row stays. torch.tensor([]) makes floats: give "
                "it dtype=torch.int64."
            )
        if value.ndim == 0:
            return (
                f"with one survivor {name} still has a dimension, (1,). squeeze() takes that "
                "away, but [:, 0] keeps it."
            )
        if value.ndim != 1:
            return f"{name} has one number per survivor: (K,). nonzero() of a vector gives (K, 1)."
        if value.dtype != torch.int64:
            return f"{name} has the right shape but not the dtype of an index: torch.int64."

    return name, rule


_STILL = "rows still contains the requests that leave. It shrinks with the state."

EXERCISES["survivors"] = Exercise(
    survivors,
    results=("keep", "rows"),
    cases=_batches,
    mistakes=(
        (
            _of(lambda keep, left, rows, done: (left, rows[left])),
            "you kept the rows that are done. The others stay.",
        ),
        (
            _of(lambda keep, left, rows, done: (rows[keep], rows[keep])),
            "keep holds requests. The state has shrunk before and knows only places, 0 to R - 1.",
        ),
        (
            _of(lambda keep, left, rows, done: (keep, keep)),
            "rows holds places. Once a row has left, a place is no longer the number of a request.",
        ),
        (
            _of(lambda keep, left, rows, done: (keep, torch.arange(len(keep)))),
            "the rows are renumbered, so nothing tells which requests they belong to.",
        ),
        (
            _of(lambda keep, left, rows, done: (torch.arange(len(keep)), rows[keep])),
            "keep holds the places after the batch has shrunk. select needs those that the "
            "survivors have now.",
        ),
        (
            _of(lambda keep, left, rows, done: (keep, rows[: len(keep)])),
            "you cut rows off at the end. The rows that leave may be anywhere.",
        ),
        (_of(lambda keep, left, rows, done: (keep, rows)), _STILL),
        (_of(lambda keep, left, rows, done: (keep, rows.masked_fill(done, -1))), _STILL),
        (
            _of(lambda keep, left, rows, done: (keep, rows[keep].sort().values)),
            "you sorted the rows. Keep them in the order of their places: a row that was moved "
            "may be anywhere.",
        ),
        (
            _of(lambda keep, left, rows, done: (rows[keep], keep)),
            "the two values are swapped: first the places that stay, then the requests there.",
        ),
    ),
    rules=(_numbers("keep"), _numbers("rows")),
)

# --- scatter-back: (new (R,) int64, rows (R,) int64, count, pad_id) -> sampled (count,) int64 ---


def scatter_back(new: Tensor, rows: Tensor, count: int, pad_id: int) -> Tensor:
    """The survivors' ids, at their requests' numbers; pad_id where the request has left."""
    sampled = torch.full((count,), pad_id)  # (B,)
    sampled[rows] = new
    return sampled


def _sampled_ids() -> Cases:
    yield "the first has left", (torch.tensor([11, 12, 13]), torch.tensor([1, 2, 3]), 4, 7)
    yield "two have left", (torch.tensor([21, 22]), torch.tensor([1, 3]), 4, 7)
    yield "a row that was moved", (torch.tensor([33, 31]), torch.tensor([3, 1]), 4, 7)
    yield "no row has left", (torch.tensor([41, 42, 43]), torch.tensor([2, 0, 1]), 3, 7)
    draw = random.Random(9)
    for _ in range(20):
        count = draw.randint(2, 9)
        rows = draw.sample(range(count), draw.randint(1, count))
        yield (
            "random batches",
            (torch.tensor(draw.choices(range(10, 99), k=len(rows))), torch.tensor(rows), count, 7),
        )


def _at(index: Callable) -> Callable:
    """A mistaken place: index(rows, count) instead of rows."""
    return lambda new, rows, count, pad_id: scatter_back(new, index(rows, count), count, pad_id)


_SHAPE = "sampled has one id per request, including those that have left: (count,)."


def _ids(value: Tensor) -> str | None:
    if value.ndim != 1:
        return _SHAPE
    if value.dtype != torch.int64:
        return "ids are int64. torch.zeros and torch.empty make floats unless you give a dtype."


EXERCISES["scatter-back"] = Exercise(
    scatter_back,
    results=("sampled",),
    cases=_sampled_ids,
    mistakes=(
        (
            _at(lambda rows, count: torch.arange(len(rows))),
            "you wrote by place. `rows` tells which request each place belongs to.",
        ),
        (
            _at(lambda rows, count: torch.arange(count - len(rows), count)),
            "you wrote to the end. `rows` tells which request each place belongs to.",
        ),
        (
            _at(lambda rows, count: rows.sort().values),
            "rows need not be in order: a row that was moved may be anywhere. A mask loses that "
            "order.",
        ),
        (
            lambda new, rows, count, pad_id: scatter_back(new, rows, count, 0),
            "a request that has left gets pad_id, not 0.",
        ),
        (
            lambda new, rows, count, pad_id: scatter_back(new, rows, count, -1),
            "a request that has left gets pad_id, not -1.",
        ),
        (
            lambda new, rows, count, pad_id: torch.full((count,), pad_id),
            "nothing was written. Write the survivors' ids: sampled[rows] = new.",
        ),
        (lambda new, rows, count, pad_id: new[rows.argsort()], _SHAPE),
    ),
    rules=(("sampled", _ids),),
)

# --- row-steps: (lengths, slots, leave) -> steps, real, wasted, idle ---

Counts = tuple[int, int, int, int]


def row_steps(lengths: list[int], slots: int, leave: bool) -> Counts:
    """What batches of `slots` rows cost, one after another.

    lengths: generated tokens per row, the stop id included.
    """
    batches = _cut(lengths, slots)
    steps = sum(map(max, batches))
    # Row-steps after a row's own end, and those of slots that were never filled.
    after = empty = 0
    for batch in batches:
        after += max(batch) * len(batch) - sum(batch)
        empty += max(batch) * (slots - len(batch))
    if leave:
        return steps, sum(lengths), 0, empty + after
    return steps, sum(lengths), after, empty


def _cut(lengths: list[int], slots: int) -> list[list[int]]:
    return [lengths[first : first + slots] for first in range(0, len(lengths), slots)]


def _queues() -> Cases:
    for leave in (False, True):
        ends = "rows leave" if leave else "rows stay"
        yield f"one batch, {ends}", ([4, 12, 5, 17], 4, leave)
        yield f"two batches, {ends}", ([2, 6, 3, 5], 2, leave)
        yield f"an empty slot, {ends}", ([5, 3, 4], 2, leave)
    draw = random.Random(10)
    for _ in range(20):
        lengths = random_numbers(draw, 12, 20)
        # No more slots than requests, as in `generate`.
        slots = draw.randint(1, min(5, len(lengths)))
        yield "random queues", (lengths, slots, draw.random() < 0.5)


def _of_one_kind(steps: int, slots: int, lengths: list[int], leave: bool) -> Counts:
    """All that is not real counts as idle if rows leave, and as wasted if they stay."""
    rest = steps * slots - sum(lengths)
    return (steps, sum(lengths), 0, rest) if leave else (steps, sum(lengths), rest, 0)


def _one_batch(lengths: list[int], slots: int, leave: bool) -> Counts:
    return _of_one_kind(max(lengths), len(lengths), lengths, leave)


def _at_once(lengths: list[int], slots: int, leave: bool) -> Counts:
    """Continuous batching: the next request takes the slot that becomes free first."""
    ends = [0] * slots
    for length in lengths:
        ends[ends.index(min(ends))] += length
    return _of_one_kind(max(ends), slots, lengths, leave)


def _filled(lengths: list[int], slots: int, leave: bool) -> Counts:
    steps = max(max(lengths), math.ceil(sum(lengths) / slots))
    return _of_one_kind(steps, slots, lengths, leave)


def _one_by_one(lengths: list[int], slots: int, leave: bool) -> Counts:
    return (sum(lengths), *row_steps(lengths, slots, leave)[1:])


def _every_slot_real(lengths: list[int], slots: int, leave: bool) -> Counts:
    steps, _, wasted, idle = row_steps(lengths, slots, leave)
    return steps, steps * slots, wasted, idle


def _empty_is_wasted(lengths: list[int], slots: int, leave: bool) -> Counts:
    steps = row_steps(lengths, slots, leave)[0]
    return _of_one_kind(steps, slots, lengths, leave)


def _empty_not_counted(lengths: list[int], slots: int, leave: bool) -> Counts:
    steps, real, wasted, idle = row_steps(lengths, slots, leave)
    empty = row_steps(lengths, slots, False)[3]
    return steps, real, wasted, idle - empty


def _full_batches(lengths: list[int], slots: int, leave: bool) -> Counts:
    full = len(lengths) // slots * slots
    return row_steps(lengths[:full], slots, leave)


def _without_prefill(lengths: list[int], slots: int, leave: bool) -> Counts:
    steps, *counts = row_steps(lengths, slots, leave)
    return (steps - len(_cut(lengths, slots)), *counts)


def _wasted_twice(lengths: list[int], slots: int, leave: bool) -> Counts:
    steps, real, wasted, _ = row_steps(lengths, slots, leave)
    return steps, real, wasted, steps * slots - real


_JOINED = "you admitted the next row at once. Here a batch must end before the next one begins."

_MORE_THAN_FIT = (
    "you ran all rows at once. Only `slots` of them fit: the others form the next batch."
)

EXERCISES["row-steps"] = Exercise(
    row_steps,
    results=("steps", "real", "wasted", "idle"),
    cases=_queues,
    mistakes=(
        (
            lambda lengths, slots, leave: row_steps(lengths, slots, not leave),
            "the wrong way round: a row that stays wastes the steps after its end; one that "
            "leaves makes its slot idle.",
        ),
        (
            _one_by_one,
            "the rows of a batch share a step. A batch takes as many steps as its longest row.",
        ),
        (_at_once, _JOINED),
        (
            _one_batch,
            _MORE_THAN_FIT,
        ),
        (
            lambda lengths, slots, leave: _of_one_kind(max(lengths), slots, lengths, leave),
            _MORE_THAN_FIT,
        ),
        (
            lambda lengths, slots, leave: row_steps(sorted(lengths), slots, leave),
            "the batches are taken in the order given, not sorted.",
        ),
        (
            _every_slot_real,
            "you counted every slot at every step as real. Only those that generate a token are: "
            "the rows' lengths.",
        ),
        (
            _empty_is_wasted,
            "a slot that was never filled is idle, not wasted: no row is computed there.",
        ),
        (
            _empty_not_counted,
            "the last batch may be smaller than `slots`. Its empty slots are idle as well.",
        ),
        (_filled, _JOINED),
        (
            _full_batches,
            "you left out the last batch because it isn't full. It is computed all the same.",
        ),
        (
            lambda lengths, *rest: row_steps([length - 1 for length in lengths], *rest),
            "the lengths include the stop id, and the step that samples it is computed. Subtract "
            "nothing.",
        ),
        (
            _without_prefill,
            "the prefill is a step too, and it yields a token. A batch takes as many steps as its "
            "longest row has tokens.",
        ),
        (
            _wasted_twice,
            "you counted some row-steps as both wasted and idle. Real, wasted and idle together "
            "are slots times steps.",
        ),
    ),
)
