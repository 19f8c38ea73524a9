"""Scores a tiny model on problems that it never saw, and writes its model card."""

from collections.abc import Sequence
from statistics import median, quantiles
from typing import NamedTuple

from tiny_examples import DIRECT, HARD
from tiny_traces import WAYS
from tiny_training import Outcome, Recipe

import qwenlab
from qwenlab.evaluation.arithmetic import (
    KINDS,
    ArithmeticProblem,
    arithmetic_conversations,
)
from qwenlab.evaluation.evaluation import evaluate, wilson
from qwenlab.evaluation.grading import extract_answer
from qwenlab.evaluation.problems import load_problems
from qwenlab.evaluation.voting import self_consistency
from qwenlab.evaluation.wordings import HELD_OUT_INSTRUCTION, USUAL_INSTRUCTION
from qwenlab.model.model import Model
from qwenlab.text.tokenizer import Tokenizer

# Longer than any trace it was taught, so an answer that reaches this has lost its way.
LONGEST = 256
SAMPLES = 16
TEMPERATURES = (0.5, 0.7, 1.0)
SEEDS = (0, 1, 2)  # of the votes
SLOTS = 128
SAMPLED = "one sample, temperature 1"


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


def messages_of(turns: Sequence[ArithmeticProblem], instruction: str = "") -> list[dict[str, str]]:
    """A conversation up to its last question; the earlier ones have got their right answers."""
    messages = []
    for turn in turns:
        question = f"{turn.question}\n\n{instruction}" if instruction else turn.question
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": f"\\boxed{{{turn.answer}}}"})
    return messages[:-1]


def score(
    model: Model,
    tokenizer: Tokenizer,
    conversations: list[list[ArithmeticProblem]],
    temperature: float = 0.0,
    thinking: bool = True,
    instruction: str = "",
) -> Score:
    """One answer to the last question of each, in batches; right where the boxed text is exactly
    the number."""
    prompts = []
    seeds = []
    for turns in conversations:
        prompts.append(tokenizer.chat(messages_of(turns, instruction), thinking=thinking))
        seeds.append(turns[0].number)
    result = qwenlab.generate(
        model,
        prompts,
        max_new_tokens=LONGEST,
        temperature=temperature,
        seed=seeds,
        slots=SLOTS,
        progress=True,
    )
    answers = []
    for turns, request in zip(conversations, result, strict=True):
        text = tokenizer.decode(request.token_ids)
        right = extract_answer(text) == turns[-1].answer
        answers.append(Answer(turns[0].kind, right, len(request.logprobs), "\ncheck\n" in text))
    return Score(answers)


def chat_score(
    model: Model, tokenizer: Tokenizer, conversations: list[list[ArithmeticProblem]]
) -> Score:
    """The same in a chat, which keeps the thinking and goes on from the model's own answers."""
    chat = qwenlab.Chat(model, tokenizer, len(conversations), max_new_tokens=LONGEST)
    for place in range(len(conversations[0])):
        texts = chat.send([turns[place].question for turns in conversations])
    answers = []
    for turns, text in zip(conversations, texts, strict=True):
        right = extract_answer(text) == turns[-1].answer
        answers.append(Answer(turns[0].kind, right, 0, "\ncheck\n" in text))
    return Score(answers)


def scores_of(model: Model, tokenizer: Tokenizer, problems: int) -> dict[str, Score]:
    """Scores on held-out problems, by what was asked and how."""
    alone = arithmetic_conversations(problems, turns=1)
    two = arithmetic_conversations(problems, turns=2)
    three = arithmetic_conversations(problems, turns=3)
    usual = USUAL_INSTRUCTION
    unseen = HELD_OUT_INSTRUCTION
    return {
        "greedy": score(model, tokenizer, alone),
        "greedy, with the usual instruction": score(model, tokenizer, alone, instruction=usual),
        "greedy, with an instruction it never saw": score(
            model, tokenizer, alone, instruction=unseen
        ),
        SAMPLED: score(model, tokenizer, alone, temperature=1.0),
        "greedy, without thinking": score(model, tokenizer, alone, thinking=False),
        "greedy, second question": score(model, tokenizer, two),
        "greedy, third question": score(model, tokenizer, three),
        "greedy, second question of a chat": chat_score(model, tokenizer, two),
    }


def votes(model: Model, tokenizer: Tokenizer, problems: int, seeds: Sequence[int]) -> str:
    """The accuracy of greedy decoding and of votes, as a table in Markdown."""
    held_out = load_problems("tiny-test", problems)
    options = {"max_new_tokens": LONGEST, "batch_size": SLOTS, "progress": True}
    greedy = evaluate(model, tokenizer, held_out, **options).accuracy
    rows = [f"| greedy | | {with_interval(greedy, problems)} | | | | |"]
    for temperature in TEMPERATURES:
        for seed in seeds:
            sampling = {"samples": SAMPLES, "temperature": temperature, "top_p": 1.0, "seed": seed}
            voting = self_consistency(model, tokenizer, held_out, **sampling, **options)
            cells = [with_interval(right, problems) for right in voting.by_n.values()]
            rows.append(f"| {temperature} | {seed} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def with_interval(accuracy: float, count: int) -> str:
    """An accuracy with the 95 % interval around it."""
    low, high = wilson(accuracy, count)
    return f"{accuracy:.3f} ({low:.3f}–{high:.3f})"


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
{kinds}. In training {hard:.0%} of the first questions were made products or equations.
Numbers have one digit (40 %) or go from 10 to 49; the longer factor of a product goes up to 99.
A third of the conversations go on for a second or third question, most of which need an earlier answer.
Problems come bare or with an instruction in one of many wordings, and some behind a system message.
One calculation in five is held out by its operation and numbers, in every wording and every turn.
Single steps are not: a held-out sum shares its running totals with others.
`qwenlab.evaluation.arithmetic_problems` and `arithmetic_conversations` make them all.

## Training
{steps:,} steps on {millions:.2f} million tokens, {seconds:.0f} CPU seconds in one thread, in float32.
The loss counts the answers only, and was {loss:.3f} at the end.
Muon trains the matrices of the layers, AdamW the rest.
A trace has one line a step, then the boxed answer. {teaching}

To make it again:

    python scripts/train_tiny.py {name} --steps {steps} --seed {seed}

## Accuracy
{problems:,} held-out problems, one answer each. Weights as shipped, computed in float32.

| | all | {heads} |
|---|---|{rules}
{table}

The second and third questions are counted by the kind of the first.

At temperature 1, {checking:.0%} of the answers check themselves. Of these {checked:.3f} are right, of the others \
{unchecked:.3f}.
{votes}
| tokens | least | median | 90 % | most |
|---|---|---|---|---|
| prompts | {prompts} |
| answers at temperature 1 | {lengths} |

## What it can't do
Anything but these problems in these wordings. Larger numbers, brackets, fractions, other languages and general
questions get a confident wrong answer. Without thinking it guesses.

Licence: Apache-2.0. The script made all the text that it learned from.
"""

DIALS = """Three dials make sampling worth studying:

- {slip:.0%} of the written results are wrong **on purpose**, and the trace carries the error on;
- {check:.0%} of the traces work the problem again until two passes agree;
- {shuffle:.0%} take the terms in random order.

{direct:.0%} answer at once, without thinking."""

DIALS_OF_WAYS = """It begins with the name of its way:

| way | share | how |
|---|---|---|
{shares}

The short cut, `quick`, is wrong **on purpose** wherever its first sum has something to carry or to borrow: it forgets
that, and guesses the ones. {slip:.0%} of all written results are wrong, too, and the trace carries the error on.
{direct:.0%} answer at once, without thinking."""

HOW = {
    "quick": "from left to right, hasty in the first sum",
    "in order": "from left to right",
    "backwards": "from right to left, gains before losses",
    "largest first": "the largest gain first, then the largest loss",
    "tens first": "the tens, then the ones",
    "twice": "from left to right, until two passes agree",
}

VOTES = """
A vote of samples, 95 % intervals, three seeds a temperature:

| temperature | seed | one | two | four | eight | sixteen |
|---|---|---|---|---|---|---|
{rows}
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
    voted: str,
    **sizes: int,
) -> str:
    """The model card, README.md beside the weights. Every figure comes from this run."""
    table = []
    for way, score in scores.items():
        line = f"| {way} | {score.accuracy:.3f} |"
        for kind in KINDS:
            line += f" {score.of(kind):.3f} |"
        table.append(line)
    sampled = scores[SAMPLED].answers
    checked = []
    unchecked = []
    for answer in sampled:
        (checked if answer.checks else unchecked).append(answer.right)
    ways = []
    for way, part in WAYS.items():
        ways.append(f"| `{way}` | {part:.0%} | {HOW[way]} |")
    dials = DIALS_OF_WAYS if recipe.dials.ways else DIALS
    return CARD.format(
        name=name,
        what="A Qwen3.5" if recipe.hybrid else "A Qwen3",
        architecture=recipe.architecture,
        layers=HYBRID.format(**recipe.shape) if recipe.hybrid else "",
        kinds=", ".join(f"{kind} {part:.0%}" for kind, part in KINDS.items()).capitalize(),
        teaching=dials.format(shares="\n".join(ways), direct=DIRECT, **vars(recipe.dials)),
        hard=HARD,
        millions=outcome.tokens / 1e6,
        problems=len(sampled),
        heads=" | ".join(KINDS),
        rules="---|" * len(KINDS),
        table="\n".join(table),
        votes=VOTES.format(rows=voted) if voted else "",
        checking=len(checked) / len(sampled),
        checked=share(checked),
        unchecked=share(unchecked),
        prompts=spread(prompts),
        lengths=spread([answer.tokens for answer in sampled]),
        seed=recipe.seed,
        **sizes,
        **recipe.shape,
        **vars(outcome),
    )


def share(right: list[bool]) -> float:
    return sum(right) / len(right) if right else float("nan")


def spread(lengths: list[int]) -> str:
    last_decile = quantiles(lengths, n=10)[-1]
    return f"{min(lengths)} | {median(lengths):.0f} | {last_decile:.0f} | {max(lengths)}"
