"""Self-consistency: several sampled answers to each problem, and the one that most of them give.

Wang et al., "Self-Consistency Improves Chain of Thought Reasoning in Language Models" (2022).
"""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from qwenlab.tasks.evaluation import Evaluation, evaluate, wilson
from qwenlab.tasks.grading import grade
from qwenlab.tasks.run_folder import write_whole


def majority_vote(answers: Sequence[str | None]) -> tuple[str | None, dict[str, int]]:
    """The answer that most give, and the votes of each: (answer, {answer: votes}) in order of first appearance.

    Answers that `grade` holds equal are one group (0.5 and 1/2), named by its first member, with which the others are
    compared. None is no candidate: without any other the answer is None. Of equally large groups the one that
    appeared first wins.
    """
    first: dict[str, str] = {}  # of every spelling met, the first member of its group: each is compared once
    for answer in answers:
        if answer is not None and answer not in first:
            members = dict.fromkeys(first.values())
            first[answer] = next((member for member in members if grade(answer, member)), answer)
    counts = Counter(first[answer] for answer in answers if answer is not None)
    return max(counts, key=counts.get, default=None), dict(counts)


def self_consistency(model, tokenizer, problems, *, samples=8, temperature=0.9, top_p=0.9, **options) -> "Voting":
    """Answers each problem `samples` times and lets the answers vote: see `majority_vote`.

    The answers are those of `evaluate`, with its options, its errors and its folder, which then also holds
    votes.json. A problem's samples read its prompt once.
    """
    sampling = {"samples": samples, "temperature": temperature, "top_p": top_p}
    voting = Voting(evaluate(model, tokenizer, problems, **sampling, **options), samples)
    if (folder := options.get("folder")) is not None:
        held = {name: value for name, value in vars(voting).items() if name != "evaluation"}
        write_whole(Path(getattr(folder, "path", folder)) / "votes.json", json.dumps(held, indent=2) + "\n")
    return voting


class Voting:
    """The votes on each problem, and what they are worth. As text it is a table.

    votes: id, number, gold, answer (None: nobody gave one), verdict, counts, by problem number. by_n is the accuracy
    of the vote over each problem's first n samples, n = 1, 2, 4, ... and all of them; `accuracy` is the last of these
    and `interval` its 95 % interval (Wilson), over the problems. `evaluation` has the samples and what they cost.
    """

    def __init__(self, evaluation: Evaluation, samples: int):
        steps = sorted({2**i for i in range(samples.bit_length())} | {samples})
        self.evaluation, self.votes, right = evaluation, [], {n: [] for n in steps}
        for start in range(0, len(evaluation.records), samples):
            records = evaluation.records[start : start + samples]
            verdicts = {record["answer"]: record["verdict"] for record in records}
            for n in steps:
                answer, counts = majority_vote([record["answer"] for record in records[:n]])
                right[n].append(answer is not None and verdicts[answer])
            vote = {"answer": answer, "verdict": right[samples][-1], "counts": counts}
            self.votes.append({name: records[0][name] for name in ("id", "number", "gold")} | vote)
        self.by_n = {n: fmean(verdicts) for n, verdicts in right.items()}
        self.accuracy = self.by_n[samples]
        self.interval = wilson(self.accuracy, len(self.votes))

    def __repr__(self) -> str:
        lines = [f"{n:7}  {accuracy:8.3f}" for n, accuracy in self.by_n.items()]
        voted = "accuracy of the vote {:.3f}, 95 % interval {:.3f} to {:.3f}".format(self.accuracy, *self.interval)
        return "\n".join([str(self.evaluation), "", voted, "", "samples  accuracy of their vote", *lines])
