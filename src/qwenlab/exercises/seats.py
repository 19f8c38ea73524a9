"""The exercise of lesson 07 on seats: admit."""

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
    yield "prompts larger than the budget", ([50, 60], 0, 2, 40)
    yield "newcomers add up", ([10, 10, 10], 0, 3, 25)
    yield "a token each for the answer", ([10, 10], 0, 2, 21)
    yield "what runs already holds some", ([10, 10], 30, 4, 41)
    yield "the longest at the head", ([8, 3, 2], 0, 3, 10)
    yield "a head that does not fit", ([30, 2], 5, 2, 20)
    draw = random.Random(9)
    for _ in range(20):
        line = [draw.randint(1, 30) for _ in range(draw.randint(0, 8))]
        yield "random lines", (line, draw.randint(0, 60), draw.randint(0, 6), draw.randint(60, 150))


def _all_or_nobody(line, held, free, budget):
    seats = min(free, len(line))
    return seats if admit(line, held, free, budget) == seats else 0


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
        (
            lambda line, held, free, budget: min(len(line), free, admit(line, held, free, budget) + 1),
            "you count the one who doesn't fit any more. Look whether somebody fits before you count.",
        ),
        (
            _all_or_nobody,
            "you let in all or nobody. Whoever fits gets a seat, also where those behind don't.",
        ),
        (lambda line, held, free, budget: admit(line, held, len(line), budget), "there are only `free` seats."),
        (
            lambda line, *rest: len(line) - admit(line, *rest),
            "these are the ones who stay in line. Count who leaves it.",
        ),
    ),
)
