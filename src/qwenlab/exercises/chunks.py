"""The exercise of lesson 07 on chunks: next-chunk, (size, read, decoding, room) -> start, end, speaks."""

import random

from qwenlab.teach.checking import exercise


def next_chunk(size, read, decoding, room):
    """The part start..end of a prompt that a step of `room` tokens reads beside `decoding` rows that say one each."""
    end = min(size, read + max(0, room - decoding))
    return read, end, end == size


def _parts():
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


def _ends(end):
    """A mistaken end(size, read, room that is left)."""

    def part(size, read, decoding, room):
        last = end(size, read, room - decoding)
        return read, last, last >= size

    return part


def _last(*given):
    start, end, speaks = next_chunk(*given)
    return start, end - 1, speaks


def _count(size, read, decoding, room):
    start, end, speaks = next_chunk(size, read, decoding, room)
    return start, end - start, speaks


exercise(
    "next-chunk",
    next_chunk,
    results=("start", "end", "speaks"),
    cases=_parts,
    mistakes=(
        (lambda *given: (*next_chunk(*given)[:2], True), "a row speaks only once its whole prompt is read."),
        (lambda size, read, _, room: next_chunk(size, read, 0, room), "rows that decode take a token of room each."),
        (_count, "end is a place in the prompt, not how many tokens are read."),
        (
            lambda size, read, *rest: next_chunk(size, 0, *rest),
            "what was read in earlier steps is in the state. Go on at `read`.",
        ),
        (lambda *given: (*next_chunk(*given)[:2], False), "with its last part a prompt is whole, and the row speaks."),
        (_ends(lambda size, read, left: read + max(0, left)), "you read past the end of the prompt."),
        (
            _ends(lambda size, read, left: min(size, read + max(0, left - 1))),
            "the token that the row says takes no room: it is computed in the next step. Only what is read counts.",
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
