"""How the tiny models are taught to think: one line per step, then the boxed answer.

Four dials make sampling from the trained model worth studying:

- SLIP: this share of the written results is wrong, deliberately, and the error is carried on.
- CHECK: this share of the traces works the problem again until two passes agree, which makes a long
  tail of lengths.
- SHUFFLE: this share takes the terms in random order, so that a problem has many right traces.
- WAYS: a model may be taught to name its way before it sets out. The most popular one is a short
  cut that forgets to carry.
"""

import random
from dataclasses import dataclass
from itertools import product

from qwenlab.evaluation.arithmetic import Calculation

SLIP = 0.03
CHECK = 0.25
SHUFFLE = 0.5
MAX_PASSES = 4
ERRORS = (-10, -2, -1, 1, 2, 10)

SHORT_CUT = "quick"
# The share of each way, by the line that names it. Each careful way is rarer than the short cut, so
# greedy decoding takes that; together they are more frequent, so a vote follows them.
WAYS = {
    SHORT_CUT: 0.42,
    "in order": 0.16,
    "backwards": 0.12,
    "largest first": 0.12,
    "tens first": 0.10,
    "twice": 0.08,
}
WAYS_SLIP = 0.01


@dataclass(frozen=True)
class Dials:
    """Shares, from 0 to 1. With `ways`, those take the place of `check` and `shuffle`."""

    slip: float = SLIP
    check: float = CHECK
    shuffle: float = SHUFFLE
    ways: bool = False


def completion(
    rng: random.Random, calculation: Calculation, dials: Dials, thinking: bool = True
) -> tuple[str, int]:
    """What the assistant writes after the chat prompt, without the stop token, and its answer.

    Thinking, it opens the block, reasons, closes it and boxes the answer, which slips may have made
    wrong. Else the prompt holds a closed empty block (Qwen3's template with enable_thinking=False),
    and the text is the right answer in its box at once.
    """
    if not thinking:
        return f"\\boxed{{{calculation.answer}}}", calculation.answer
    lines, answer = think(rng, calculation, dials)
    return "<think>\n" + "\n".join(lines) + f"\n</think>\n\n\\boxed{{{answer}}}", answer


def think(rng: random.Random, calculation: Calculation, dials: Dials) -> tuple[list[str], int]:
    """The lines of a trace and the answer that they lead to, which slips may have made wrong."""
    if calculation.operation in ("first", "last"):  # an earlier answer: nothing to work out
        return [f"{calculation.operation}={calculation.answer}"], calculation.answer
    lines = []
    if dials.ways:
        way = rng.choices(list(WAYS), list(WAYS.values()))[0]
        lines.append(way)
        check = way == "twice"
    else:
        way = "any order" if rng.random() < dials.shuffle else "in order"
        check = rng.random() < dials.check
    answers = []
    for _ in range(MAX_PASSES if check else 1):
        if answers:
            lines.append("check")
        steps = Steps(rng, dials.slip, way)
        answers.append(steps.solve(calculation))
        lines += steps.lines
        if len(answers) > 1 and answers[-1] == answers[-2]:
            break
    return lines, answers[-1]


class Steps:
    """One pass over a calculation. Each method writes its lines and returns the result, slips
    included."""

    def __init__(self, rng: random.Random, slip: float, way: str) -> None:
        self.rng = rng
        self.slip = slip
        self.way = way
        self.lines: list[str] = []
        self.hasty = way == SHORT_CUT

    def solve(self, calculation: Calculation) -> int:
        numbers = calculation.numbers
        match calculation.operation:
            case "add":
                return self.total(arranged(self.rng, list(numbers), self.way))
            case "multiply":
                return self.multiply(*numbers)
            case "divide":
                return self.divide(*numbers)
            case "multiply-add":
                a, b, c = numbers
                return self.combine(self.multiply(a, b), c)
            case "more":
                a, b = numbers
                return self.combine(a, self.combine(a, b))
            case "solve":
                a, b, c = numbers
                rest = self.combine(c, -b) if b else c
                return self.divide(rest, a) if a > 1 else rest
        raise ValueError(f"no steps for {calculation.operation!r}")

    def total(self, terms: list[int]) -> int:
        """Running total of the terms, from the first to the last."""
        total = terms[0]
        for term in terms[1:]:
            total = self.combine(total, term)
        return total

    def multiply(self, a: int, b: int) -> int:
        """By tens and ones: 23*4 is 20*4 and 3*4, added up."""
        parts = list(product(tens_and_ones(a), tens_and_ones(b)))
        if self.way == "any order":
            self.rng.shuffle(parts)
        elif self.way == "backwards":
            parts.reverse()
        elif self.way == "largest first":
            parts.sort(key=lambda part: -part[0] * part[1])
        return self.total([self.write(f"{x}*{y}", x * y) for x, y in parts])

    def divide(self, a: int, b: int) -> int:
        """Tens first: 147/3 is 120/3=40, 147-120=27, 27/3=9, 40+9=49."""
        tens = a // (10 * b) * 10 * b
        if tens in (0, a):
            return self.write(f"{a}/{b}", a // b)
        high = self.write(f"{tens}/{b}", tens // b)
        rest = self.combine(a, -tens)
        return self.combine(high, self.write(f"{rest}/{b}", rest // b))

    def combine(self, a: int, b: int) -> int:
        """a + b, or a - |b|; after a slip a difference may fall below 0 and is written as 0.

        The short cut is hasty the first time: it forgets to carry or to borrow, and guesses the
        ones. So it is wrong wherever there is something to carry, each time in another way.
        """
        result = max(0, a + b)
        if self.hasty and carries(a, b):
            tens = result // 10 + (1 if b < 0 else -1)
            result = 10 * tens + self.rng.randrange(10)
        self.hasty = False
        return self.write(f"{a}{b:+d}", result)

    def write(self, left: str, result: int) -> int:
        if self.rng.random() < self.slip:
            result = max(0, result + self.rng.choice(ERRORS))
        self.lines.append(f"{left}={result}")
        return result


def arranged(rng: random.Random, terms: list[int], way: str) -> list[int]:
    """The terms in the order in which this way adds them up, so that no running total is below
    0 (where none is in the order given)."""
    if way == "any order":
        order = terms[:]
        rng.shuffle(order)
        return order if all(sum(order[: i + 1]) >= 0 for i in range(len(order))) else terms
    gains = [term for term in terms if term > 0]
    losses = [term for term in terms if term < 0]
    if way == "backwards":
        return gains[::-1] + losses[::-1]
    if way == "largest first":
        return sorted(gains, reverse=True) + sorted(losses)
    if way == "tens first":
        return by_tens(gains) + [-part for part in by_tens([-loss for loss in losses])]
    return terms


def by_tens(numbers: list[int]) -> list[int]:
    """[23, 19, 7] as [20, 10, 3, 9, 7]."""
    tens = [number // 10 * 10 for number in numbers]
    ones = [number % 10 for number in numbers]
    return [part for part in tens + ones if part]


def tens_and_ones(number: int) -> list[int]:
    """47 as [40, 7]; 40 and 7 as they are."""
    return by_tens([number])


def carries(a: int, b: int) -> bool:
    """Whether something is carried from the ones of a + b to its tens, or borrowed from them."""
    if b < 0:
        return a + b > 0 and a % 10 < -b % 10
    return a % 10 + b % 10 >= 10
