"""What the widget of lesson 12 must show, sampled and counted again: see widget_numbers.py.

Each sample reads its own prompt here, and nobody joins a batch that has begun.
"""

from functools import cache

import qwenlab
from qwenlab.evaluation.arithmetic import arithmetic_problems

CAP = 100
PROBLEMS = 96
SAMPLES = 16


@cache
def asked():
    """The problems with their prompts, and what answers them."""
    model, tokenizer = qwenlab.load("tiny-base", dtype="float32")
    problems = arithmetic_problems(PROBLEMS, split="held-out")
    prompts = []
    for problem in problems:
        prompts.append(tokenizer.chat([{"role": "user", "content": problem.question}]))
    return model, tokenizer, problems, prompts


def boxed(tokenizer, ids):
    """What the last box holds; None if it never closes."""
    last = tokenizer.decode(ids).split("\\boxed{")
    closed = len(last) > 1 and "}" in last[-1]
    return last[-1].split("}")[0] if closed else None


@cache
def greedily():
    """How many problems greedy decoding gets right."""
    model, tokenizer, problems, prompts = asked()
    result = qwenlab.generate(model, prompts, max_new_tokens=CAP, strategy="static", slots=32)
    answers = [boxed(tokenizer, ids) for ids in result.token_ids]
    return sum(one == problem.answer for one, problem in zip(answers, problems, strict=True))


@cache
def sampled():
    """(right answer, the answers of its samples) of each problem.

    The small model writes whole numbers.
    """
    model, tokenizer, problems, prompts = asked()
    result = qwenlab.generate(
        model,
        prompts,
        n=SAMPLES,
        seed=list(range(PROBLEMS)),
        temperature=0.7,
        max_new_tokens=CAP,
        strategy="early-stop",
        slots=256,
        shared_prefix=False,
    )
    answers = [boxed(tokenizer, ids) for ids in result.token_ids]
    return [
        (problem.answer, answers[i * SAMPLES :][:SAMPLES]) for i, problem in enumerate(problems)
    ]


def tally(answers):
    """{answer: votes} in order of appearance, and who wins: the first of the largest."""
    votes = {}
    winner = None
    for answer in answers:
        if answer is not None:
            votes[answer] = votes.get(answer, 0) + 1
    for answer in votes:
        if winner is None or votes[answer] > votes[winner]:
            winner = answer
    return votes, winner


@cache
def contested():
    """The twelve problems with fewest votes for their winner; of equal ones the first."""
    most = [max(line.count(answer) for answer in line) for _, line in sampled()]
    return sorted(sorted(range(PROBLEMS), key=lambda i: (most[i], i))[:12])


def wilson(share, n):
    z = 1.959964
    root = (share * (1 - share) / n + z * z / (4 * n * n)) ** 0.5
    return [(share + z * z / (2 * n) + sign * z * root) / (1 + z * z / n) for sign in (-1, 1)]


def votes(state):
    """Votes of each answer and whether it is right.

    Then accuracy and interval of greedy, of a sample, of the vote, of at least one.
    """
    n = int(state["samples"])
    gold, line = sampled()[int(state["problem"])]
    counts, _ = tally(line[:n])
    table = [
        [str(count), "right" if answer == gold else "wrong"] for answer, count in counts.items()
    ]
    silent = line[:n].count(None)
    if silent:
        table.append([str(silent), "wrong"])
    good = [greedily(), 0, 0, 0]
    for gold, line in sampled():
        good[1] += sum(answer == gold for answer in line[:n]) / n
        good[2] += tally(line[:n])[1] == gold
        good[3] += gold in line[:n]
    return [table, [[number / PROBLEMS, *wilson(number / PROBLEMS, PROBLEMS)] for number in good]]
