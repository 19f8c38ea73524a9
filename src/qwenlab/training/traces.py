"""Traces: what a teacher wrote to problems, thinking and answer apart, and how a student reads
them.

A trace is kept as text, not as ids: one file then teaches every student, whatever its tokenizer,
and people can read it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from qwenlab.engine.prompts import make_requests
from qwenlab.engine.request import Request
from qwenlab.engine.results import Stats
from qwenlab.errors import QwenlabError, failure, flags, whole
from qwenlab.evaluation.answering import run_requests
from qwenlab.evaluation.answers import extract_answer
from qwenlab.evaluation.evaluation import identity
from qwenlab.evaluation.grading import grade
from qwenlab.evaluation.problems import (
    BOXED,
    Problem,
    opens_thinking,
    problem_prompts,
    problem_seeds,
    records,
)
from qwenlab.run_folder import TEXT, WHOLE, RunFolder, RunFolderError
from qwenlab.text.chat_template import CLOSE, OPEN

TRACES = "traces.jsonl"
REJECTED = "rejected.jsonl"
FIELDS = {"number": WHOLE, "problem": TEXT, "message_thinking": TEXT, "message_content": TEXT}
FIELDS |= {"answer": TEXT, "instruction": TEXT, "finish_reason": TEXT, "tokens": WHOLE}
BROKEN_OFF = (
    "length",
    "error",
    "cancelled",
)  # finish reasons of an answer that its teacher didn't end


class TraceError(QwenlabError):
    """A file of traces can't be read, a record in it is no trace, or none of them is of use."""


@dataclass(frozen=True)
class Trace:
    """A problem with what the teacher thought ("" = it did not) and answered. `finished` is False
    where the teacher was cut off: then no stop id is made up.

    Thinking may be given apart or within the content; either way it is kept apart, without the line
    breaks that the template puts around it (see `take_apart`).
    """

    problem: Problem
    content: str
    thinking: str = ""
    finished: bool = True

    def __post_init__(self):
        within, content = take_apart(self.content)
        given = self.thinking if self.thinking.strip() else ""
        thinking = given.strip("\n")
        if thinking and within not in ("", thinking):  # marks in the answer's own text stay text
            content = self.content.lstrip("\n")
        object.__setattr__(self, "thinking", thinking or within)
        object.__setattr__(self, "content", content)


class Row(NamedTuple):
    """Ids of prompt and answer; the first `prompt` of them are the prompt's."""

    ids: list[int]
    prompt: int


def load_traces(path) -> list[Trace]:
    r"""The traces of a .json list or a .jsonl file, numbered by their place unless they have a
    "number".

    A record holds "problem", "message_content" and, where the teacher thought, "message_thinking"
    (names that servers give them, "content" and "reasoning_content", do as well), or the content
    has the thinking before its </think>, with or without the opening mark. "finish_reason":
    "length" says that it was cut off, "instruction" what was asked with the problem (as in
    `load_problems` it is "put your final answer within \boxed{}" where nothing is said). Other
    fields are not looked at. Raises TraceError or ProblemError naming file and record.
    """
    traces = []
    for place, record in records(Path(path)):
        if not isinstance(record, dict):
            raise TraceError(f"{place}: expected an object, found {type(record).__name__}")
        problem = text_field(record, place, "problem")
        content = text_field(record, place, "message_content", "content")
        thinking = text_field(record, place, "message_thinking", "reasoning_content", default="")
        instruction = text_field(record, place, "instruction", default=BOXED)
        number = whole(record.get("number", len(traces)), f"{place}: number", 0)
        asked = Problem(number, problem, "", str(number), {}, instruction)
        trace = Trace(asked, content, thinking, record.get("finish_reason") not in BROKEN_OFF)
        if not trace.content.strip():
            raise TraceError(
                f"{place}: message_content is {trace.content!r} behind its thinking, expected text"
            )
        traces.append(trace)
    if not traces:
        raise TraceError(f"{path}: no trace in it")
    return traces


def text_field(record: dict, place: str, *names: str, default: str | None = None) -> str:
    """The record's text of the first of these names that it has, else the default. Raises
    TraceError."""
    name = next((name for name in names if record.get(name) is not None), names[0])
    text = record.get(name)
    if text is None and default is not None:
        return default
    if not isinstance(text, str) or (default is None and not text.strip()):
        raise TraceError(f"{place}: {name} is {text!r:.80}, expected text")
    return text


def take_apart(text: str) -> tuple[str, str]:
    """(thinking, content) of what a model wrote, without the line breaks between them.

    Thinking ends with the first </think>. Where the prompt has opened the block already, as for
    Qwen3.5 and the thinking models of July 2025, the text doesn't open it: all before </think> is
    thinking then too. What stands before an opening mark, the template drops, and so do we. A block
    that never closes is all thinking.
    """
    thinking, closed, content = text.partition(CLOSE)
    before, opened, rest = thinking.partition(OPEN)
    if not closed and (not opened or before.strip()):
        return "", text.lstrip("\n")
    thinking = rest if opened else thinking
    return thinking.strip("\n") if thinking.strip() else "", content.lstrip("\n")


def answer_rows(model, tokenizer, traces: Sequence[Trace], max_length: int, plain: bool = False):
    """The rows that a student reads, and the numbers of the traces that were dropped.

    A row is the problem's prompt, thinking block and content as Qwen's templates write them, and
    the id that ends an answer. A trace without thinking stands behind the prompt that asks for
    none. Only the first `max_length` tokens are kept: an answer cut off there, or by its teacher,
    has no stop id, and a row without a token of its answer is dropped. Raises TraceError if no row
    is left, or naming a trace that can't be encoded.
    """
    rows = []
    dropped = []
    if not model.stop_ids and any(trace.finished for trace in traces):
        raise TraceError("the model has no stop id (eos_token_id), so no trace can end with one")
    stop = answer_end(model, tokenizer, plain) if model.stop_ids else None
    for trace in traces:
        try:
            [prompt] = problem_prompts(
                tokenizer, [trace.problem], plain=plain, thinking=bool(trace.thinking)
            )
            opened = opens_thinking(tokenizer, prompt)
            thinking = [trace.thinking] if opened else [OPEN, "\n" + trace.thinking]
            if not trace.thinking:
                parts = [trace.content]
            elif not trace.content and not trace.finished:  # cut off while it thought
                parts = thinking
            else:
                thinking[-1] += "\n"
                parts = [*thinking, CLOSE, "\n\n" + trace.content]
            answer = [id for part in parts for id in part_ids(tokenizer, part)]
        except QwenlabError as problem:
            raise TraceError(f"trace {trace.problem.number}: {problem}") from None
        row = Row([*prompt, *answer, *[stop][: trace.finished]][:max_length], len(prompt))
        if len(row.ids) > len(prompt):
            rows.append(row)
        else:
            dropped.append(trace.problem.number)
    if not rows:
        raise TraceError(
            f"none of {len(traces)} traces has a token of its answer within {max_length} tokens"
        )
    return rows, dropped


def part_ids(tokenizer, part: str) -> list[int]:
    """A thinking mark is the control token where there is one; within a text it stays text."""
    known = part in (OPEN, CLOSE) and part in tokenizer.control
    return [tokenizer.control[part]] if known else tokenizer.encode(part)


def answer_end(model, tokenizer, plain: bool) -> int:
    """The stop id that the chat template puts behind an answer; without a template the first, which
    ends a text."""
    behind = tokenizer.next_turn("?") if tokenizer.template and not plain else []
    return next((id for id in behind if id in model.stop_ids), min(model.stop_ids))


def make_traces(
    model,
    tokenizer,
    problems: Sequence[Problem],
    folder,
    *,
    max_new_tokens: int = 256,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    slots: int = 64,
    only_right: bool = True,
    plain: bool = False,
    seed: int = 0,
    progress: bool = False,
) -> list[Trace]:
    """Has a teacher answer `problems` in batches; the folder's traces.jsonl gets each as it ends.

    A run that was killed goes on where it was, and ends with the same file. A problem's sample
    draws from its own number's stream. Answers that never left their thinking or ended with an
    error go to rejected.jsonl instead, and with only_right those that don't grade right. The
    sampling options are those of `generate`; with fewer `slots` it takes less memory. Raises
    TraceError where no trace is of use, ProblemError, RunFolderError, and ValueError for a wrong
    option or two problems with one number: all but the first before anything is written.
    """
    numbers = [problem.number for problem in problems]
    if len(set(numbers)) < len(numbers):
        raise ValueError(
            f"{len(numbers)} problems with {len(set(numbers))} numbers, expected one for each"
        )
    flags(only_right=only_right, plain=plain, progress=progress)
    whole(slots, "slots", 1)
    limit = model.config.max_position_embeddings
    prompts = problem_prompts(tokenizer, problems, plain=plain, limit=limit)
    requests = make_requests(
        model,
        prompts,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=problem_seeds(problems, seed),
    )
    settings = {"task": "traces", "only_right": only_right} | identity(model, problems)
    settings |= {
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
    }

    def note(request: Request) -> None:
        problem = problems[request.index]
        text = (OPEN if opens_thinking(tokenizer, request.prompt) else "") + tokenizer.decode(
            request.token_ids
        )
        thinking, content = take_apart(text)
        record = {"number": problem.number, "problem": problem.problem, "answer": problem.answer}
        record["instruction"] = problem.instruction
        record |= {"message_thinking": thinking, "message_content": content}
        record |= {"finish_reason": request.finish_reason, "tokens": len(request.logprobs)}
        if request.error:
            record["error"] = request.error
        right = not request.error and (
            not only_right or grade(extract_answer(text), problem.answer)
        )
        useful = right and content.strip()
        run.append(TRACES if useful else REJECTED, record)

    with RunFolder(folder, settings | {"plain": plain, "seed": seed}) as run:
        keys = [(number,) for number in numbers]
        kept = run.done(TRACES, FIELDS, ("number",), keys)
        rejected = run.done(REJECTED, FIELDS, ("number",), keys)
        if twice := kept.keys() & rejected.keys():
            raise RunFolderError(
                f"{run.path}: number {min(twice)[0]} is in both {TRACES} and {REJECTED}"
            )
        left = [request for request in requests if (numbers[request.index],) not in kept | rejected]
        with tqdm(
            total=len(requests),
            initial=len(requests) - len(left),
            unit="answer",
            disable=not progress,
        ) as bar:
            for request in run_requests(model, left, slots, "continuous", 1, Stats()):
                note(request)
                bar.update()
        for name in (TRACES, REJECTED):
            run.keep(name, sorted(run.records(name), key=lambda record: record["number"]))
        if not run.records(TRACES):
            useless = f"none of {len(problems)} answers is of use, see {REJECTED} there"
            raise failure(TraceError(f"{run.path}: {useless}"))
    return load_traces(Path(folder) / TRACES)
