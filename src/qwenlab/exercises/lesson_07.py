"""The exercises of lesson 07: schedule-steps, admit and next-chunk."""

import random
from collections.abc import Callable

from qwenlab.exercises import Cases, Exercise

EXERCISES: dict[str, Exercise] = {}

# --- schedule-steps: (lengths, slots) -> static, continuous: numbers of steps ---


def static_steps(lengths: list[int], slots: int) -> int:
    """Batches of `slots` in order of arrival, each as long as its longest."""
    return sum(max(lengths[i : i + slots]) for i in range(0, len(lengths), slots))


def continuous_steps(lengths: list[int], slots: int) -> int:
    """Whoever is next takes the seat that is free first."""
    ends = [0] * slots
    for length in lengths:
        ends[ends.index(min(ends))] += length
    return max(ends)


def schedule_steps(lengths: list[int], slots: int) -> tuple[int, int]:
    return static_steps(lengths, slots), continuous_steps(lengths, slots)


def _turns(lengths: list[int], slots: int) -> int:
    return max(sum(lengths[slot::slots]) for slot in range(slots))


def _runs() -> Cases:
    yield "all have a seat", ([5, 2, 3], 3)
    yield "a last batch that is not full", ([1, 5, 1, 6, 2], 2)
    yield "seats that can't all be full", ([3, 3, 2, 2, 2], 2)
    yield "a long one at the head", ([6, 1, 1, 1, 1, 1], 2)
    yield "a long one at the end", ([1, 1, 1, 6], 2)
    yield "one seat", ([3, 1, 2], 1)
    draw = random.Random(10)
    for _ in range(20):
        lengths = [draw.randint(1, 30) for _ in range(draw.randint(1, 20))]
        yield "random lengths", (lengths, draw.randint(1, 6))


def _full_batches(lengths: list[int], slots: int) -> int:
    return static_steps(lengths[: len(lengths) // slots * slots], slots)


_GAPS = (
    "no schedule fills every seat to the end. An answer can't be cut in two and said in two "
    "seats at once."
)
_SORTED = (
    "you sorted the line for continuous. Nobody knows the lengths beforehand, and the line has "
    "an order."
)

EXERCISES["schedule-steps"] = Exercise(
    schedule_steps,
    results=("static", "continuous"),
    cases=_runs,
    mistakes=(
        (
            lambda *given: schedule_steps(*given)[::-1],
            "the two values are swapped: static comes first.",
        ),
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
        (
            lambda lengths, slots: (sum(lengths), continuous_steps(lengths, slots)),
            "a batch shares its steps: max.",
        ),
        (
            lambda lengths, slots: (max(lengths), continuous_steps(lengths, slots)),
            "a batch holds `slots` requests.",
        ),
        (
            lambda lengths, slots: schedule_steps([length - 1 for length in lengths], slots),
            "the prefill is a step, too. A request of length L takes L steps, not L - 1.",
        ),
        (
            lambda lengths, slots: (
                static_steps(sorted(lengths), slots),
                continuous_steps(lengths, slots),
            ),
            "static takes the line as it stands, in order of arrival. Don't sort it.",
        ),
        (
            lambda lengths, slots: (
                _full_batches(lengths, slots),
                continuous_steps(lengths, slots),
            ),
            "you left out the last batch, since it isn't full. It runs all the same.",
        ),
        (
            lambda lengths, slots: (static_steps(lengths, slots),) * 2,
            "this is static twice. With continuous batching nobody waits for the end of a batch.",
        ),
        (
            lambda lengths, slots: (
                static_steps(lengths, slots),
                continuous_steps(sorted(lengths), slots),
            ),
            _SORTED,
        ),
        (
            lambda lengths, slots: (
                static_steps(lengths, slots),
                continuous_steps(sorted(lengths)[::-1], slots),
            ),
            _SORTED,
        ),
        (
            lambda lengths, slots: (
                static_steps(lengths, slots),
                max(max(lengths), -(-sum(lengths) // slots)),
            ),
            _GAPS,
        ),
        (lambda lengths, slots: (static_steps(lengths, slots), -(-sum(lengths) // slots)), _GAPS),
        (
            lambda lengths, slots: (static_steps(lengths, slots), _turns(lengths, slots)),
            "you dealt the seats out in turn. The next in line takes the seat that is free first.",
        ),
    ),
)

# --- admit: (waiting, held, free, budget) -> how many of the line get a seat ---


def admit(
    waiting: list[int],
    held: int,
    free: int,
    budget: int,
    overtake: bool = False,
    says: int = 1,
    adds: bool = True,
) -> int:
    """How many of the line are admitted. A newcomer takes its prompt and its first token.

    waiting: prompt lengths in order of arrival. overtake, says and adds make mistaken ways.
    """
    seated = 0
    for length in waiting:
        if seated == free or (held + length + says > budget and not overtake):
            break
        if held + length + says <= budget:
            seated += 1
            if adds:
                held += length + says
    return seated


def _lines() -> Cases:
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


def _all_or_nobody(line: list[int], held: int, free: int, budget: int) -> int:
    seats = min(free, len(line))
    return seats if admit(line, held, free, budget) == seats else 0


EXERCISES["admit"] = Exercise(
    admit,
    results=("seated",),
    cases=_lines,
    # In reverse: of two that give the same on a case, the first is the one that was right on the
    # cases before.
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
        (
            lambda line, held, *rest: admit(line, 0, *rest),
            "those who run hold tokens already: start from `held`.",
        ),
        (
            lambda *given: admit(*given, says=0),
            "a newcomer says a token in the same step. It takes its length and one more.",
        ),
        (
            lambda *given: admit(*given, adds=False),
            "each fits alone, but not together. What a newcomer takes is gone for the next.",
        ),
        (
            lambda line, held, free, _: admit(line, held, free, 10**9),
            "nobody looked at the budget.",
        ),
        (
            lambda line, held, free, budget: min(
                len(line), free, admit(line, held, free, budget) + 1
            ),
            "you count the one who doesn't fit any more. Look whether somebody fits before you "
            "count.",
        ),
        (
            _all_or_nobody,
            "you let in all or nobody. Whoever fits gets a seat, also where those behind don't.",
        ),
        (
            lambda line, held, free, budget: admit(line, held, len(line), budget),
            "there are only `free` seats.",
        ),
        (
            lambda line, *rest: len(line) - admit(line, *rest),
            "these are the ones who stay in line. Count who leaves it.",
        ),
    ),
)

# --- next-chunk: (size, read, decoding, room) -> start, end, speaks ---


def next_chunk(size: int, read: int, decoding: int, room: int) -> tuple[int, int, bool]:
    """The part of a prompt that a step of `room` tokens prefills beside `decoding` rows."""
    end = min(size, read + max(0, room - decoding))
    return read, end, end == size


def _parts() -> Cases:
    yield "a short prompt", (5, 0, 0, 8)
    yield "nobody else", (20, 0, 0, 8)
    yield "three rows decode", (20, 0, 3, 8)
    yield "some is read already", (20, 5, 3, 8)
    yield "the last part", (12, 10, 3, 8)
    yield "the last part just fits", (10, 5, 3, 8)
    yield "more rows than room", (20, 4, 9, 8)
    draw = random.Random(11)
    for _ in range(20):
        size = draw.randint(1, 60)
        yield "random steps", (size, draw.randrange(size), draw.randint(0, 12), draw.randint(1, 40))


def _ends(end: Callable) -> Callable:
    """A mistaken end(size, read, room that is left)."""

    def part(size: int, read: int, decoding: int, room: int) -> tuple[int, int, bool]:
        last = end(size, read, room - decoding)
        return read, last, last >= size

    return part


def _last(*given: int) -> tuple[int, int, bool]:
    start, end, speaks = next_chunk(*given)
    return start, end - 1, speaks


def _count(size: int, read: int, decoding: int, room: int) -> tuple[int, int, bool]:
    start, end, speaks = next_chunk(size, read, decoding, room)
    return start, end - start, speaks


EXERCISES["next-chunk"] = Exercise(
    next_chunk,
    results=("start", "end", "speaks"),
    cases=_parts,
    mistakes=(
        (
            lambda *given: (*next_chunk(*given)[:2], True),
            "a row speaks only once its whole prompt is read.",
        ),
        (
            lambda size, read, _, room: next_chunk(size, read, 0, room),
            "rows that decode take a token of room each.",
        ),
        (_count, "end is a place in the prompt, not how many tokens are read."),
        (
            lambda size, read, *rest: next_chunk(size, 0, *rest),
            "what was read in earlier steps is in the state. Go on at `read`.",
        ),
        (
            lambda *given: (*next_chunk(*given)[:2], False),
            "with its last part a prompt is whole, and the row speaks.",
        ),
        (
            _ends(lambda size, read, left: read + max(0, left)),
            "you read past the end of the prompt.",
        ),
        (
            _ends(lambda size, read, left: min(size, read + max(0, left - 1))),
            "the token that the row says takes no room: it is computed in the next step. Only "
            "what is read counts.",
        ),
        (
            _ends(lambda size, read, left: size if size - read <= left else read),
            "a prompt may be read in parts. What there is room for is read now.",
        ),
        (
            _ends(lambda size, read, left: min(size, read + left)),
            "no room is left, and your part ends before it starts. Read nothing in this step.",
        ),
        (
            _ends(lambda size, read, left: min(size, read + max(1, left))),
            "no room is left for the prompt. It waits for a step that has some.",
        ),
        (
            _last,
            "end is the place behind the last token that is read, as in prompt[start:end].",
        ),
    ),
)
