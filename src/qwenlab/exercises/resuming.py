"""Exercises of lesson 11: problems-left and accuracy-interval. The third, last-box, is in boxes.py."""

import json
import random

from qwenlab.teach.checking import exercise

# --- problems-left: (content of the file of records, numbers of problems) -> what stays in it, what is left to do ---


def problems_left(content, numbers):
    kept = content[: content.rfind("\n") + 1]
    done = _done(kept)
    return kept, [number for number in numbers if number not in done]


def _done(content):
    """The numbers of all lines that are JSON."""
    done = set()
    for line in content.splitlines():
        try:
            done.add(json.loads(line)["number"])
        except ValueError:
            pass
    return done


def _files():
    one, two, twelve = (f'{{"number": {number}, "verdict": true}}\n' for number in (1, 2, 12))
    yield "an empty file", ("", [1, 2, 3])
    yield "records in another order", (two + twelve, [1, 2, 12])
    yield "a whole line without its line break", (two + one[:-1], [1, 2, 3])
    yield "a torn last line", (two + one[:14], [1, 2, 3])
    yield "nothing but a torn line", (one[:9], [1, 2])
    yield "numbers that look alike", (twelve, [2, 1, 12, 112])
    yield "all are there", (one + two, [2, 1])
    draw = random.Random(11)
    for _ in range(20):
        numbers = draw.sample(range(100), draw.randint(1, 9))
        done = draw.sample(numbers, draw.randint(0, len(numbers)))
        content = "".join(json.dumps({"number": number, "verdict": draw.random() < 0.5}) + "\n" for number in done)
        yield "random files", (content[: len(content) - draw.choice((0, 0, 1, 9))], numbers)


def _by_count(content, numbers):
    kept = problems_left(content, numbers)[0]
    return kept, numbers[len(kept.splitlines()) :]


def _by_text(content, numbers):
    kept = problems_left(content, numbers)[0]
    return kept, [number for number in numbers if str(number) not in kept]


def _torn_stays(content, numbers):
    return content, problems_left(content, numbers)[1]


def _torn_counts(content, numbers):
    done = _done(content)
    return content, [number for number in numbers if number not in done]


def _torn_counts_but_goes(content, numbers):
    return problems_left(content, numbers)[0], _torn_counts(content, numbers)[1]


def _done_ones(content, numbers):
    kept, left = problems_left(content, numbers)
    return kept, [number for number in numbers if number not in left]


def _sorted(content, numbers):
    kept, left = problems_left(content, numbers)
    return kept, sorted(left)


def _last_line_always_goes(content, numbers):
    kept = content[: content[:-1].rfind("\n") + 1]
    return kept, problems_left(kept, numbers)[1]


exercise(
    "problems-left",
    problems_left,
    results=("kept", "left"),
    cases=_files,
    mistakes=(
        (_by_count, "records stand in order of ending. Which problems are there is found by number, not by counting."),
        (_by_text, "you looked for the digits anywhere in the text: 12 holds a 2. Read each line with json.loads."),
        (_torn_counts, "a line counts only with its line break. What comes behind the last one must go."),
        (_torn_counts_but_goes, "the last line goes, so its problem must be asked again: read what is kept."),
        (_torn_stays, "the numbers are right, but the torn line is still in the file: the next one is glued to it."),
        (_done_ones, "these are the problems that are done. Asked are those that are not."),
        (_sorted, "keep the order in which the numbers were given."),
        (_last_line_always_goes, "a last line that has its line break is whole, and may stay."),
    ),
)

# --- accuracy-interval: (right, n) -> low, high ---


def accuracy_interval(right, n, z=1.96):
    p = right / n
    centre, half = p + z**2 / (2 * n), z * (p * (1 - p) / n + z**2 / (4 * n**2)) ** 0.5
    return (centre - half) / (1 + z**2 / n), (centre + half) / (1 + z**2 / n)


def _shares():
    yield "half of 20", (10, 20)
    yield "all right", (20, 20)
    yield "none right", (0, 5)
    yield "one of one", (1, 1)
    draw = random.Random(13)
    for _ in range(20):
        n = draw.randint(1, 1000)
        yield "random counts", (draw.randint(0, n), n)


def _wald(right, n):
    p = right / n
    half = 1.96 * (p * (1 - p) / n) ** 0.5
    return p - half, p + half


def _unscaled(right, n):
    low, high = accuracy_interval(right, n)
    return low * (1 + 1.96**2 / n), high * (1 + 1.96**2 / n)


def _half_scaled(right, n):
    low, high = accuracy_interval(right, n)
    centre, half = (low + high) / 2 * (1 + 1.96**2 / n), (high - low) / 2
    return centre - half, centre + half


exercise(
    "accuracy-interval",
    accuracy_interval,
    results=("low", "high"),
    cases=_shares,
    mistakes=(
        (_wald, "this is p ± z·√(p(1−p)/n): no width at all where all are right, and limits outside 0 to 1."),
        (_unscaled, "the last step is missing: divide both limits by 1 + z²/n."),
        (_half_scaled, "the centre is divided by 1 + z²/n as well, not the half width alone."),
        (lambda right, n: accuracy_interval(right, n, 1.0), "this z is 1, the interval of 68 %. For 95 % it is 1.96."),
        (lambda right, n: accuracy_interval(right, n)[::-1], "low comes first, then high."),
        (lambda right, n: tuple(100 * x for x in accuracy_interval(right, n)), "as shares of 1, not in per cent."),
    ),
)
