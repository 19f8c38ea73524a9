"""Traces: a teacher's answers to problems, with the thinking kept separate, and how a student reads
them.

A trace is kept as text, not as ids, so that one file teaches every student, whatever its tokenizer,
and people can read it.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from qwenlab.engine.prompts import make_requests
from qwenlab.engine.request import RequestOutput
from qwenlab.errors import QwenlabError, failure, flags, whole
from qwenlab.evaluation.answering import prepare, run_requests
from qwenlab.evaluation.answers import extract_answer
from qwenlab.evaluation.elsewhere import Elsewhere
from qwenlab.evaluation.evaluation import growing_problems, identity
from qwenlab.evaluation.grading import grade
from qwenlab.evaluation.problems import (
    BOXED,
    Problem,
    opens_thinking,
    problem_prompts,
    problem_seeds,
    records,
)
from qwenlab.model.model import Model
from qwenlab.run_folder import TEXT, WHOLE, RunFolder, RunFolderError
from qwenlab.text.chat_template import CLOSE, OPEN
from qwenlab.text.tokenizer import Tokenizer

TRACES = "traces.jsonl"
REJECTED = "rejected.jsonl"
FIELDS = {"number": WHOLE, "problem": TEXT, "message_thinking": TEXT, "message_content": TEXT}
FIELDS |= {"answer": TEXT, "instruction": TEXT, "finish_reason": TEXT, "tokens": WHOLE}
UNFINISHED = ("length", "error", "cancelled")  # finish reasons of incomplete answers
logger = logging.getLogger(__name__)


class TraceError(QwenlabError):
    """A file of traces can't be read, a record in it is no trace, or no trace is usable."""


@dataclass(frozen=True)
class Trace:
    """A problem with the teacher's answer and thinking ("" = none). `finished` is False where the
    teacher was cut off; no stop id is added then.

    The thinking may be given separately or inside the content; it is kept separately, without the
    line breaks that the template puts around it (see `take_apart`).
    """

    problem: Problem
    content: str
    thinking: str = ""
    finished: bool = True

    def __post_init__(self) -> None:
        within, content = take_apart(self.content)
        given = self.thinking if self.thinking.strip() else ""
        thinking = given.strip("\n")
        if thinking and within not in ("", thinking):  # marks in the answer itself stay text
            content = self.content.lstrip("\n")
        object.__setattr__(self, "thinking", thinking or within)
        object.__setattr__(self, "content", content)


class Row(NamedTuple):
    """Ids of prompt and answer, of which the first `prompt` are the prompt's."""

    ids: list[int]
    prompt: int


def load_traces(path: str | Path) -> list[Trace]:
    r"""The traces of a .json list or a .jsonl file, numbered by their position unless they have a
    "number".

    A record has "problem", "message_content" and, if the teacher thought, "message_thinking" (or
    the servers' names, "content" and "reasoning_content"); or the content has the thinking before
    its </think>, with or without the opening mark. "finish_reason": "length" marks a truncated
    answer, "instruction" is what the prompt said after the problem (default: "put your final answer
    within \boxed{}", as in `load_problems`). Other fields are ignored. Raises TraceError or
    ProblemError naming file and record.
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
        trace = Trace(asked, content, thinking, record.get("finish_reason") not in UNFINISHED)
        if not trace.content.strip():
            raise TraceError(
                f"{place}: message_content is {trace.content!r} after its thinking, expected text"
            )
        traces.append(trace)
    if not traces:
        raise TraceError(f"{path}: no trace in it")
    return traces


def text_field(record: dict, place: str, *names: str, default: str | None = None) -> str:
    """The text of the first of these fields that the record has, else the default. Raises
    TraceError."""
    present = [name for name in names if record.get(name) is not None]
    if not present and default is not None:
        return default
    name = present[0] if present else names[0]
    text = record.get(name)
    if not isinstance(text, str) or (default is None and not text.strip()):
        raise TraceError(f"{place}: {name} is {text!r:.80}, expected text")
    return text


def take_apart(text: str) -> tuple[str, str]:
    """(thinking, content) of a model's text, without the line breaks between them.

    Thinking ends at the first </think>. If the prompt has already opened the block, as for Qwen3.5
    and the thinking models of July 2025, the text has no opening mark, and everything before
    </think> is thinking. Text before an opening mark is dropped, as in the template. A block that
    never closes is all thinking.
    """
    thinking, closed, content = text.partition(CLOSE)
    before, opened, rest = thinking.partition(OPEN)
    if not closed and (not opened or before.strip()):
        return "", text.lstrip("\n")
    thinking = rest if opened else thinking
    return thinking.strip("\n") if thinking.strip() else "", content.lstrip("\n")


def answer_rows(
    model: Model,
    tokenizer: Tokenizer,
    traces: Sequence[Trace],
    max_length: int,
    plain: bool = False,
) -> tuple[list[Row], list[int]]:
    """The rows that a student is trained on, and the numbers of the traces that were dropped.

    A row is the problem's prompt, the thinking block and the content as Qwen's templates write
    them, and the stop id. A trace without thinking follows the prompt that asks for none. Only the
    first `max_length` tokens are kept: an answer truncated there, or by its teacher, has no stop
    id, and a row without any token of its answer is dropped. Raises TraceError if no row is left,
    or naming a trace that can't be encoded.
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
            ids = list(prompt)
            for part in answer_parts(trace, opens_thinking(tokenizer, prompt)):
                ids += part_ids(tokenizer, part)
        except QwenlabError as problem:
            raise TraceError(f"trace {trace.problem.number}: {problem}") from None
        if trace.finished:
            ids.append(stop)
        row = Row(ids[:max_length], len(prompt))
        if len(row.ids) > len(prompt):
            rows.append(row)
        else:
            dropped.append(trace.problem.number)
    if not rows:
        raise TraceError(
            f"none of {len(traces)} traces has a token of its answer within {max_length} tokens"
        )
    return rows, dropped


def answer_parts(trace: Trace, opened: bool) -> list[str]:
    """A trace's answer as Qwen's templates write it, with each thinking mark a part of its own.
    `opened`: the prompt ends with the opening mark."""
    if not trace.thinking:
        return [trace.content]
    thinking = [trace.thinking] if opened else [OPEN, "\n" + trace.thinking]
    if not trace.content and not trace.finished:  # cut off while it was thinking
        return thinking
    thinking[-1] += "\n"
    return [*thinking, CLOSE, "\n\n" + trace.content]


def part_ids(tokenizer: Tokenizer, part: str) -> list[int]:
    """A part that is a thinking mark becomes its control token; marks inside a text stay text."""
    known = part in (OPEN, CLOSE) and part in tokenizer.control
    return [tokenizer.control[part]] if known else tokenizer.encode(part)


def answer_end(model: Model, tokenizer: Tokenizer, plain: bool) -> int:
    """The stop id that the chat template puts after an answer; without a template the smallest,
    which ends a text."""
    if tokenizer.template and not plain:
        for id in tokenizer.next_turn("?"):
            if id in model.stop_ids:
                return id
    return min(model.stop_ids)


def make_traces(
    model: Model | Elsewhere,
    tokenizer: Tokenizer,
    problems: Sequence[Problem],
    folder: str | Path,
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
    """Has a teacher answer `problems` in batches, and appends each answer to the folder's
    traces.jsonl as it finishes.

    A run that was killed resumes and ends with the same file, because each sample's randomness
    depends only on `seed` and its problem's number; with more problems after the same first ones it
    is extended. Answers that never left their thinking or ended
    with an error go to rejected.jsonl instead and, with only_right, so do wrong ones. The sampling
    options are those of `generate`; fewer `slots` need less memory. With `Endpoints` in the
    model's place, servers answer, and `slots` requests are in flight; with `RayActors`, processes
    answer, each `slots` requests at once. Raises TraceError if no trace
    is usable, ProblemError, RunFolderError, and ValueError for a wrong option or two problems with
    the same number: all but the first before anything is written.
    """
    keys = [(problem.number,) for problem in problems]
    if len(set(keys)) < len(keys):
        raise ValueError(
            f"{len(keys)} problems with {len(set(keys))} numbers, expected one for each"
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
    stats = prepare(model, requests, "continuous")
    settings = {
        "task": "traces",
        "only_right": only_right,
        **identity(model, problems),
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "plain": plain,
        "seed": seed,
    }

    def write(request: RequestOutput) -> None:
        problem = problems[request.index]
        text = tokenizer.decode(request.token_ids)
        if opens_thinking(tokenizer, request.prompt):
            text = OPEN + text
        thinking, content = take_apart(text)
        record = {
            "number": problem.number,
            "problem": problem.problem,
            "answer": problem.answer,
            "instruction": problem.instruction,
            "message_thinking": thinking,
            "message_content": content,
            "finish_reason": request.finish_reason,
            "tokens": len(request.logprobs),
        }
        if request.error:
            record["error"] = request.error
        usable = bool(content.strip()) and not request.error
        if usable and only_right:
            usable = grade(extract_answer(text), problem.answer)
        run.append(TRACES if usable else REJECTED, record)

    with RunFolder(folder, settings, growing_problems(problems)) as run:
        kept = run.done(TRACES, FIELDS, ("number",), keys)
        rejected = run.done(REJECTED, FIELDS, ("number",), keys)
        if twice := kept.keys() & rejected.keys():
            raise RunFolderError(
                f"{run.path}: number {min(twice)[0]} is in both {TRACES} and {REJECTED}"
            )
        done = kept | rejected
        left = [request for request in requests if keys[request.index] not in done]
        if done:
            logger.info(f"{run.path}: {len(done)} answers are there, {len(left)} are left")
        bar = tqdm(total=len(requests), initial=len(done), unit="answer", disable=not progress)
        with bar:
            for request in run_requests(model, left, slots, "continuous", 1, stats):
                write(request)
                bar.update()
        for name in (TRACES, REJECTED):
            run.keep(name, sorted(run.records(name), key=lambda record: record["number"]))
        if not run.records(TRACES):
            reason = f"none of {len(problems)} answers is usable, see {REJECTED} there"
            raise failure(TraceError(f"{run.path}: {reason}"))
    return load_traces(Path(folder) / TRACES)
