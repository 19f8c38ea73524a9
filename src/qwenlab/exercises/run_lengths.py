"""The exercise of lesson 07 on the length of a run: schedule-steps."""

import random

from qwenlab.teach.checking import exercise

# --- schedule-steps: (lengths, slots) -> static, continuous: numbers of steps ---


def static_steps(lengths, slots):
    """Batches of `slots` in order of arrival, each as long as its longest."""
    return sum(max(lengths[i : i + slots]) for i in range(0, len(lengths), slots))


def continuous_steps(lengths, slots):
    """Whoever is next takes the seat that is free first."""
    ends = [0] * slots
    for length in lengths:
        ends[ends.index(min(ends))] += length
    return max(ends)


def schedule_steps(lengths, slots):
    return static_steps(lengths, slots), continuous_steps(lengths, slots)


def _turns(lengths, slots):
    return max(sum(lengths[slot::slots]) for slot in range(slots))


def _runs():
    yield "all have a seat", ([5, 2, 3], 3)
    yield "a last batch that is not full", ([1, 5, 1, 6, 2], 2)
    yield "seats that can't all be full", ([3, 3, 2, 2, 2], 2)
    yield "a long one at the head", ([6, 1, 1, 1, 1, 1], 2)
    yield "a long one at the end", ([1, 1, 1, 6], 2)
    yield "one seat", ([3, 1, 2], 1)
    draw = random.Random(10)
    for _ in range(20):
        yield "random lengths", ([draw.randint(1, 30) for _ in range(draw.randint(1, 20))], draw.randint(1, 6))


def _full_batches(lengths, slots):
    return static_steps(lengths[: len(lengths) // slots * slots], slots)


_GAPS = "no schedule fills every seat to the end. An answer can't be cut in two and said in two seats at once."
_SORTED = "you sorted the line for continuous. Nobody knows the lengths beforehand, and the line has an order."

exercise(
    "schedule-steps",
    schedule_steps,
    results=("static", "continuous"),
    cases=_runs,
    mistakes=(
        (lambda *given: schedule_steps(*given)[::-1], "the two values are swapped: static comes first."),
        (
            lambda lengths, slots: schedule_steps([length + 1 for length in lengths], slots),
            "the prefill says the first token. A request of length L takes L steps, not L + 1.",
        ),
        (
            lambda lengths, slots: (
                static_steps(lengths, slots),
                continuous_steps([length + 1 for length in lengths], slots) - 1,
            ),
            "a seat that gets free in one step is taken in the next. No step lies between.",
        ),
        (lambda lengths, slots: (sum(lengths), continuous_steps(lengths, slots)), "a batch shares its steps: max."),
        (lambda lengths, slots: (max(lengths), continuous_steps(lengths, slots)), "a batch holds `slots` requests."),
        (
            lambda lengths, slots: schedule_steps([length - 1 for length in lengths], slots),
            "the prefill is a step, too. A request of length L takes L steps, not L - 1.",
        ),
        (
            lambda lengths, slots: (static_steps(sorted(lengths), slots), continuous_steps(lengths, slots)),
            "static takes the line as it stands, in order of arrival. Don't sort it.",
        ),
        (
            lambda lengths, slots: (_full_batches(lengths, slots), continuous_steps(lengths, slots)),
            "you left out the last batch, since it isn't full. It runs all the same.",
        ),
        (
            lambda lengths, slots: (static_steps(lengths, slots),) * 2,
            "this is static twice. With continuous batching nobody waits for the end of a batch.",
        ),
        (lambda lengths, slots: (static_steps(lengths, slots), continuous_steps(sorted(lengths), slots)), _SORTED),
        (
            lambda lengths, slots: (static_steps(lengths, slots), continuous_steps(sorted(lengths)[::-1], slots)),
            _SORTED,
        ),
        (
            lambda lengths, slots: (static_steps(lengths, slots), max(max(lengths), -(-sum(lengths) // slots))),
            _GAPS,
        ),
        (lambda lengths, slots: (static_steps(lengths, slots), -(-sum(lengths) // slots)), _GAPS),
        (
            lambda lengths, slots: (static_steps(lengths, slots), _turns(lengths, slots)),
            "you dealt the seats out in turn. The next in line takes the seat that is free first.",
        ),
    ),
)
