"""The exercises of lesson 09 on seats: admit and schedule-steps."""

import random

from qwenlab.teach.checking import exercise

# --- admit: (waiting, held, free, budget) -> how many of the line get a seat ---


def admit(waiting, held, free, budget, overtake=False, says=1, adds=True):
    """waiting: prompt lengths in order of arrival. A newcomer takes its prompt and the token that it says at once."""
    seated = 0
    for length in waiting:
        if seated == free or (held + length + says > budget and not overtake):
            break
        if held + length + says <= budget:
            held += (length + says) * adds
            seated += 1
    return seated


def _lines():
    yield "room for all", ([5, 3], 10, 4, 100)
    yield "more in line than seats", ([6, 2, 4], 0, 2, 100)
    yield "a prompt larger than the budget", ([50], 0, 2, 40)
    yield "newcomers add up", ([10, 10, 10], 0, 3, 25)
    yield "a token each for the answer", ([10, 10], 0, 2, 21)
    yield "what runs already holds some", ([10, 10], 30, 4, 41)
    yield "the longest at the head", ([8, 3, 2], 0, 3, 10)
    yield "a head that does not fit", ([30, 2], 5, 2, 20)
    draw = random.Random(9)
    for _ in range(20):
        line = [draw.randint(1, 30) for _ in range(draw.randint(0, 8))]
        yield "random lines", (line, draw.randint(0, 60), draw.randint(0, 6), draw.randint(60, 150))


exercise(
    "admit",
    admit,
    results=("seated",),
    cases=_lines,
    # Backwards: of two that give the same here, the first is the one that was right on the cases before.
    mistakes=(
        (
            lambda *given: admit(*given, overtake=True),
            "somebody was overtaken for being long. Where the head does not fit, the line stops.",
        ),
        (
            lambda line, *rest: admit(sorted(line), *rest),
            "you let the shortest in first. The line is served in order of arrival.",
        ),
        (
            lambda line, held, free, budget: admit(line, held, free, budget - 1),
            "the budget may be used up to its last token.",
        ),
        (lambda line, held, *rest: admit(line, 0, *rest), "those who run hold tokens already: start from `held`."),
        (
            lambda *given: admit(*given, says=0),
            "a newcomer says a token in the same step. It takes its length and one more.",
        ),
        (
            lambda *given: admit(*given, adds=False),
            "each fits alone, but not together. What a newcomer takes is gone for the next.",
        ),
        (lambda line, held, free, _: admit(line, held, free, 10**9), "nobody looked at the budget."),
        (lambda line, held, free, budget: admit(line, held, len(line), budget), "there are only `free` seats."),
        (
            lambda line, *rest: len(line) - admit(line, *rest),
            "these are the ones who stay in line. Count who leaves it.",
        ),
    ),
)

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
    yield "a long one at the head", ([6, 1, 1, 1, 1, 1], 2)
    yield "a long one at the end", ([1, 1, 1, 6], 2)
    yield "one seat", ([3, 1, 2], 1)
    draw = random.Random(10)
    for _ in range(20):
        yield "random lengths", ([draw.randint(1, 30) for _ in range(draw.randint(1, 20))], draw.randint(1, 6))


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
        (lambda lengths, slots: (sum(lengths), continuous_steps(lengths, slots)), "a batch shares its steps: max."),
        (lambda lengths, slots: (max(lengths), continuous_steps(lengths, slots)), "a batch holds `slots` requests."),
        (
            lambda lengths, slots: (static_steps(lengths, slots), -(-sum(lengths) // slots)),
            "no schedule fills every seat to the end. An answer can't be cut in two and said in two seats at once.",
        ),
        (
            lambda lengths, slots: (static_steps(lengths, slots), _turns(lengths, slots)),
            "you dealt the seats out in turn. The next in line takes the seat that is free first.",
        ),
        (
            lambda lengths, slots: (static_steps(lengths, slots), continuous_steps(sorted(lengths)[::-1], slots)),
            "you seated the longest first. Nobody knows the lengths beforehand, and the line has an order.",
        ),
    ),
)
