"""Wrong answers to the exercises of lesson 12, as readers write them, each with a word of the hint it gets."""

import math
from statistics import fmean

# --- majority-vote: (answers) -> answer, votes ---


def tally(answers):
    votes = {}
    for answer in answers:
        if answer is not None:
            votes[answer] = votes.get(answer, 0) + 1
    return votes


def winner_of(answers):
    best = "", 0
    for answer, count in tally(answers).items():
        if count > best[1]:
            best = answer, count
    return best


def counts_every_voter(answers):
    return winner_of(answers)[0], len([answer for answer in answers if answer])


def lets_none_run(answers):
    votes = {answer: answers.count(answer) for answer in answers}
    winner = max(votes, key=votes.get)
    return "" if winner is None else winner, votes[winner]


def wants_more_than_half(answers):
    winner, votes = winner_of(answers)
    return (winner, votes) if votes > len(answers) / 2 else ("", 0)


def takes_the_first(answers):
    for answer in answers:
        if answer is not None:
            return answer, answers.count(answer)
    return "", 0


def last_wins_a_tie(answers):
    best = "", 0
    for answer, count in tally(answers).items():
        if count >= best[1]:
            best = answer, count
    return best


def smallest_wins_a_tie(answers):
    votes = tally(answers)
    ranked = sorted(votes.items(), key=lambda item: (-item[1], item[0]))
    return ranked[0] if ranked else ("", 0)


def largest_wins_a_tie(answers):
    return max(
        ((answer, count) for answer, count in tally(answers).items()), key=lambda x: (x[1], x[0]), default=("", 0)
    )


# --- vote-accuracy: (table, golds, n) -> a float ---


def lets_all_vote(table, golds, n):
    return fmean(winner_of(line)[0] == gold for line, gold in zip(table, golds, strict=True))


def one_right_is_enough(table, golds, n):
    return fmean(gold in line[:n] for line, gold in zip(table, golds, strict=True))


def averages_samples(table, golds, n):
    return fmean(line[k] == gold for line, gold in zip(table, golds, strict=True) for k in range(n))


def leaves_out_the_silent(table, golds, n):
    good = total = 0
    for line, gold in zip(table, golds, strict=True):
        winner, votes = winner_of(line[:n])
        if votes:
            total += 1
            good += winner == gold
    return good / total if total else 0.0


def looks_at_sample_n(table, golds, n):
    return fmean(line[n - 1] == gold for line, gold in zip(table, golds, strict=True))


def silence_wins(table, golds, n):
    return fmean(lets_none_run(line[:n])[0] == gold for line, gold in zip(table, golds, strict=True))


def last_of_a_tie(table, golds, n):
    return fmean(last_wins_a_tie(line[:n])[0] == gold for line, gold in zip(table, golds, strict=True))


# --- pass-at-k: (n, c, k) -> a float ---


def with_putting_back(n, c, k):
    wrong = (n - c) / n
    return 1 - wrong**k


def adds_up(n, c, k):
    return min(c / n * k, 1.0)


def all_right(n, c, k):
    return math.comb(c, k) / math.comb(n, k)


def all_wrong(n, c, k):
    chance = 1.0
    for i in range(k):
        chance *= max(n - c - i, 0) / (n - i)
    return chance


def one_sample(n, c, k):
    return c / n


def exactly_one(n, c, k):
    return math.comb(c, 1) * math.comb(n - c, k - 1) / math.comb(n, k)


WRONG = {
    "majority-vote": {
        counts_every_voter: "only those of the samples",
        lets_none_run: "None is no candidate",
        wants_more_than_half: "not more than half",
        takes_the_first: "how often each was",
        last_wins_a_tie: "here it is the last",
        smallest_wins_a_tie: "not the smallest",
        largest_wins_a_tie: "not the largest",
    },
    "vote-accuracy": {
        lets_all_vote: "Only the first n may",
        one_right_is_enough: "not enough",
        averages_samples: "mean of the single samples",
        leaves_out_the_silent: "divide by all",
        looks_at_sample_n: "sample n alone",
        silence_wins: "do not vote",
        last_of_a_tie: "as in exercise 1",
    },
    "pass-at-k": {
        with_putting_back: "without putting back",
        adds_up: "do not add up",
        all_right: "that all k are right",
        all_wrong: "that all k are wrong",
        one_sample: "grow with k",
        exactly_one: "exactly one right",
    },
}
