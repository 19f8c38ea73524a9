"""How the tiny models are taught to think: one line per step, then the boxed answer.

Three dials make sampling from the trained model worth studying:

- SLIP: this share of the written results is wrong, deliberately, and the error is carried on.
- CHECK: this share of the traces works the problem again until two passes agree, which makes a long
  tail of lengths.
- SHUFFLE: this share takes the terms in random order, so that a problem has many right traces.
"""

import random
from dataclasses import dataclass
from itertools import accumulate, product

from qwenlab.evaluation.arithmetic import ArithmeticProblem, Calculation

SLIP = 0.03
CHECK = 0.25
SHUFFLE = 0.5
DIRECT = 0.05
MAX_PASSES = 4
ERRORS = (-10, -2, -1, 1, 2, 10)


@dataclass(frozen=True)
class Dials:
    slip: float = SLIP
    check: float = CHECK
    shuffle: float = SHUFFLE
    direct: float = DIRECT


def completion(rng: random.Random, problem: ArithmeticProblem, dials: Dials) -> tuple[bool, str]:
    """(thinking, text): what the assistant writes after the chat prompt, without the stop token.

    Thinking, it opens the block, reasons, closes it and boxes the answer. Else the prompt holds a
    closed empty block (Qwen3's template with enable_thinking=False), and the text is the boxed
    answer at once.
    """
    if rng.random() < dials.direct:
        return False, f"\\boxed{{{problem.answer}}}"
    lines, answer = think(rng, problem.calculation, dials)
    return True, "<think>\n" + "\n".join(lines) + f"\n</think>\n\n\\boxed{{{answer}}}"


def think(rng: random.Random, calculation: Calculation, dials: Dials) -> tuple[list[str], int]:
    """The lines of a trace and the answer that they lead to, which slips may have made wrong."""
    shuffle = rng.random() < dials.shuffle
    check = rng.random() < dials.check
    lines = []
    answers = []
    for _ in range(MAX_PASSES if check else 1):
        if answers:
            lines.append("check")
        steps = Steps(rng, dials.slip, shuffle)
        answers.append(steps.solve(calculation))
        lines += steps.lines
        if len(answers) > 1 and answers[-1] == answers[-2]:
            break
    return lines, answers[-1]


class Steps:
    """One pass over a calculation. Each method writes its lines and returns the result, slips
    included."""

    def __init__(self, rng: random.Random, slip: float, shuffle: bool) -> None:
        self.rng = rng
        self.slip = slip
        self.shuffle = shuffle
        self.lines: list[str] = []

    def solve(self, calculation: Calculation) -> int:
        numbers = calculation.numbers
        match calculation.operation:
            case "add":
                return self.add(list(numbers))
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

    def add(self, terms: list[int]) -> int:
        """Running total; in random order it starts with a positive term and never falls below 0."""
        if self.shuffle:
            order = terms[:]
            self.rng.shuffle(order)
            if min(accumulate(order)) >= 0:
                terms = order
        total = terms[0]
        for term in terms[1:]:
            total = self.combine(total, term)
        return total

    def multiply(self, a: int, b: int) -> int:
        """By tens and ones: 23*4 is 20*4 and 3*4, added up."""
        parts = list(product(tens_and_ones(a), tens_and_ones(b)))
        if self.shuffle:
            self.rng.shuffle(parts)
        return self.add([self.write(f"{x}*{y}", x * y) for x, y in parts])

    def divide(self, a: int, b: int) -> int:
        """Tens first: 147/3 is 120/3=40, 147-120=27, 27/3=9, 40+9=49."""
        tens = a // (10 * b) * 10 * b
        if tens in (0, a):
            return self.write(f"{a}/{b}", a // b)
        high = self.write(f"{tens}/{b}", tens // b)
        rest = self.combine(a, -tens)
        return self.combine(high, self.write(f"{rest}/{b}", rest // b))

    def combine(self, a: int, b: int) -> int:
        """a + b, or a - |b|; after a slip a difference may fall below 0 and is written as 0."""
        return self.write(f"{a}{b:+d}", max(0, a + b))

    def write(self, left: str, result: int) -> int:
        if self.rng.random() < self.slip:
            result = max(0, result + self.rng.choice(ERRORS))
        self.lines.append(f"{left}={result}")
        return result


def tens_and_ones(number: int) -> list[int]:
    """47 as [40, 7]; 40 and 7 as they are."""
    return list(filter(None, (number // 10 * 10, number % 10)))
