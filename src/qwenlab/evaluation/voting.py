"""Self-consistency: several sampled answers to each problem, and the one that most of them give.

Wang et al., "Self-Consistency Improves Chain of Thought Reasoning in Language Models" (2022).
"""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from qwenlab.evaluation.evaluation import Evaluation, evaluate, wilson
from qwenlab.evaluation.grading import form_of, graded
from qwenlab.evaluation.symbolic import VOTE_LIMIT, Budget
from qwenlab.evaluation.values import Form
from qwenlab.files import write_whole
from qwenlab.run_folder import RunFolderError


def majority_vote(answers: Sequence[str | None]) -> tuple[str | None, dict[str, int]]:
    """The answer that most give, and the votes of each: (answer, {answer: votes}) in order of first
    appearance.

    Answers that `grade` holds equal are one group (0.5 and 1/2), named by its first member, with
    which the others are compared. None is no candidate: without any other the answer is None. Of
    equally large groups the one that appeared first wins.

    Answers with the same normal form are grouped first; only the rest is compared symbolically, for
    at most VOTE_LIMIT seconds in all. What is undecided by then stays a group of its own.
    """
    return count_votes(groups_of(answers))


def groups_of(answers: Sequence[str | None]) -> list[str | None]:
    """For each answer the first member of its group. Those of the first n answers are the first n
    of all."""
    first: dict[str, str] = {}  # by spelling, each of which is compared once
    by_form: dict[Form, str] = {}
    budget = Budget(VOTE_LIMIT)
    for answer in answers:
        if answer is None or answer in first:
            continue
        form = form_of(answer)
        group = by_form.get(form) if form else None
        if group is None:
            group = find_group(answer, list(dict.fromkeys(first.values())), budget)
        first[answer] = group
        if form:
            by_form.setdefault(form, group)
    return [first.get(answer) for answer in answers]


def find_group(answer: str, groups: list[str], budget: Budget) -> str:
    """The first group that `answer` belongs to, without symbolic comparison if possible; else a new
    one."""
    for allowed in (Budget(0), budget):
        for group in groups:
            if graded(answer, group, allowed):
                return group
    return answer


def count_votes(groups: Sequence[str | None]) -> tuple[str | None, dict[str, int]]:
    """The same of answers that differ wherever their texts do."""
    counts = Counter(group for group in groups if group is not None)
    return max(counts, key=counts.get, default=None), dict(counts)


def self_consistency(
    model, tokenizer, problems, *, samples=8, temperature=0.9, top_p=0.9, **options
) -> "Voting":
    """Answers each problem `samples` times and lets the answers vote: see `majority_vote`.

    The answers are those of `evaluate`, with its options, its errors and its folder, which then
    also holds votes.json. A problem's samples read its prompt once.
    """
    sampling = {"samples": samples, "temperature": temperature, "top_p": top_p}
    voting = Voting(evaluate(model, tokenizer, problems, **sampling, **options), samples)
    if (folder := options.get("folder")) is not None:
        held = {name: value for name, value in vars(voting).items() if name != "evaluation"}
        path = Path(getattr(folder, "path", folder)) / "votes.json"
        write_whole(path, json.dumps(held, indent=2) + "\n", RunFolderError)
    return voting


class Voting:
    """The votes on each problem, and what they are worth. As text it is a table.

    votes: id, number, gold, answer (None: nobody gave one), verdict, counts, by problem number.
    by_n is the accuracy of the vote over each problem's first n samples, n = 1, 2, 4, ... and all
    of them; `accuracy` is the last of these and `interval` its 95 % interval (Wilson), over the
    problems. `evaluation` has the samples and what they cost.
    """

    def __init__(self, evaluation: Evaluation, samples: int):
        steps = sorted({2**i for i in range(samples.bit_length())} | {samples})
        self.evaluation = evaluation
        self.votes = []
        right = {n: [] for n in steps}
        for start in range(0, len(evaluation.records), samples):
            records = evaluation.records[start : start + samples]
            verdicts = {record["answer"]: record["verdict"] for record in records}
            groups = groups_of([record["answer"] for record in records])
            for n in steps:
                answer, counts = count_votes(groups[:n])
                right[n].append(answer is not None and verdicts[answer])
            vote = {"answer": answer, "verdict": right[samples][-1], "counts": counts}
            self.votes.append({name: records[0][name] for name in ("id", "number", "gold")} | vote)
        self.by_n = {n: fmean(verdicts) for n, verdicts in right.items()}
        self.accuracy = self.by_n[samples]
        self.interval = wilson(self.accuracy, len(self.votes))

    def __repr__(self) -> str:
        lines = [f"{n:7}  {accuracy:8.3f}" for n, accuracy in self.by_n.items()]
        voted = "accuracy of the vote {:.3f}, 95 % interval {:.3f} to {:.3f}".format(
            self.accuracy, *self.interval
        )
        return "\n".join(
            [str(self.evaluation), "", voted, "", "samples  accuracy of their vote", *lines]
        )
