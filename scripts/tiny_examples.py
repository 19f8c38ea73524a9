"""What the tiny models read in training: conversations of one to three turns, put in many ways.

Earlier turns are there in one of two forms. A chat template drops their thinking, and so does half
of the conversations here. The other half keeps every token, as a chat does that goes on from its
cache.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tiny_traces import Dials, completion

from qwenlab.evaluation.arithmetic import ArithmeticProblem, follow_up, problem_stream
from qwenlab.evaluation.wordings import SYSTEM_MESSAGES, instruct
from qwenlab.orders import seeded

STOP = "<|im_end|>"
EMPTY_BLOCK = "<think>\n\n</think>\n\n"
TURNS = {1: 0.66, 2: 0.22, 3: 0.12}
# This share of the first questions is of the kinds that are hardest to learn, beside those that
# are so anyway.
HARD = 0.3
HARD_KINDS = ("product", "equation")
DROPPED = 0.5  # of the longer conversations: without the thinking of their earlier turns
DIRECT = 0.05  # thinking off
SYSTEM = 0.15
INSTRUCTED = 0.45
# Where instructions come with more than one turn: with each of them, or with the first only.
EVERY_TURN = 0.5
PLACES = {
    "{question}\n\n{instruction}": 0.75,
    "{question} {instruction}": 0.10,
    "{question}\n{instruction}": 0.05,
    "{instruction}\n\n{question}": 0.10,
}


class Segment(NamedTuple):
    """A piece of a rendered conversation; `taught` says whether the loss counts its tokens."""

    text: str
    taught: bool


@dataclass
class Turn:
    problem: ArithmeticProblem
    message: str
    text: str  # what the assistant writes, up to the stop token
    answer: int

    @property
    def without_thinking(self) -> str:
        return self.text.split("</think>")[-1].lstrip("\n")


def examples(seed: int, dials: Dials) -> Iterator[list[Segment]]:
    """Conversations without end, on training problems."""
    rng = seeded("traces", seed)
    mixed = problem_stream(seed, "train")
    hard = problem_stream(seed, "train", HARD_KINDS)
    while True:
        thinking = rng.random() >= DIRECT
        problem = next(hard if rng.random() < HARD else mixed)
        turns = make_turns(rng, problem, dials, thinking)
        system = system_message(rng) if rng.random() < SYSTEM else None
        dropped = rng.random() < DROPPED
        yield segments(turns, system, thinking, dropped)


def system_message(rng: random.Random) -> str:
    """Who the assistant is, or how it should answer."""
    return rng.choice(SYSTEM_MESSAGES) if rng.random() < 0.6 else instruct(rng)


def make_turns(
    rng: random.Random, problem: ArithmeticProblem, dials: Dials, thinking: bool
) -> list[Turn]:
    """The first problem and its follow-ups. These go on from the answers given, right or wrong."""
    count = rng.choices(list(TURNS), list(TURNS.values()))[0]
    instruction = None
    if rng.random() < INSTRUCTED:
        instruction = instruct(rng)
    every_turn = rng.random() < EVERY_TURN
    turns: list[Turn] = []
    for place in range(count):
        if place > 0:
            asked = [turn.problem for turn in turns]
            problem = follow_up(rng, asked, [turn.answer for turn in turns], "train")
        message = problem.question
        if instruction is not None and (place == 0 or every_turn):
            message = with_instruction(rng, message, instruction)
        turns.append(Turn(problem, message, *completion(rng, problem.calculation, dials, thinking)))
    return turns


def with_instruction(rng: random.Random, question: str, instruction: str) -> str:
    place = rng.choices(list(PLACES), list(PLACES.values()))[0]
    return place.format(question=question, instruction=instruction)


def segments(
    turns: Sequence[Turn], system: str | None, thinking: bool, dropped: bool
) -> list[Segment]:
    """The conversation as the chat template has it. With `dropped` only the last answer is taught:
    the earlier ones stand there without the thinking that led to them."""
    opening = "" if thinking else EMPTY_BLOCK
    pieces = []
    before = "" if system is None else f"<|im_start|>system\n{system}{STOP}\n"
    for turn in turns:
        before += f"<|im_start|>user\n{turn.message}{STOP}\n<|im_start|>assistant\n"
        if dropped and turn is not turns[-1]:
            before += turn.without_thinking + STOP + "\n"
        else:
            pieces += [Segment(before + opening, False), Segment(turn.text + STOP, True)]
            before = "\n"
    return pieces
