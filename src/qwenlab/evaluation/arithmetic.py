"""Small arithmetic problems with whole-number answers, made from a seed: what the shipped tiny
models can solve.

A problem is held out by its *calculation* (operation and numbers), never by its text. So a held-out
product stays unseen in every wording, in either order of its factors, and as a word problem too.
"""

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from qwenlab.evaluation.wordings import NEXT, ask, ask_next, expression
from qwenlab.orders import seeded

# Share of each kind in a mixed set; the shares add up to 1.
KINDS = {"sum": 0.28, "mixed": 0.20, "product": 0.15, "equation": 0.15, "word": 0.22}
# Share of each kind of follow-up in a conversation, where the answer before it allows it.
FOLLOW_UPS = {
    "plus": 0.28,
    "minus": 0.20,
    "times": 0.08,
    "twice": 0.10,
    "half": 0.10,
    "first": 0.10,
    "last": 0.04,
    "new": 0.10,
}
# Answers up to here are doubled or halved, and two-digit ones multiplied.
MOST_DOUBLED = 200
SPLITS = ("train", "held-out")
HELD_OUT_ONE_IN = 5
# After this many draws in a row without a new calculation of a kind, it counts as exhausted.
MAX_TRIES = 5000
# So many numbers are tried before another kind of follow-up is.
FOLLOW_UP_TRIES = 20


@dataclass(frozen=True)
class Calculation:
    """What is to be computed, whatever the wording.

    `operation` and its `numbers`, in the order in which the question names them:

    - ``add``: any count of signed numbers, ``12 + 5 - 3`` is (12, 5, -3);
    - ``multiply``: a * b; ``divide``: a / b, without remainder;
    - ``multiply-add``: a * b + c, where c may be negative;
    - ``more``: a + (a + b), "Tom has b more than Ann";
    - ``solve``: the x of a * x + b = c, where b may be negative or 0;
    - ``first``, ``last``: an earlier answer once more.
    """

    operation: str
    numbers: tuple[int, ...]

    @property
    def answer(self) -> int:
        match self.operation, self.numbers:
            case "add", terms:
                return sum(terms)
            case "multiply", (a, b):
                return a * b
            case "divide", (a, b):
                return a // b
            case "multiply-add", (a, b, c):
                return a * b + c
            case "more", (a, b):
                return a + a + b
            case "solve", (a, b, c):
                return (c - b) // a
            case (("first" | "last"), (a,)):
                return a
        raise ValueError(f"no such operation: {self.operation!r} of {len(self.numbers)} numbers")

    @property
    def key(self) -> str:
        """Operation and numbers, the same text for the same calculation: ``"multiply 4 23"`` also
        for 23 * 4.

        The numbers of commutative operations are sorted. A one-step equation has the key of its
        solution: x + 34 = 83 that of 83 - 34, and 9x = 63 that of 63 / 9.
        """
        match self.operation, self.numbers:
            case "solve", (1, b, c):
                return Calculation("add", (c, -b)).key
            case "solve", (a, 0, c):
                return Calculation("divide", (c, a)).key
            case "more", (a, b):
                return Calculation("add", (a, a, b)).key
            case (("add" | "multiply"), numbers):
                numbers = sorted(numbers)
            case "multiply-add", (a, b, c):
                numbers = (*sorted((a, b)), c)
            case _, numbers:
                pass
        return " ".join([self.operation, *map(str, numbers)])

    @property
    def split(self) -> str:
        """``"held-out"`` for one calculation in five, by a hash of its key; else ``"train"``."""
        digest = hashlib.sha256(self.key.encode()).digest()
        return "held-out" if int.from_bytes(digest[:4], "big") % HELD_OUT_ONE_IN == 0 else "train"


@dataclass(frozen=True)
class ArithmeticProblem:
    """One question with its correct answer. `number` stays with the problem wherever it is used,
    because it seeds the samples. In a conversation it counts the conversations."""

    number: int
    kind: str
    question: str
    answer: str
    key: str
    calculation: Calculation | None = None


def arithmetic_problems(
    n: int, seed: int = 0, split: str = "held-out", kinds: Sequence[str] | None = None
) -> list[ArithmeticProblem]:
    """n problems, no two of them with the same key, numbered from 0.

    The same arguments give the same problems on every machine, and a smaller n gives the first of
    them. `kinds` limits them to some of KINDS, in the same proportions. Raises ValueError for an
    unknown split or kind, a negative n, or more problems than there are.
    """
    if n < 0:
        raise ValueError(f"n is {n}; expected 0 or more")
    seen: set[str] = set()
    stream = problem_stream(seed, split, kinds, seen)
    problems = []
    for _ in range(n):
        problem = next(stream)
        seen.add(problem.key)
        problems.append(problem)
    return problems


def problem_stream(
    seed: int, split: str, kinds: Sequence[str] | None = None, seen: set[str] | None = None
) -> Iterator[ArithmeticProblem]:
    """An endless stream of problems, without those whose keys are in `seen`, to which the caller
    may add between two problems."""
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}; expected one of {', '.join(SPLITS)}")
    kinds = list(KINDS) if kinds is None else list(kinds)
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown or not kinds:
        raise ValueError(f"kinds has {unknown or 'nothing'}; expected some of {', '.join(KINDS)}")
    return _stream(seed, split, kinds, set() if seen is None else seen)


def _stream(seed: int, split: str, kinds: list[str], seen: set[str]) -> Iterator[ArithmeticProblem]:
    rng = seeded("arithmetic", seed, split)
    words = seeded("wordings", seed, split)
    shares = [KINDS[kind] for kind in kinds]
    number = 0
    while True:
        kind = rng.choices(kinds, shares)[0]
        for _ in range(MAX_TRIES):
            calculation = DRAW[kind](rng)
            if calculation.split == split and calculation.key not in seen:
                break
        else:
            raise ValueError(
                f"no new {split} problem of kind {kind!r} after {number} problems: ask for fewer"
            )
        question = ask(words, kind, calculation.operation, calculation.numbers)
        yield _problem(number, kind, question, calculation)
        number += 1


def _problem(number: int, kind: str, question: str, calculation: Calculation) -> ArithmeticProblem:
    answer = str(calculation.answer)
    return ArithmeticProblem(number, kind, question, answer, calculation.key, calculation)


def arithmetic_conversations(
    n: int, turns: int = 2, seed: int = 0, split: str = "held-out"
) -> list[list[ArithmeticProblem]]:
    """n conversations of `turns` problems each; those after the first are follow-ups, whose kind is
    one of FOLLOW_UPS and whose numbers come from the right answers before them.

    The first problems are those of `arithmetic_problems`. Every calculation of every turn belongs
    to `split`, but for those that only ask for an earlier answer once more. Raises ValueError as
    `arithmetic_problems` does, and for less than one turn.
    """
    if turns < 1:
        raise ValueError(f"turns is {turns}; expected 1 or more")
    rng = seeded("follow-ups", seed, split)
    conversations = []
    for problem in arithmetic_problems(n, seed, split):
        asked = [problem]
        while len(asked) < turns:
            asked.append(follow_up(rng, asked, [int(turn.answer) for turn in asked], split))
        conversations.append(asked)
    return conversations


def follow_up(
    rng: random.Random, asked: Sequence[ArithmeticProblem], answers: Sequence[int], split: str
) -> ArithmeticProblem:
    """What may be asked next, after these problems got these answers (right or wrong)."""
    number = asked[0].number
    last = asked[-1]
    while True:
        kind = rng.choices(list(FOLLOW_UPS), list(FOLLOW_UPS.values()))[0]
        if kind == "new":
            return replace(_new_problem(rng, split), number=number)
        for _ in range(FOLLOW_UP_TRIES):
            calculation = draw_follow_up(rng, kind, answers)
            if calculation is None:
                break
            if kind in ("first", "last") or calculation.split == split:
                in_story = last.kind == "word" and last.calculation.operation in IN_STORIES
                name = last.question.split()[0] if in_story else None
                question = ask_next(rng, calculation.operation, calculation.numbers, name)
                return _problem(number, kind, question, calculation)


def draw_follow_up(rng: random.Random, kind: str, answers: Sequence[int]) -> Calculation | None:
    """A calculation of this kind with the last of the answers, or None where it allows none."""
    last = answers[-1]
    number = draw_number(rng)
    match kind:
        case "plus" if last > 0:
            return Calculation("add", (last, number))
        case "minus" if number <= last:
            return Calculation("add", (last, -number))
        case "times" if 2 <= last <= 99:
            return Calculation("multiply", (last, rng.randint(3, 9)))
        case "twice" if 2 <= last <= MOST_DOUBLED:
            return Calculation("multiply", (last, 2))
        case "half" if 2 <= last <= MOST_DOUBLED and last % 2 == 0:
            return Calculation("divide", (last, 2))
        case "first":
            return Calculation("first", (answers[0],))
        case "last":
            return Calculation("last", (last,))
    return None


def _new_problem(rng: random.Random, split: str) -> ArithmeticProblem:
    """Another problem, which has nothing to do with those before it."""
    problem = next(problem_stream(rng.getrandbits(32), split))
    if problem.kind in ("sum", "mixed") and rng.random() < 0.5:
        question = rng.choice(NEXT).format(expression(problem.calculation.numbers))
        problem = replace(problem, question=question)
    return replace(problem, kind="new")


def draw_number(rng: random.Random) -> int:
    """Two in five have one digit (2 to 9), three in five have two (10 to 49)."""
    return rng.randint(2, 9) if rng.random() < 0.4 else rng.randint(10, 49)


def draw_numbers(rng: random.Random, count: int) -> list[int]:
    return [draw_number(rng) for _ in range(count)]


def draw_signs(rng: random.Random, count: int) -> list[int]:
    """The first is always plus."""
    return [1] + [rng.choice([1, -1]) for _ in range(count - 1)]


def draw_sum(rng: random.Random) -> Calculation:
    count = rng.choices([2, 3, 4, 5, 6], [28, 26, 20, 14, 12])[0]
    return Calculation("add", tuple(draw_numbers(rng, count)))


def draw_mixed(rng: random.Random) -> Calculation:
    """A difference, or three to five numbers with at least one plus and one minus, whose running
    total is never negative."""
    count = rng.choices([2, 3, 4, 5], [20, 40, 24, 16])[0]
    while True:
        terms = draw_numbers(rng, count)
        signs = draw_signs(rng, count)
        signed = with_signs(terms, signs)
        if signed is not None and (signs == [1, -1] or {1, -1} == set(signs[1:])):
            return Calculation("add", signed)


def with_signs(terms: list[int], signs: list[int]) -> tuple[int, ...] | None:
    """The signed terms, or None where their running total becomes negative."""
    total = 0
    signed = []
    for term, sign in zip(terms, signs, strict=True):
        total += sign * term
        signed.append(sign * term)
        if total < 0:
            return None
    return tuple(signed)


def draw_product(rng: random.Random) -> Calculation:
    """Mostly two digits by one. The larger factor goes up to 99 there; otherwise too few products
    could be held out."""
    form = rng.random()
    if form < 0.3:
        return Calculation("multiply", (rng.randint(10, 49), rng.randint(10, 49)))
    factors = [rng.randint(2, 9) if form < 0.4 else rng.randint(10, 99), rng.randint(2, 9)]
    rng.shuffle(factors)
    return Calculation("multiply", tuple(factors))


def draw_equation(rng: random.Random) -> Calculation:
    """a*x + b = c; one in five has no factor (a = 1), one in ten nothing added (b = 0)."""
    x = draw_number(rng)
    form = rng.random()
    a = 1 if form < 0.2 else rng.randint(2, 9)
    b = 0 if form >= 0.9 else draw_number(rng)
    if b <= a * x and rng.random() < 0.4:
        b = -b
    return Calculation("solve", (a, b, a * x + b))


def draw_word(rng: random.Random) -> Calculation:
    form = rng.random()
    a = rng.randint(2, 9)
    b = draw_number(rng)
    if form < 0.45:
        return _draw_story(rng)
    if form < 0.60:
        return Calculation("multiply", (a, b))
    if form < 0.75:
        c = draw_number(rng)
        return Calculation("multiply-add", (a, b, -c if c <= a * b and rng.random() < 0.5 else c))
    if form < 0.87:
        return Calculation("divide", (a * b, a))
    return Calculation("more", (draw_number(rng), b))


# Stories of one person who has something: in a conversation they may go on.
IN_STORIES = ("add", "multiply-add")


def _draw_story(rng: random.Random) -> Calculation:
    """A starting amount, then one to three gains and losses."""
    count = rng.choices([2, 3, 4], [40, 40, 20])[0]
    while True:
        signed = with_signs(draw_numbers(rng, count), draw_signs(rng, count))
        if signed is not None:
            return Calculation("add", signed)


DRAW = {
    "sum": draw_sum,
    "mixed": draw_mixed,
    "product": draw_product,
    "equation": draw_equation,
    "word": draw_word,
}
