"""The exercises of lesson 11: last-box, won-and-lost and problems-needed."""

import random
import re
from collections.abc import Callable
from math import ceil, sqrt

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


def _ends_with_the_text(text: str) -> str:
    """Counts the braces, and takes one letter too few where they never close."""
    place = text.rfind(START)
    return last_box(text) or (text[place + len(START) : -1].strip() if place >= 0 else "")


def _to_the_last_brace(text: str) -> str:
    place = text.rfind(START)
    return text[place + len(START) :].rpartition("}")[0].strip() if place >= 0 else ""


def _with_spaces(text: str) -> str:
    place = text.rfind(START)
    return _raw(text, place + len(START)) if place >= 0 else ""


def _greedy(text: str) -> str:
    """From the FIRST box to the last closing brace, as the pattern `(.*)` reads."""
    found = re.findall(r"\\boxed\{(.*)\}", text)
    return found[-1].strip() if found else ""


def _with_its_braces(text: str) -> str:
    inside = last_box(text)
    return f"{{{inside}}}" if inside else ""


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
            _greedy,
            "`(.*)` takes all it can get, from the first box to the last closing brace. Braces "
            "are counted, not matched.",
        ),
        (_with_its_braces, "the outer braces are those of \\boxed. Leave them off."),
        (
            _last_closed,
            "the last box is empty or never closes, and an earlier one does not stand in for it.",
        ),
        (_rest_too, "a box that never closes is no answer, whatever it holds so far."),
        (
            _ends_with_the_text,
            "your loop also ends with the text. Then the box is open, and there is no answer.",
        ),
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

# --- won-and-lost: (records, records) -> problems that only one of the runs gets right ---

Records = list[dict]


def won_and_lost(first: Records, second: Records) -> tuple[int, int]:
    pairs = _pairs(first, second)
    return pairs.count((True, False)), pairs.count((False, True))


def _pairs(first: Records, second: Records) -> list[tuple[bool, bool]]:
    """Both verdicts on each problem that both runs have."""
    others = _verdicts(second)
    pairs = []
    for number, verdict in _verdicts(first).items():
        if number in others:
            pairs.append((verdict, others[number]))
    return pairs


def _verdicts(records: Records) -> dict[int, bool]:
    return {record["number"]: record["verdict"] for record in records}


def _records(text: str) -> Records:
    """ "3+ 1-": problem 3 is right, then problem 1 is wrong."""
    return [{"number": int(one[:-1]), "verdict": one[-1] == "+"} for one in text.split()]


def _runs() -> Cases:
    yield "the same order", (_records("0+ 1- 2+ 3+ 4- 5- 6-"), _records("0- 1+ 2+ 3- 4- 5- 6-"))
    yield "another order", (_records("0+ 1- 2+ 3-"), _records("3- 2+ 0+ 1+"))
    yield "the second run was killed", (_records("0+ 1+ 2- 3+"), _records("3- 1+"))
    yield "the first run was killed", (_records("2-"), _records("0+ 1+ 2+ 3-"))
    yield "sorted, each lacks one", (_records("0+ 1- 2+"), _records("1- 2+ 3-"))
    yield "all agree", (_records("4+ 7- 9+"), _records("9+ 4+ 7-"))
    draw = random.Random(11)
    for _ in range(20):
        numbers = draw.sample(range(100), draw.randint(2, 12))
        runs = []
        for _ in range(2):
            kept = draw.sample(numbers, draw.randint(1, len(numbers)))
            runs.append([{"number": one, "verdict": draw.random() < 0.6} for one in kept])
        yield "random runs", tuple(runs)


def _by_place(first: Records, second: Records) -> tuple[int, int]:
    pairs = []
    for one, two in zip(first, second, strict=False):
        pairs.append((one["verdict"], two["verdict"]))
    return pairs.count((True, False)), pairs.count((False, True))


def _sorted_by_place(first: Records, second: Records) -> tuple[int, int]:
    def number(record: dict) -> int:
        return record["number"]

    return _by_place(sorted(first, key=number), sorted(second, key=number))


def _missing_is_wrong(first: Records, second: Records) -> tuple[int, int]:
    right = []
    for records in (first, second):
        right.append({number for number, verdict in _verdicts(records).items() if verdict})
    return len(right[0] - right[1]), len(right[1] - right[0])


def _totals(first: Records, second: Records) -> tuple[int, int]:
    pairs = _pairs(first, second)
    return sum(one for one, _ in pairs), sum(two for _, two in pairs)


def _agreeing(first: Records, second: Records) -> tuple[int, int]:
    pairs = _pairs(first, second)
    return pairs.count((True, True)), pairs.count((False, False))


def _net(first: Records, second: Records) -> tuple[int, int]:
    won, lost = won_and_lost(first, second)
    return max(won - lost, 0), max(lost - won, 0)


EXERCISES["won-and-lost"] = Exercise(
    won_and_lost,
    results=("won", "lost"),
    cases=_runs,
    mistakes=(
        (
            _sorted_by_place,
            "where one run lacks a problem, all later places differ, even in sorted lists. Look "
            "each number up.",
        ),
        (
            _by_place,
            "records are in the order in which answers ended. Pair them by number, not by place.",
        ),
        (
            _missing_is_wrong,
            "a problem that one run lacks says nothing about either: leave it out.",
        ),
        (
            lambda first, second: won_and_lost(first, second)[::-1],
            "first the problems that only the first run gets right, then those of the second.",
        ),
        (_totals, "these are all right answers. Count the problems that exactly one gets right."),
        (_agreeing, "here both runs agree. Count the problems on which they differ."),
        (
            _net,
            "this is what is left of the difference. The test needs both counts, since 4 to 0 is "
            "rarer than 14 to 10.",
        ),
    ),
)

# --- problems-needed: (p, width) -> the fewest problems whose interval is narrow enough ---

Z = 1.96


def problems_needed(p: float, width: float) -> int:
    return _first(lambda n: interval_width(p, n) <= width)


def interval_width(p: float, n: int, z: float = Z) -> float:
    """From the lower end of Wilson's interval to the upper one."""
    return 2 * z * sqrt(p * (1 - p) / n + z**2 / (4 * n**2)) / (1 + z**2 / n)


def _above(p: float, n: int) -> float:
    """From p to the upper end of Wilson's interval."""
    centre = (p + Z**2 / (2 * n)) / (1 + Z**2 / n)
    return centre + interval_width(p, n) / 2 - p


def _first(enough: Callable[[int], bool]) -> int:
    """The smallest n that is enough, where each larger one is enough as well."""
    high = 1
    while not enough(high):
        high *= 2
    low = high // 2  # not enough
    while high - low > 1:
        middle = (low + high) // 2
        if enough(middle):
            high = middle
        else:
            low = middle
    return high


def _widths() -> Cases:
    yield "four in five, to a tenth", (0.8, 0.1)
    yield "all right", (1.0, 0.1)
    yield "none right", (0.0, 0.3)
    yield "one half", (0.5, 0.05)
    yield "one problem is enough", (0.5, 0.9)
    draw = random.Random(13)
    for _ in range(20):
        yield "random shares", (draw.randint(0, 50) / 50, draw.randint(5, 60) / 100)


EXERCISES["problems-needed"] = Exercise(
    problems_needed,
    results=("n",),
    cases=_widths,
    mistakes=(
        (
            lambda p, width: problems_needed(p, 2 * width),
            "the width goes from the lower end to the upper one, not from p to one end.",
        ),
        (
            lambda p, width: max(1, ceil(4 * Z**2 * p * (1 - p) / width**2)),
            "this is for the interval p ± z·√(p(1−p)/n), which has no width at all where every "
            "answer is right.",
        ),
        (
            lambda p, width: max(1, ceil(Z**2 * p * (1 - p) / width**2)),
            "width goes from end to end, but z·√(p(1−p)/n) reaches only from p to one end, and is "
            "not Wilson's.",
        ),
        (
            lambda p, width: problems_needed(0.5, width),
            "this is for p = 0.5, where the interval is widest. Use the p that is given.",
        ),
        (
            lambda p, width: problems_needed(p, width) - 1,
            "with this number the interval is still wider than allowed. Take the next one.",
        ),
        (
            lambda p, width: _first(lambda n: interval_width(p, n, 1.0) <= width),
            "with z = 1 this is the 68 % interval. For 95 % z is 1.96.",
        ),
        (
            lambda p, width: _first(lambda n: interval_width(p, n, 2.0) <= width),
            "z = 2 is 1.96 rounded up. Take `accuracy_interval` as it is.",
        ),
        (
            lambda p, width: int(4 * Z**2 * p * (1 - p) / width**2),
            "this is for the interval p ± z·√(p(1−p)/n), and 0 problems tell nothing.",
        ),
        (
            lambda p, width: ceil(Z**2 / width**2),
            "this is p ± z·√(p(1−p)/n) at p = 0.5. Use Wilson's interval, and the p that is given.",
        ),
        (
            lambda p, width: _first(lambda n: _above(p, n) <= width),
            "you measure from p to the upper end. The width goes from the lower end to the upper.",
        ),
        (
            lambda p, width: 10 * ceil(problems_needed(p, width) / 10),
            "enough, but not the smallest: go up by single problems.",
        ),
        (
            lambda p, width: ceil(1 / width),
            "the width shrinks with the square root of n: half the width takes four times the "
            "problems.",
        ),
    ),
)
