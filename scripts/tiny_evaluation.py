"""Scores a tiny model on problems that it never saw, and writes its model card."""

from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

from tiny_training import Outcome, Recipe

import qwenlab
from qwenlab.evaluation.arithmetic import KINDS, ArithmeticProblem, arithmetic_problems
from qwenlab.evaluation.grading import extract_answer
from qwenlab.text.tokenizer import Tokenizer

# Longer than any trace it was taught, so an answer that reaches this has lost its way.
LONGEST = 256


class Answer(NamedTuple):
    """The answer to one problem: `tokens` counts the stop token too; `checks` tells whether it
    worked the problem more than once."""

    kind: str
    right: bool
    tokens: int
    checks: bool


class Score(NamedTuple):
    answers: list[Answer]

    @property
    def accuracy(self) -> float:
        return share([answer.right for answer in self.answers])

    def of(self, kind: str) -> float:
        """Accuracy on the problems of one kind; NaN where there are none."""
        return share([answer.right for answer in self.answers if answer.kind == kind])


def score(
    model: qwenlab.Model,
    tokenizer: Tokenizer,
    problems: list[ArithmeticProblem],
    temperature: float,
    thinking: bool = True,
) -> Score:
    """One answer to each problem, in batches; right where the boxed text is exactly the number."""
    prompts = []
    seeds = []
    for problem in problems:
        prompts.append(chat(tokenizer, problem, thinking))
        seeds.append(problem.number)
    result = qwenlab.generate(
        model,
        prompts,
        max_new_tokens=LONGEST,
        temperature=temperature,
        seed=seeds,
        slots=128,
        progress=True,
    )
    answers = []
    for problem, request in zip(problems, result, strict=True):
        text = tokenizer.decode(request.token_ids)
        right = extract_answer(text) == problem.answer
        answers.append(Answer(problem.kind, right, len(request.logprobs), "\ncheck\n" in text))
    return Score(answers)


def chat(tokenizer: Tokenizer, problem: ArithmeticProblem, thinking: bool = True) -> list[int]:
    """The ids of the prompt that asks `problem`."""
    return tokenizer.chat([{"role": "user", "content": problem.question}], thinking=thinking)


def evaluate(folder: Path, problems: int) -> tuple[dict[str, Score], list[int]]:
    """Scores of the checkpoint in `folder` (greedy, one sample at temperature 1, greedy without
    thinking), and the lengths of the prompts in tokens."""
    model, tokenizer = qwenlab.load(folder, device="cpu")
    held_out = arithmetic_problems(problems)
    prompts = [len(chat(tokenizer, problem)) for problem in held_out]
    return {
        "greedy": score(model, tokenizer, held_out, temperature=0.0),
        "T=1": score(model, tokenizer, held_out, temperature=1.0),
        "no thinking": score(model, tokenizer, held_out, temperature=0.0, thinking=False),
    }, prompts


CARD = """\
---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
---
# {name}

{what} of {parameters:,} parameters that solves small arithmetic problems step by step.
It comes with qwenlab, so that every lesson runs offline on a laptop. It knows nothing else.

    model, tokenizer = qwenlab.load("{name}")

## Shape
`{architecture}`, which `transformers` loads unchanged. Weights are bfloat16 safetensors.

| hidden | layers | query heads | key/value heads | head size | MLP | embeddings | context |
|---|---|---|---|---|---|---|---|
| {hidden_size} | {num_hidden_layers} | {num_attention_heads} | {num_key_value_heads} | {head_dim} \
| {intermediate_size} | {vocab_size} rows, tied | {max_position_embeddings:,} tokens |
{layers}
The tokenizer is byte-level BPE with {vocabulary} tokens; digits, signs and newlines stand alone.
The chat template is ChatML as in Qwen3: with thinking off, the prompt ends in a closed empty thinking block.

## Problems
{kinds}.
Numbers have one digit (40 %) or go from 10 to 49; the longer factor of a product goes up to 99.
One calculation in five is held out by its operation and numbers, in every wording.
Single steps are not: a held-out sum shares its running totals with others.
`qwenlab.evaluation.arithmetic_problems` makes them all.

## Training
{steps:,} steps on {millions:.2f} million tokens, {seconds:.0f} seconds on one CPU thread, in float32.
The loss counts the answer only, and was {loss:.3f} at the end.
Muon trains the matrices of the layers, AdamW the rest.
A trace has one line a step, then the boxed answer. Three dials make sampling worth studying:

- {slip:.0%} of the written results are wrong **on purpose**, and the trace carries the error on;
- {check:.0%} of the traces work the problem again until two passes agree;
- {shuffle:.0%} take the terms in random order.

{direct:.0%} answer at once, without thinking. To make it again:

    python scripts/train_tiny.py {name} --steps {steps} --seed {seed}

## Accuracy
{problems:,} held-out problems, one answer each. Weights as shipped, computed in float32.

| | all | {heads} |
|---|---|{rules}
{table}

At temperature 1, {checking:.0%} of the answers check themselves. Of these {checked:.3f} are right, of the others \
{unchecked:.3f}.

| tokens | least | median | 90 % | most |
|---|---|---|---|---|
| prompts | {prompts} |
| answers at temperature 1 | {lengths} |

## What it can't do
Anything but these problems in these wordings. Larger numbers, brackets, fractions, other languages and general
questions get a confident wrong answer. It has seen one turn only, and without thinking it guesses.

Licence: Apache-2.0. The script made all the text that it learned from.
"""

HYBRID = """
Three layers are Gated DeltaNet, with {linear_num_value_heads} heads of {linear_value_head_dim}, and the last one is \
gated attention. `A_log` and the norms of the
linear layers are kept in float32, as published for Qwen3.5.
"""


def card(
    name: str,
    recipe: Recipe,
    outcome: Outcome,
    scores: dict[str, Score],
    prompts: list[int],
    **sizes: int,
) -> str:
    """The model card, README.md beside the weights. Every figure comes from this run."""
    labels = {
        "greedy": "greedy",
        "T=1": "one sample, temperature 1",
        "no thinking": "greedy, without thinking",
    }
    table = []
    for way, score in scores.items():
        line = f"| {labels[way]} | {score.accuracy:.3f} |"
        for kind in KINDS:
            line += f" {score.of(kind):.3f} |"
        table.append(line)
    sampled = scores["T=1"].answers
    checked = []
    unchecked = []
    for answer in sampled:
        (checked if answer.checks else unchecked).append(answer.right)
    return CARD.format(
        name=name,
        what="A Qwen3.5" if recipe.hybrid else "A Qwen3",
        architecture=recipe.architecture,
        layers=HYBRID.format(**recipe.shape) if recipe.hybrid else "",
        kinds=", ".join(f"{kind} {share:.0%}" for kind, share in KINDS.items()).capitalize(),
        millions=outcome.tokens / 1e6,
        problems=len(sampled),
        heads=" | ".join(KINDS),
        rules="---|" * len(KINDS),
        table="\n".join(table),
        checking=len(checked) / len(sampled),
        checked=share(checked),
        unchecked=share(unchecked),
        prompts=spread(prompts),
        lengths=spread([answer.tokens for answer in sampled]),
        seed=recipe.seed,
        **sizes,
        **recipe.shape,
        **vars(recipe.dials),
        **vars(outcome),
    )


def share(right: list[bool]) -> float:
    return sum(right) / len(right) if right else float("nan")


def spread(lengths: list[int]) -> str:
    last_decile = quantiles(lengths, n=10)[-1]
    return f"{min(lengths)} | {median(lengths):.0f} | {last_decile:.0f} | {max(lengths)}"
