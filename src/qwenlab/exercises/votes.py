"""Exercises of lesson 12: majority-vote and vote-accuracy. The third, pass-at-k, is in passes.py."""

import random
from collections import Counter

from qwenlab.teach.checking import exercise

# --- majority-vote: (answers) -> the answer that most give ("" if nobody gave one), its votes ---


def vote_of(answers):
    counts = Counter(answer for answer in answers if answer is not None)
    winner = max(counts, key=counts.get, default="")  # the first of the largest
    return winner, counts[winner]


def _ballots():
    yield "a clear winner", (["5", "7", "7"],)
    yield "no answer in most", (["8", None, None, None, "8", "5"],)
    yield "a tie of four", (["6", "9", "2", "5"],)
    yield "a tie of two", (["7", "5", "5", "7"],)
    yield "less than half", (["4", "8", "1", "8", "3"],)
    yield "nobody gave one", ([None, None],)
    yield "one sample", (["3"],)
    draw = random.Random(15)
    for _ in range(20):
        yield "random ballots", ([draw.choice(["1", "2", "30", None]) for _ in range(draw.randint(1, 9))],)


def _silence_votes(answers):
    winner, votes = Counter(answers).most_common(1)[0]
    return winner or "", votes


def _last_of_a_tie(answers):
    counts = Counter(answer for answer in answers if answer is not None)
    return max(reversed(list(counts)), key=counts.get, default=""), max(counts.values(), default=0)


def _sorted_tie(answers, last=False):
    counts = Counter(answer for answer in answers if answer is not None)
    return max(sorted(counts, reverse=last), key=counts.get, default=""), max(counts.values(), default=0)


def _more_than_half(answers):
    winner, votes = vote_of(answers)
    return (winner, votes) if 2 * votes > len(answers) else ("", 0)


def _all_votes(answers):
    return vote_of(answers)[0], sum(answer is not None for answer in answers)


def _first_answer(answers):
    given = [answer for answer in answers if answer is not None]
    return given[0] if given else "", given.count(given[0]) if given else 0


exercise(
    "majority-vote",
    vote_of,
    results=("answer", "votes"),
    cases=_ballots,
    mistakes=(
        (_all_votes, "the answer is right, but its votes are only those of the samples that gave it."),
        (_silence_votes, "None is no candidate: samples without an answer do not vote."),
        (_more_than_half, "the winner needs the most votes, not more than half of them."),
        (_first_answer, "this is the first answer that was given. Count how often each was."),
        (_last_of_a_tie, "of equally many votes the one that appeared first wins; here it is the last."),
        (_sorted_tie, "of equally many votes the one that appeared first wins, not the smallest."),
        (
            lambda a: _sorted_tie(a, last=True),
            "of equally many votes the one that appeared first wins, not the largest.",
        ),
    ),
)

# --- vote-accuracy: (table, golds, n) -> share of problems where the vote of the first n answers is right ---


def vote_accuracy(table, golds, n):
    return _share(vote_of(line[:n])[0] == gold for line, gold in zip(table, golds, strict=True))


def _share(verdicts):
    verdicts = list(verdicts)
    return sum(verdicts) / len(verdicts)


def _tables():
    yield "the first two agree", ([["5", "5", "7", "7", "7"]], ["5"], 2)
    yield "three problems", ([["1", "2", "2"], ["4", "4", "3"], ["6", "8", "8"]], ["2", "3", "6"], 3)
    yield "a tie", ([["1", "2", "2", "1"]], ["1"], 4)
    yield "a problem without an answer", ([[None, None, None], ["8", None, "8"]], ["3", "8"], 3)
    yield "right once, voted down", ([["9", "6", "6", "6"], ["6", "6", "6", "6"]], ["9", "6"], 4)
    draw = random.Random(16)
    for _ in range(20):
        size, count = draw.randint(1, 8), draw.randint(1, 6)
        table = [[draw.choice(["1", "2", "3", None]) for _ in range(size)] for _ in range(count)]
        yield "random tables", (table, [draw.choice("123") for _ in table], draw.randint(1, size))


def _pairs(table, golds, n):
    return [(line[:n], gold) for line, gold in zip(table, golds, strict=True)]


def _mean_of_singles(table, golds, n):
    return _share(answer == gold for line, gold in _pairs(table, golds, n) for answer in line)


def _only_answered(table, golds, n):
    voted = [(vote_of(line)[0], gold) for line, gold in _pairs(table, golds, n)]
    voted = [(answer, gold) for answer, gold in voted if answer]
    return _share(answer == gold for answer, gold in voted) if voted else 0.0


exercise(
    "vote-accuracy",
    vote_accuracy,
    results=("accuracy",),
    cases=_tables,
    mistakes=(
        (
            lambda table, golds, n: vote_accuracy(table, golds, len(table[0])),
            "all answers voted. Only the first n may.",
        ),
        (
            lambda table, golds, n: _share(gold in line for line, gold in _pairs(table, golds, n)),
            "a problem counts if its vote is right. One right sample is not enough.",
        ),
        (_mean_of_singles, "this is the mean of the single samples. Let the n of a problem vote first."),
        (_only_answered, "a problem without any answer is wrong, but it is a problem: divide by all of them."),
        (
            lambda table, golds, n: _share(line[-1] == gold for line, gold in _pairs(table, golds, n)),
            "this looks at sample n alone. The first n vote together.",
        ),
        (
            lambda table, golds, n: _share(_silence_votes(line)[0] == gold for line, gold in _pairs(table, golds, n)),
            "None is no candidate: samples without an answer do not vote.",
        ),
        (
            lambda table, golds, n: _share(_last_of_a_tie(line)[0] == gold for line, gold in _pairs(table, golds, n)),
            "of equally many votes the answer that appeared first wins, as in exercise 1.",
        ),
    ),
)
