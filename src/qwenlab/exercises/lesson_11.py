"""The exercises of lesson 11: last-box, problems-left and accuracy-interval."""

import json
import random
import re
from collections.abc import Container

from qwenlab.exercises import Cases, Exercise

EXERCISES: dict[str, Exercise] = {}

# --- last-box: (text) -> what the last \boxed{...} holds, "" where there is no answer ---

START = "\\boxed{"


def last_box(text: str) -> str:
    place = text.rfind(START)
    return _inside(text, place + len(START)) if place >= 0 else ""


def _inside(text: str, start: int) -> str:
    """The text from `start` up to the closing brace; "" if there is none."""
    return _raw(text, start).strip()


def _raw(text: str, start: int) -> str:
    depth = 1
    for place in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[start:place]
    return ""


def _texts() -> Cases:
    yield "one box", (r"so \boxed{42} it is.",)
    yield "two boxes", (r"\boxed{5}? No, wait: \boxed{7}, I am sure.",)
    yield "braces in the box", (r"that is \boxed{\frac{1}{2}} of {all}",)
    yield "a box that never closes", (r"\boxed{6}, no, \boxed{7}, or rather \boxed{\frac{8}{9",)
    yield "an empty last box", (r"\boxed{6}, \boxed{7} and \boxed{}",)
    yield "spaces", (r"\boxed{ 3 }",)
    yield "no box", ("The answer is 42.",)
    draw = random.Random(14)
    for _ in range(20):
        forms = [r"\boxed{%d}", r"\boxed{\frac{%d}{3}}", "%d", "{%d}", r"\boxed{ %d }"]
        pieces = [draw.choice(forms) for _ in range(4)]
        text = " ".join(pieces) % tuple(draw.randint(0, 99) for _ in pieces)
        yield "random texts", (text + draw.choice(["", ".", r" \boxed{", " }"]),)


def _first(text: str) -> str:
    place = text.find(START)
    return _inside(text, place + len(START)) if place >= 0 else ""


def _last_closed(text: str) -> str:
    last = ""
    for match in re.finditer(re.escape(START), text):
        last = _inside(text, match.end()) or last
    return last


def _to_the_first_brace(text: str) -> str:
    place = text.rfind(START)
    return text[place + len(START) :].partition("}")[0].strip() if place >= 0 else ""


def _rest_too(text: str) -> str:
    place = text.rfind(START)
    return last_box(text) or (text[place + len(START) :].strip() if place >= 0 else "")


def _to_the_last_brace(text: str) -> str:
    place = text.rfind(START)
    return text[place + len(START) :].rpartition("}")[0].strip() if place >= 0 else ""


def _with_spaces(text: str) -> str:
    place = text.rfind(START)
    return _raw(text, place + len(START)) if place >= 0 else ""


def _whole_text(text: str) -> str:
    return last_box(text) if START in text else text


EXERCISES["last-box"] = Exercise(
    last_box,
    results=("answer",),
    cases=_texts,
    mistakes=(
        (_first, "this is the first box. Models change their minds: the last one counts."),
        (_to_the_first_brace, "you stop at the first closing brace. Count how many are open."),
        (
            _to_the_last_brace,
            "you read up to the last closing brace of the text. The box ends at its own.",
        ),
        (
            _last_closed,
            "the last box is empty or never closes, and an earlier one does not stand in for it.",
        ),
        (_rest_too, "a box that never closes is no answer, whatever it holds so far."),
        (_with_spaces, "spaces around the answer do not belong to it: strip them."),
        (_whole_text, "a text without a box has no answer here: return the empty string."),
    ),
    rules=(
        (
            "answer",
            lambda text: (
                "the answer is what stands between the braces." if "boxed" in text else None
            ),
        ),
    ),
)

# --- problems-left: (content of the file of records, numbers of problems) -> kept, left ---


def problems_left(content: str, numbers: list[int]) -> tuple[str, list[int]]:
    kept = content[: content.rfind("\n") + 1]
    return kept, _without(_done(kept), numbers)


def _without(found: Container[int], numbers: list[int]) -> list[int]:
    return [number for number in numbers if number not in found]


def _done(content: str) -> set[int]:
    """The numbers of all lines that are JSON."""
    done = set()
    for line in content.splitlines():
        try:
            done.add(json.loads(line)["number"])
        except ValueError:
            pass
    return done


def _files() -> Cases:
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
        content = ""
        for number in done:
            content += json.dumps({"number": number, "verdict": draw.random() < 0.5}) + "\n"
        yield "random files", (content[: len(content) - draw.choice((0, 0, 1, 9))], numbers)


def _by_count(content: str, numbers: list[int]) -> tuple[str, list[int]]:
    kept = problems_left(content, numbers)[0]
    return kept, numbers[len(kept.splitlines()) :]


def _by_text(content: str, numbers: list[int]) -> tuple[str, list[int]]:
    kept = problems_left(content, numbers)[0]
    return kept, [number for number in numbers if str(number) not in kept]


def _torn_stays(content: str, numbers: list[int]) -> tuple[str, list[int]]:
    return content, problems_left(content, numbers)[1]


def _torn_counts(content: str, numbers: list[int]) -> tuple[str, list[int]]:
    return content, _without(_done(content), numbers)


def _torn_counts_but_goes(content: str, numbers: list[int]) -> tuple[str, list[int]]:
    return problems_left(content, numbers)[0], _torn_counts(content, numbers)[1]


def _done_ones(content: str, numbers: list[int]) -> tuple[str, list[int]]:
    kept, left = problems_left(content, numbers)
    return kept, _without(left, numbers)


def _sorted(content: str, numbers: list[int]) -> tuple[str, list[int]]:
    kept, left = problems_left(content, numbers)
    return kept, sorted(left)


def _last_line_always_goes(content: str, numbers: list[int]) -> tuple[str, list[int]]:
    kept = content[: content[:-1].rfind("\n") + 1]
    return kept, problems_left(kept, numbers)[1]


EXERCISES["problems-left"] = Exercise(
    problems_left,
    results=("kept", "left"),
    cases=_files,
    mistakes=(
        (
            _by_count,
            "records are in the order in which answers ended. Find what is done by number, not "
            "by counting.",
        ),
        (
            _by_text,
            "you looked for the digits anywhere in the text: 12 holds a 2. Read each line with "
            "json.loads.",
        ),
        (
            _torn_counts,
            "a line counts only with its line break. Drop what comes after the last one.",
        ),
        (
            _torn_counts_but_goes,
            "the torn line is dropped, so its problem must be asked again: read what is kept.",
        ),
        (
            _torn_stays,
            "the numbers are right, but the torn line is still in the file: the next record "
            "would be glued to it.",
        ),
        (_done_ones, "these are the problems that are done. Return those that are not."),
        (_sorted, "keep the order in which the numbers were given."),
        (_last_line_always_goes, "a last line that has its line break is complete and may stay."),
    ),
)

# --- accuracy-interval: (right, n) -> low, high ---


def accuracy_interval(right: int, n: int, z: float = 1.96) -> tuple[float, float]:
    p = right / n
    centre = p + z**2 / (2 * n)
    half = z * (p * (1 - p) / n + z**2 / (4 * n**2)) ** 0.5
    scale = 1 + z**2 / n
    return (centre - half) / scale, (centre + half) / scale


def _shares() -> Cases:
    yield "half of 20", (10, 20)
    yield "all right", (20, 20)
    yield "none right", (0, 5)
    yield "one of one", (1, 1)
    draw = random.Random(13)
    for _ in range(20):
        n = draw.randint(1, 1000)
        yield "random counts", (draw.randint(0, n), n)


def _wald(right: int, n: int) -> tuple[float, float]:
    p = right / n
    half = 1.96 * (p * (1 - p) / n) ** 0.5
    return p - half, p + half


def _unscaled(right: int, n: int) -> tuple[float, float]:
    low, high = accuracy_interval(right, n)
    return low * (1 + 1.96**2 / n), high * (1 + 1.96**2 / n)


def _half_scaled(right: int, n: int) -> tuple[float, float]:
    low, high = accuracy_interval(right, n)
    centre = (low + high) / 2 * (1 + 1.96**2 / n)
    half = (high - low) / 2
    return centre - half, centre + half


EXERCISES["accuracy-interval"] = Exercise(
    accuracy_interval,
    results=("low", "high"),
    cases=_shares,
    mistakes=(
        (
            _wald,
            "this is p ± z·√(p(1−p)/n). Its width is 0 where all are right, and its limits may "
            "lie outside 0 to 1.",
        ),
        (_unscaled, "the last step is missing: divide both limits by 1 + z²/n."),
        (_half_scaled, "divide the centre by 1 + z²/n as well, not only the half-width."),
        (
            lambda right, n: accuracy_interval(right, n, 1.0),
            "with z = 1 this is the 68 % interval. For 95 % z is 1.96.",
        ),
        (lambda right, n: accuracy_interval(right, n)[::-1], "low comes first, then high."),
        (
            lambda right, n: tuple(100 * x for x in accuracy_interval(right, n)),
            "return shares of 1, not per cent.",
        ),
    ),
)
