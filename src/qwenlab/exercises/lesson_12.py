"""The exercises of lesson 12: vote-chance and vote-decided."""

import random
from collections import Counter
from collections.abc import Callable
from itertools import combinations_with_replacement, product
from math import comb, prod

from qwenlab.exercises import Cases, Exercise

EXERCISES: dict[str, Exercise] = {}

# --- vote-chance: (chance of each answer, the right one first; n) -> the chance of a right vote ---


def vote_chance(shares: list[float], n: int) -> float:
    return _chance(shares, n, lambda votes: _winner(votes) == 0)


def _chance(shares: list[float], n: int, wins: Callable[[Counter], bool]) -> float:
    """The chance of those sequences of n answers whose votes win."""
    chance = 0.0
    for sequence in product(range(len(shares)), repeat=n):
        if wins(Counter(sequence)):
            chance += prod(shares[answer] for answer in sequence)
    return chance


def _winner(votes: Counter) -> int | str:
    """The first of those with most votes; a Counter keeps the order of appearance."""
    return max(votes, key=votes.get)


def _models() -> Cases:
    yield "one sample", ([0.3, 0.7], 1)
    yield "three samples, two answers", ([0.6, 0.4], 3)
    yield "wrong ones scatter", ([0.4, 0.2, 0.2, 0.2], 5)
    yield "two samples", ([0.6, 0.4], 2)
    yield "wrong in one way", ([0.4, 0.6], 5)
    yield "a tie of three", ([0.5, 0.25, 0.25], 3)
    yield "always right", ([1.0], 4)
    draw = random.Random(12)
    for _ in range(12):
        parts = [draw.randint(1, 9) for _ in range(draw.randint(2, 4))]
        shares = [part / sum(parts) for part in parts]
        yield "random shares", (shares, draw.randint(1, 5))


def _largest(votes: Counter) -> list[int]:
    return [answer for answer, count in votes.items() if count == max(votes.values())]


def _each_mix_once(shares: list[float], n: int) -> float:
    """As `combinations_with_replacement` counts: no order, so that a mix is met once."""
    chance = 0.0
    for mix in combinations_with_replacement(range(len(shares)), n):
        if _winner(Counter(mix)) == 0:
            chance += prod(shares[answer] for answer in mix)
    return chance


def _more_than_half(shares: list[float], n: int) -> float:
    chance = 0.0
    for count in range(n // 2 + 1, n + 1):
        chance += comb(n, count) * shares[0] ** count * (1 - shares[0]) ** (n - count)
    return chance


EXERCISES["vote-chance"] = Exercise(
    vote_chance,
    results=("chance",),
    cases=_models,
    mistakes=(
        (
            lambda shares, n: 1 - (1 - shares[0]) ** n,
            "this is pass@n. One right sample is not enough for a vote.",
        ),
        (
            _more_than_half,
            "the winner needs the most votes, not more than half of them.",
        ),
        (
            lambda shares, n: _chance(shares, n, lambda votes: _largest(votes) == [0]),
            "a tie is not always lost: the answer that appeared first wins it.",
        ),
        (
            lambda shares, n: _chance(shares, n, lambda votes: 0 in _largest(votes)),
            "a tie is not always won: the answer that appeared first wins it.",
        ),
        (
            lambda shares, n: shares[0],
            "this is the chance of one sample. It should change with n.",
        ),
        (
            lambda shares, n: float(shares[0] == max(shares)),
            "this is what a vote of endlessly many comes to. Here there are n.",
        ),
        (
            lambda shares, n: 1 - vote_chance(shares, n),
            "this is the chance that a wrong answer wins.",
        ),
        (
            lambda shares, n: shares[0] ** n,
            "this is the chance that all n are right. A vote needs fewer.",
        ),
        (
            _each_mix_once,
            "the same answers can come in several orders, and each order has its chance: "
            "`product` gives them all.",
        ),
        (
            lambda shares, n: _chance([1 / len(shares)] * len(shares), n, lambda v: not _winner(v)),
            "you count sequences as if all were equally likely. Weigh each by the product of its "
            "shares.",
        ),
    ),
)

# --- vote-decided: (answers so far, how many in all) -> whether the winner is certain ---

Answers = list[str | None]


def vote_decided(answers: Answers, n: int) -> bool:
    """The worst that can happen is that all that come give the same rival."""
    rest = n - len(answers)
    votes = _given(answers)
    if rest == 0:
        return True
    if not votes:
        return False
    return all(_loses(rival, votes, rest) for rival in (*votes, None))


def _given(answers: Answers) -> Counter:
    return Counter(answer for answer in answers if answer is not None)


def _loses(rival: str | None, votes: Counter, rest: int) -> bool:
    """Whether a rival stays behind the winner though it gets the rest. None is a new answer."""
    winner = _winner(votes)
    order = list(votes)
    if rival == winner:
        return True
    most = votes.get(rival, 0) + rest
    wins_ties = rival in votes and order.index(rival) < order.index(winner)
    return most < votes[winner] or (most == votes[winner] and not wins_ties)


def _draws() -> Cases:
    yield "nothing drawn", ([], 3)
    yield "only missing answers so far", ([None, None, None], 5)
    yield "a rival can overtake", (["5", "5", "7"], 6)
    yield "a new answer can win", (["5"], 4)
    yield "an earlier rival can tie", (["7", "5", "5"], 4)
    yield "more than half", (["5", "5", "5"], 4)
    yield "less than half, and decided", (["5", "5", "5", "1", "2", "3", "4"], 8)
    yield "a later rival can only tie", (["5", "5", "5", "7", "7"], 6)
    yield "all drawn", (["5", "7", None], 3)
    draw = random.Random(16)
    for _ in range(30):
        n = draw.randint(2, 9)
        drawn = draw.choices(["1", "2", "3", None], (5, 3, 1, 2), k=draw.randint(0, n))
        yield "random draws", (drawn, n)


def _lead(answers: Answers) -> tuple[int, int]:
    """Votes of the winner and of the second, with 0 for none."""
    first, second, *_ = [*sorted(_given(answers).values(), reverse=True), 0, 0]
    return first, second


def _by_half(answers: Answers, n: int) -> bool:
    return len(answers) == n or max(Counter(answers).values(), default=0) > n / 2


def _given_half(answers: Answers, n: int) -> bool:
    return len(answers) == n or _lead(answers)[0] > n / 2


def _ties_lost(answers: Answers, n: int) -> bool:
    first, second = _lead(answers)
    rest = n - len(answers)
    return rest == 0 or first - second > rest


def _ties_won(answers: Answers, n: int) -> bool:
    first, second = _lead(answers)
    rest = n - len(answers)
    return rest == 0 or (first > 0 and first - second >= rest)


def _no_new_answer(answers: Answers, n: int) -> bool:
    votes = _given(answers)
    rest = n - len(answers)
    return rest == 0 or (bool(votes) and all(_loses(rival, votes, rest) for rival in votes))


def _missing_to_come_again(answers: Answers, n: int) -> bool:
    """As if a sample without an answer were still to be drawn."""
    votes = _given(answers)
    rest = n - votes.total()
    loses = [_loses(rival, votes, rest) for rival in (*votes, None)] if votes else [False]
    return rest == 0 or all(loses)


def _half_of_those_drawn(answers: Answers, n: int) -> bool:
    return len(answers) == n or 2 * _lead(answers)[0] > len(answers)


EXERCISES["vote-decided"] = Exercise(
    vote_decided,
    results=("decided",),
    cases=_draws,
    mistakes=(
        (
            _ties_lost,
            "a rival that appeared after the winner loses a tie, so a lead as large as the rest "
            "is enough against it.",
        ),
        (
            _given_half,
            "more than half of n is enough, but not needed: the rivals may be too far behind.",
        ),
        (
            _by_half,
            "None is no candidate, so a majority of missing answers decides nothing.",
        ),
        (
            _ties_won,
            "a rival that appeared before the winner wins a tie: against it the lead must be "
            "larger than the rest.",
        ),
        (
            _missing_to_come_again,
            "a sample without an answer has been drawn as well: what is left is n - len(answers).",
        ),
        (
            _no_new_answer,
            "all that come may give an answer that nobody has given yet.",
        ),
        (
            _half_of_those_drawn,
            "this looks at the answers so far. What matters is how many are still to come.",
        ),
        (
            lambda answers, n: len(answers) == n,
            "this waits for the last answer. The vote is often decided before.",
        ),
        (
            lambda answers, n: not vote_decided(answers, n),
            "True means decided: this is the other way round.",
        ),
    ),
)
