"""Self-consistency: several sampled answers to each problem, and the most frequent of them.

Wang et al., "Self-Consistency Improves Chain of Thought Reasoning in Language Models" (2022).
"""

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from qwenlab.evaluation.elsewhere import Elsewhere
from qwenlab.evaluation.evaluation import Evaluation, evaluate, wilson
from qwenlab.evaluation.grading import form_of, graded
from qwenlab.evaluation.problems import Problem
from qwenlab.evaluation.symbolic import VOTE_LIMIT, Budget
from qwenlab.evaluation.values import Form
from qwenlab.files import write_whole
from qwenlab.model.model import Model
from qwenlab.run_folder import RunFolderError
from qwenlab.text.tokenizer import Tokenizer


def majority_vote(answers: Sequence[str | None]) -> tuple[str | None, dict[str, int]]:
    """The most frequent answer and the votes: (answer, {answer: votes}), in order of first
    appearance.

    Answers that `grade` finds equal (0.5 and 1/2) form one group, named after its first member,
    with which the others are compared. None is never a candidate: if there is nothing else, the
    answer is None. Of equally large groups the one that appeared first wins.

    Answers with the same normal form are grouped first; only the rest are compared symbolically,
    for at most VOTE_LIMIT seconds in all. Whatever is undecided by then stays a group of its own.
    """
    return count_votes(groups_of(answers))


def groups_of(answers: Sequence[str | None]) -> list[str | None]:
    """For each answer the first member of its group. The groups of the first n answers alone are
    the first n of these."""
    first: dict[str, str] = {}  # by spelling, because each spelling is compared only once
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
    """The first group that `answer` belongs to, found without symbolic comparison if possible; else
    `answer` itself, which starts a new one."""
    for allowed in (Budget(0), budget):
        for group in groups:
            if graded(answer, group, allowed):
                return group
    return answer


def count_votes(groups: Sequence[str | None]) -> tuple[str | None, dict[str, int]]:
    """As `majority_vote`, for answers that are equal only where their texts are."""
    counts = Counter(groups)
    counts.pop(None, None)
    return max(counts, key=counts.get, default=None), dict(counts)


def self_consistency(
    model: Model | Elsewhere,
    tokenizer: Tokenizer,
    problems: Sequence[Problem],
    *,
    samples: int = 8,
    temperature: float = 0.9,
    top_p: float = 0.9,
    **options: object,
) -> "Voting":
    """Answers each problem `samples` times and takes a vote: see `majority_vote`.

    The answers are those of `evaluate`, with its options, errors and folder, to which votes.json is
    added.
    """
    sampling = {"samples": samples, "temperature": temperature, "top_p": top_p}
    voting = Voting(evaluate(model, tokenizer, problems, **sampling, **options), samples)
    if (folder := options.get("folder")) is not None:
        summary = dict(vars(voting))
        del summary["evaluation"]
        path = Path(getattr(folder, "path", folder)) / "votes.json"
        write_whole(path, json.dumps(summary, indent=2) + "\n", RunFolderError)
    return voting


class Voting:
    """The votes on each problem, and their accuracy. As text it is a table.

    votes: id, number, gold, answer (None: no sample has one), verdict, counts, by problem number.
    by_n: the accuracy of the vote over each problem's first n samples, for n = 1, 2, 4, ... and all
    of them; `accuracy` is the last of these and `interval` its 95 % interval (Wilson), over the
    problems. `evaluation` holds the samples and their cost.
    """

    def __init__(self, evaluation: Evaluation, samples: int) -> None:
        sizes = []
        n = 1
        while n < samples:
            sizes.append(n)
            n *= 2
        sizes.append(samples)
        self.evaluation = evaluation
        self.votes = []
        right: dict[int, list[bool]] = defaultdict(list)
        for start in range(0, len(evaluation.records), samples):
            records = evaluation.records[start : start + samples]
            verdicts = {record["answer"]: record["verdict"] for record in records}
            groups = groups_of([record["answer"] for record in records])
            for n in sizes:
                answer, counts = count_votes(groups[:n])
                right[n].append(answer is not None and verdicts[answer])
            problem = {"id": records[0]["id"], "number": records[0]["number"]}
            vote = {"answer": answer, "verdict": right[samples][-1], "counts": counts}
            self.votes.append({**problem, "gold": records[0]["gold"], **vote})
        self.by_n = {n: fmean(verdicts) for n, verdicts in right.items()}
        self.accuracy = self.by_n[samples]
        self.interval = wilson(self.accuracy, len(self.votes))

    def __repr__(self) -> str:
        low, high = self.interval
        voted = f"accuracy of the vote {self.accuracy:.3f}, 95 % interval {low:.3f} to {high:.3f}"
        lines = [str(self.evaluation), "", voted, "", "samples  accuracy of their vote"]
        for n, accuracy in self.by_n.items():
            lines.append(f"{n:7}  {accuracy:8.3f}")
        return "\n".join(lines)
