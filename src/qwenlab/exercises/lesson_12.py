"""The exercises of lesson 12: majority-vote, vote-accuracy and pass-at-k."""

import random
from collections import Counter
from collections.abc import Callable
from math import comb
from statistics import fmean

from qwenlab.exercises import Cases, Exercise

EXERCISES: dict[str, Exercise] = {}

# --- majority-vote: (answers) -> the most frequent answer ("" if there is none), its votes ---


def vote_of(answers: list[str | None]) -> tuple[str, int]:
    counts = Counter(_given(answers))
    winner = max(counts, key=counts.get, default="")  # the first of those with most votes
    return winner, counts[winner]


def _given(answers: list[str | None]) -> list[str]:
    return [answer for answer in answers if answer is not None]


def _ballots() -> Cases:
    yield "a clear winner", (["5", "7", "7"],)
    yield "no answer in most", (["8", None, None, None, "8", "5"],)
    yield "a tie of four", (["6", "9", "2", "5"],)
    yield "a tie of two", (["7", "5", "5", "7"],)
    yield "less than half", (["4", "8", "1", "8", "3"],)
    yield "no answer at all", ([None, None],)
    yield "one sample", (["3"],)
    draw = random.Random(15)
    for _ in range(20):
        yield "random ballots", (draw.choices(["1", "2", "30", None], k=draw.randint(1, 9)),)


def _none_votes(answers: list[str | None]) -> tuple[str, int]:
    winner, votes = Counter(answers).most_common(1)[0]
    return winner or "", votes


def _last_of_a_tie(answers: list[str | None]) -> tuple[str, int]:
    counts = Counter(_given(answers))
    return max(reversed(list(counts)), key=counts.get, default=""), max(counts.values(), default=0)


def _sorted_tie(answers: list[str | None], last: bool = False) -> tuple[str, int]:
    counts = Counter(_given(answers))
    ranked = sorted(counts, reverse=last)
    return max(ranked, key=counts.get, default=""), max(counts.values(), default=0)


def _more_than_half(answers: list[str | None]) -> tuple[str, int]:
    winner, votes = vote_of(answers)
    return (winner, votes) if 2 * votes > len(answers) else ("", 0)


def _all_votes(answers: list[str | None]) -> tuple[str, int]:
    return vote_of(answers)[0], len(_given(answers))


def _first_answer(answers: list[str | None]) -> tuple[str, int]:
    given = _given(answers)
    return given[0] if given else "", given.count(given[0]) if given else 0


EXERCISES["majority-vote"] = Exercise(
    vote_of,
    results=("answer", "votes"),
    cases=_ballots,
    mistakes=(
        (
            _all_votes,
            "the answer is right, but only the samples that gave it are its votes.",
        ),
        (_none_votes, "None is no candidate: samples without an answer do not vote."),
        (_more_than_half, "the winner needs the most votes, not more than half of them."),
        (_first_answer, "this is the first answer. Count how often each answer was given."),
        (
            _last_of_a_tie,
            "in a tie the answer that appeared first wins; yours is the last.",
        ),
        (_sorted_tie, "in a tie the answer that appeared first wins, not the smallest."),
        (
            lambda a: _sorted_tie(a, last=True),
            "in a tie the answer that appeared first wins, not the largest.",
        ),
    ),
)

# --- vote-accuracy: (table, golds, n) -> share of problems that the first n answers vote right ---

Table = list[list[str | None]]  # a row of answers for each problem


def vote_accuracy(table: Table, golds: list[str], n: int) -> float:
    return _share(_voted_right, table, golds, n)


def _voted_right(answers: list[str | None], gold: str) -> bool:
    return vote_of(answers)[0] == gold


def _share(counts: Callable, table: Table, golds: list[str], n: int) -> float:
    """The mean of counts(first n answers, gold) over the problems."""
    return fmean(counts(row[:n], gold) for row, gold in zip(table, golds, strict=True))


def _tables() -> Cases:
    yield "the first two agree", ([["5", "5", "7", "7", "7"]], ["5"], 2)
    yield (
        "three problems",
        ([["1", "2", "2"], ["4", "4", "3"], ["6", "8", "8"]], ["2", "3", "6"], 3),
    )
    yield "a tie", ([["1", "2", "2", "1"]], ["1"], 4)
    yield "a problem without an answer", ([[None, None, None], ["8", None, "8"]], ["3", "8"], 3)
    yield "right once, voted down", ([["9", "6", "6", "6"], ["6", "6", "6", "6"]], ["9", "6"], 4)
    draw = random.Random(16)
    for _ in range(20):
        size = draw.randint(1, 8)
        table = []
        for _ in range(draw.randint(1, 6)):
            table.append(draw.choices(["1", "2", "3", None], k=size))
        golds = draw.choices("123", k=len(table))
        yield "random tables", (table, golds, draw.randint(1, size))


def _share_of_singles(answers: list[str | None], gold: str) -> float:
    return answers.count(gold) / len(answers)


def _only_answered(table: Table, golds: list[str], n: int) -> float:
    answered = []
    for row, gold in zip(table, golds, strict=True):
        if _given(row[:n]):
            answered.append(_voted_right(row[:n], gold))
    return fmean(answered) if answered else 0.0


def _counted(counts: Callable) -> Callable:
    """A mistaken share: counts(first n answers, gold) of each problem."""
    return lambda table, golds, n: _share(counts, table, golds, n)


EXERCISES["vote-accuracy"] = Exercise(
    vote_accuracy,
    results=("accuracy",),
    cases=_tables,
    mistakes=(
        (
            lambda table, golds, n: vote_accuracy(table, golds, len(table[0])),
            "all answers voted. Only the first n may.",
        ),
        (
            _counted(lambda answers, gold: gold in answers),
            "a problem counts if its vote is right. One right sample is not enough.",
        ),
        (
            _counted(_share_of_singles),
            "this is the mean over single samples. Let the n samples of a problem vote first.",
        ),
        (
            _only_answered,
            "a problem without any answer counts as wrong: divide by all problems.",
        ),
        (
            _counted(lambda answers, gold: answers[-1] == gold),
            "this looks at sample n alone. The first n vote together.",
        ),
        (
            _counted(lambda answers, gold: _none_votes(answers)[0] == gold),
            "None is no candidate: samples without an answer do not vote.",
        ),
        (
            _counted(lambda answers, gold: _last_of_a_tie(answers)[0] == gold),
            "in a tie the answer that appeared first wins, as in exercise 1.",
        ),
    ),
)

# --- pass-at-k: (n, c, k) -> the chance that k of n samples, c of them right, hold a right one ---


def pass_at_k(n: int, c: int, k: int) -> float:
    """The estimator of Chen et al., "Evaluating Large Language Models Trained on Code" (2021)."""
    return 1 - comb(n - c, k) / comb(n, k)


def _draws() -> Cases:
    yield "one of four", (4, 1, 2)
    yield "one drawn", (8, 3, 1)
    yield "none is right", (5, 0, 3)
    yield "too few wrong ones to fill k", (5, 4, 2)
    yield "all drawn", (6, 2, 6)
    draw = random.Random(17)
    for _ in range(20):
        n = draw.randint(1, 20)
        yield "random counts", (n, draw.randint(0, n), draw.randint(1, n))


EXERCISES["pass-at-k"] = Exercise(
    pass_at_k,
    results=("chance",),
    cases=_draws,
    mistakes=(
        (
            lambda n, c, k: 1 - (1 - c / n) ** k,
            "this puts each sample back before the next is drawn. Count draws without "
            "replacement: math.comb.",
        ),
        (
            lambda n, c, k: min(1.0, k * c / n),
            "the chances of k samples do not add up: two of them may be right at once.",
        ),
        (
            lambda n, c, k: comb(c, k) / comb(n, k),
            "this is the chance that all k are right. One is enough.",
        ),
        (
            lambda n, c, k: comb(n - c, k) / comb(n, k),
            "this is the chance that all k are wrong. Subtract it from 1.",
        ),
        (lambda n, c, k: c / n, "this is one sample's chance. It should grow with k."),
        (
            lambda n, c, k: c * comb(n - c, k - 1) / comb(n, k),
            "this is the chance of exactly one right sample. More than one is also fine.",
        ),
    ),
)
