"""The exercises of lesson 07: schedule-steps, admit and next-chunk."""

import math
import random
from collections.abc import Callable

from qwenlab.exercises import Cases, Exercise, random_numbers

EXERCISES: dict[str, Exercise] = {}

# --- schedule-steps: (lengths, slots) -> static, continuous: numbers of steps ---


def static_steps(lengths: list[int], slots: int) -> int:
    """Batches of `slots` in order of arrival, each as long as its longest."""
    return sum(max(lengths[i : i + slots]) for i in range(0, len(lengths), slots))


def continuous_steps(lengths: list[int], slots: int) -> int:
    """The next request takes the slot that becomes free first."""
    ends = [0] * slots
    for length in lengths:
        ends[ends.index(min(ends))] += length
    return max(ends)


def schedule_steps(lengths: list[int], slots: int) -> tuple[int, int]:
    return static_steps(lengths, slots), continuous_steps(lengths, slots)


def _turns(lengths: list[int], slots: int) -> int:
    return max(sum(lengths[slot::slots]) for slot in range(slots))


def _runs() -> Cases:
    yield "all have a slot", ([5, 2, 3], 3)
    yield "a last batch that is not full", ([1, 5, 1, 6, 2], 2)
    yield "slots that can't all be full", ([3, 3, 2, 2, 2], 2)
    yield "a long one at the head", ([6, 1, 1, 1, 1, 1], 2)
    yield "a long one at the end", ([1, 1, 1, 6], 2)
    yield "one slot", ([3, 1, 2], 1)
    draw = random.Random(10)
    for _ in range(20):
        lengths = random_numbers(draw, 20, 30)
        yield "random lengths", (lengths, draw.randint(1, 6))


def _shifted(lengths: list[int], by: int) -> list[int]:
    return [length + by for length in lengths]


def _full_batches(lengths: list[int], slots: int) -> int:
    return static_steps(lengths[: len(lengths) // slots * slots], slots)


_GAPS = (
    "no schedule fills every slot to the end. An answer can't be split and generated in two slots "
    "at once."
)
_SORTED = (
    "you sorted the queue for continuous. Nobody knows the lengths beforehand, and the queue has "
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
            lambda lengths, slots: schedule_steps(_shifted(lengths, 1), slots),
            "the prefill yields the first token. A request of length L takes L steps, not L + 1.",
        ),
        (
            lambda lengths, slots: (
                static_steps(lengths, slots),
                continuous_steps(_shifted(lengths, 1), slots) - 1,
            ),
            "a slot that becomes free in one step is taken in the very next one.",
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
            lambda lengths, slots: (
                max(lengths) * math.ceil(len(lengths) / slots),
                continuous_steps(lengths, slots),
            ),
            "each batch ends with its own longest answer, not with the longest of all.",
        ),
        (
            lambda lengths, slots: schedule_steps(_shifted(lengths, -1), slots),
            "the prefill is a step too. A request of length L takes L steps, not L - 1.",
        ),
        (
            lambda lengths, slots: (
                static_steps(sorted(lengths), slots),
                continuous_steps(lengths, slots),
            ),
            "static takes the queue as it is, in order of arrival. Don't sort it.",
        ),
        (
            lambda lengths, slots: (
                _full_batches(lengths, slots),
                continuous_steps(lengths, slots),
            ),
            "you left out the last batch because it isn't full. It runs all the same.",
        ),
        (
            lambda lengths, slots: (static_steps(lengths, slots),) * 2,
            "this is static twice. In continuous batching no request waits for a batch to end.",
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
            lambda lengths, slots: (static_steps(lengths, slots), max(lengths)),
            "the longest answer is a lower bound only: where requests wait for a slot, the last "
            "ones end later.",
        ),
        (
            lambda lengths, slots: (
                static_steps(lengths, slots),
                max(max(lengths), -(-sum(lengths) // slots)),
            ),
            _GAPS,
        ),
        (lambda lengths, slots: (static_steps(lengths, slots), sum(lengths) / slots), _GAPS),
        (lambda lengths, slots: (static_steps(lengths, slots), -(-sum(lengths) // slots)), _GAPS),
        (
            lambda lengths, slots: (static_steps(lengths, slots), _turns(lengths, slots)),
            "you dealt out the slots in turn. The next request takes the slot that is free first.",
        ),
    ),
)

# --- admit: (waiting, held, free, budget) -> how many waiting requests get a slot ---


def admit(
    waiting: list[int],
    held: int,
    free: int,
    budget: int,
    overtake: bool = False,
    sampled: int = 1,
    adds: bool = True,
) -> int:
    """How many waiting requests are admitted. Each takes its prompt and its first token.

    waiting: prompt lengths in order of arrival. overtake, sampled and adds produce mistakes.
    """
    admitted = 0
    for length in waiting:
        if admitted == free or (held + length + sampled > budget and not overtake):
            break
        if held + length + sampled <= budget:
            admitted += 1
            if adds:
                held += length + sampled
    return admitted


def _lines() -> Cases:
    yield "room for all", ([5, 3], 10, 4, 100)
    yield "more waiting than slots", ([6, 2, 4], 0, 2, 100)
    yield "prompts larger than the budget", ([50, 60], 0, 2, 40)
    yield "newcomers add up", ([10, 10, 10], 0, 3, 25)
    yield "a token each for the answer", ([10, 10], 0, 2, 21)
    yield "running requests hold some", ([10, 10], 30, 4, 41)
    yield "the longest at the head", ([8, 3, 2], 0, 3, 10)
    yield "a head that does not fit", ([30, 2], 5, 2, 20)
    draw = random.Random(9)
    for _ in range(20):
        line = random_numbers(draw, 8, 30, fewest=0)
        yield (
            "random queues",
            (line, draw.randint(0, 60), draw.randint(0, 6), draw.randint(60, 150)),
        )


def _all_or_none(line: list[int], held: int, free: int, budget: int) -> int:
    slots = min(free, len(line))
    return slots if admit(line, held, free, budget) == slots else 0


EXERCISES["admit"] = Exercise(
    admit,
    results=("admitted",),
    cases=_lines,
    # In this order, because of two mistakes with the same result on a case the first is shown: it
    # must be the one that passes the cases before.
    mistakes=(
        (
            lambda *given: admit(*given, overtake=True),
            "a long request was overtaken. Where the head of the queue does not fit, stop.",
        ),
        (
            lambda line, *rest: admit(sorted(line), *rest),
            "you admitted the shortest first. The queue is served in order of arrival.",
        ),
        (
            lambda line, held, free, budget: admit(line, held, free, budget - 1),
            "the budget may be used up to its last token.",
        ),
        (
            lambda line, held, *rest: admit(line, 0, *rest),
            "running requests already hold tokens: start from `held`.",
        ),
        (
            lambda *given: admit(*given, sampled=0),
            "a new request samples a token in the same step. It takes its length and one more.",
        ),
        (
            lambda *given: admit(*given, adds=False),
            "each fits alone, but not all together. What one takes is gone for the next.",
        ),
        (
            lambda line, held, free, _: admit(line, held, free, 10**9),
            "you did not use the budget.",
        ),
        (
            lambda line, held, free, budget: min(
                len(line), free, admit(line, held, free, budget) + 1
            ),
            "you count the first request that no longer fits. Check that it fits before you "
            "count it.",
        ),
        (
            _all_or_none,
            "you admit all or none. A request that fits gets a slot even if later ones don't.",
        ),
        (
            lambda line, held, free, budget: admit(line, held, len(line), budget),
            "there are only `free` slots.",
        ),
        (
            lambda line, *rest: len(line) - admit(line, *rest),
            "these are the requests that stay in the queue. Count those that leave it.",
        ),
    ),
)

# --- next-chunk: (size, read, decoding, room) -> start, end, samples ---


def next_chunk(size: int, read: int, decoding: int, room: int) -> tuple[int, int, bool]:
    """The part of a prompt that a step of `room` tokens prefills beside `decoding` rows."""
    end = min(size, read + max(0, room - decoding))
    return read, end, end == size


def _parts() -> Cases:
    yield "a short prompt", (5, 0, 0, 8)
    yield "no row decodes", (20, 0, 0, 8)
    yield "three rows decode", (20, 0, 3, 8)
    yield "part of it prefilled already", (20, 5, 3, 8)
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
    start, end, samples = next_chunk(*given)
    return start, end - 1, samples


def _count(size: int, read: int, decoding: int, room: int) -> tuple[int, int, bool]:
    start, end, samples = next_chunk(size, read, decoding, room)
    return start, end - start, samples


def _start_after(*given: int) -> tuple[int, int, bool]:
    start, end, samples = next_chunk(*given)
    return start + 1, end, samples


EXERCISES["next-chunk"] = Exercise(
    next_chunk,
    results=("start", "end", "samples"),
    cases=_parts,
    mistakes=(
        (
            lambda *given: (*next_chunk(*given)[:2], True),
            "a row samples only once its whole prompt has been read.",
        ),
        (
            lambda size, read, _, room: next_chunk(size, read, 0, room),
            "each row that decodes takes one token of the room.",
        ),
        (_count, "end is a position in the prompt, not the number of tokens read."),
        (
            lambda size, read, *rest: next_chunk(size, 0, *rest),
            "what earlier steps read is in the state. Continue from `read`.",
        ),
        (
            lambda *given: (*next_chunk(*given)[:2], False),
            "the last part completes the prompt, so the row samples.",
        ),
        (
            _start_after,
            "`read` counts the tokens that are read already, so the next one is prompt[read].",
        ),
        (
            _ends(lambda size, read, left: read + max(0, left)),
            "you read past the end of the prompt.",
        ),
        (
            _ends(lambda size, read, left: min(size, read + max(0, left - 1))),
            "the token that the row samples takes no room, because it is computed in the next "
            "step. Only what is read counts.",
        ),
        (
            _ends(lambda size, read, left: size if size - read <= left else read),
            "a prompt may be read in parts. Read as much as there is room for.",
        ),
        (
            _ends(lambda size, read, left: min(size, read + left)),
            "no room is left, so your part ends before it starts. Read nothing in this step.",
        ),
        (
            _ends(lambda size, read, left: min(size, read + max(1, left))),
            "no room is left for the prompt. It waits for a step that has some.",
        ),
        (
            _last,
            "end is the position after the last token that is read, as in prompt[start:end].",
        ),
    ),
)
