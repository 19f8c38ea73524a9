"""What the widgets of lesson 13 must show, worked out again by plain loops: from the model's own
rollouts, and from the stored file."""

import json
from fractions import Fraction
from functools import cache
from pathlib import Path

import qwenlab
from qwenlab.evaluation import extract_answer, grade, load_problems, problem_prompts

FILE = Path(__file__).parents[2] / "src" / "qwenlab" / "teach" / "stored" / "grpo.json"
NAMES = {
    "reward": ("metrics", "reward"),
    "silent groups": ("metrics", "silent"),
    "length in tokens": ("metrics", "length"),
    "share cut off": ("metrics", "cut_off"),
    "unseen, temperature 1": ("tests", "sampled"),
    "unseen, greedy": ("tests", "greedy"),
    "unseen, short cut": ("tests", "short_cut"),
}


@cache
def runs():
    return json.loads(FILE.read_text(encoding="utf-8"))["runs"]


def written(value):
    if value == int(value) or abs(value) >= 100:
        return format(value, ",.0f")
    return format(value, ".3g")


def exact_mean(values):
    """Rounded once, at the end: three digits of 32.45 hang on its last bit."""
    values = list(map(Fraction, values))
    return float(sum(values) / len(values))


def steps_a_point(points):
    longest = 0
    for run in runs():
        longest = max(longest, len(run["metrics"]["reward"]))
    width = longest // points
    return width if width * points == longest else width + 1


def training(state):
    """One table: a line for each step at which a run has a point, one column a run."""
    where, name = NAMES[state["metric"]]
    width = steps_a_point(int(state["points"]))
    lines = {}
    for column, run in enumerate(runs()):
        values = run[where][name]
        steps = run["tests"]["step"] if where == "tests" else list(range(len(values)))
        begin = 0
        while begin <= max(steps):
            here = [i for i, step in enumerate(steps) if begin <= step < begin + width]
            begin += width
            if here:
                step = exact_mean(steps[i] for i in here)
                line = lines.setdefault(step, [""] * len(runs()))
                line[column] = written(exact_mean(values[i] for i in here))
    return [[[written(step), *lines[step]] for step in sorted(lines)]]


@cache
def rewards():
    """Of eight answers to each of eight problems: a group a row."""
    model, tokenizer = qwenlab.load("tiny-base", dtype="float32")
    problems = load_problems("tiny-train", 8)
    groups = []
    for problem in problems:
        result = qwenlab.generate(
            model,
            problem_prompts(tokenizer, [problem]),
            n=8,
            temperature=1.0,
            max_new_tokens=72,
            seed=[problem.number],
        )
        texts = [tokenizer.decode(ids) for ids in result.token_ids]
        groups.append([int(grade(extract_answer(text), problem.answer)) for text in texts])
    return groups


def deviation(values):
    """Of a sample."""
    mean = sum(values) / len(values)
    return (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5


def groups(state):
    """The advantages of each group; the cells of right answers are outlined."""
    some = [group[: int(state["answers"])] for group in rewards()]
    every = [reward for group in some for reward in group]
    advantages = []
    for group in some:
        others = group if state["compared with"] == "its own group" else every
        mean = sum(others) / len(others)
        scale = deviation(others) + 1e-4
        advantages.append([(reward - mean) / scale for reward in group])
    return [advantages]
