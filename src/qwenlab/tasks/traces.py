"""Traces: what a teacher wrote to problems, thinking and answer apart, and how a student reads them.

A trace is kept as text, not as ids: one file then teaches every student, whatever its tokenizer, and
people can read it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from qwenlab.engine.generation import generate
from qwenlab.errors import QwenlabError, whole
from qwenlab.tasks.evaluation import identity
from qwenlab.tasks.grading import CLOSE, OPEN, extract_answer, grade
from qwenlab.tasks.problems import BOXED, Problem, opens_thinking, problem_prompts, problem_seeds, records
from qwenlab.tasks.run_folder import RunFolder

TRACES, REJECTED = "traces.jsonl", "rejected.jsonl"


class TraceError(QwenlabError):
    """A file of traces can't be read, a record in it is no trace, or none of them is of use."""


@dataclass(frozen=True)
class Trace:
    """A problem with what the teacher thought ("" = it did not) and answered. `finished` is False where the teacher
    was cut off: then no stop id is made up."""

    problem: Problem
    content: str
    thinking: str = ""
    finished: bool = True


class Row(NamedTuple):
    """Ids of prompt and answer; the first `prompt` of them are the prompt's."""

    ids: list[int]
    prompt: int


def load_traces(path) -> list[Trace]:
    r"""The traces of a .json list or a .jsonl file, numbered by their place unless they have a "number".

    A record holds "problem", "message_content" and, where the teacher thought, "message_thinking" (or the content
    begins with its thinking block). "finish_reason": "length" says that it was cut off, "instruction" what was asked
    with the problem (as in `load_problems` it is "put your final answer within \boxed{}" where nothing is said).
    Other fields are not looked at. Raises TraceError or ProblemError naming file and record.
    """
    traces = []
    for place, record in records(Path(path)):
        if not isinstance(record, dict):
            raise TraceError(f"{place}: expected an object, found {type(record).__name__}")
        problem, content = record.get("problem"), record.get("message_content")
        thinking = record.get("message_thinking") or ""
        if not thinking and isinstance(content, str):
            thinking, content = take_apart(content)
        for name, text in ("problem", problem), ("message_content", content), ("message_thinking", thinking or "none"):
            if not isinstance(text, str) or not text.strip():
                raise TraceError(f"{place}: {name} is {text!r}, expected text")
        number = whole(record.get("number", len(traces)), f"{place}: number", 0)
        asked = Problem(number, problem, "", str(number), {}, record.get("instruction", BOXED))
        traces.append(Trace(asked, content, thinking, record.get("finish_reason") != "length"))
    if not traces:
        raise TraceError(f"{path}: no trace in it")
    return traces


def take_apart(text: str) -> tuple[str, str]:
    """(thinking, content) of what a model wrote; a block that never closes is all thinking."""
    before, opened, rest = text.partition(OPEN)
    if not opened or before.strip():
        return "", text
    thinking, _, content = rest.partition(CLOSE)
    return thinking.strip("\n") if thinking.strip() else "", content.strip("\n")


def answer_rows(model, tokenizer, traces: Sequence[Trace], max_length: int, plain: bool = False):
    """The rows that a student reads, and the numbers of the traces that were dropped.

    A row is the problem's prompt, thinking block and content as Qwen's templates write them, and the id that ends an
    answer. A trace without thinking stands behind the prompt that asks for none. Only the first `max_length` tokens
    are kept: an answer cut off there, or by its teacher, has no stop id, and a row without a token of its answer
    is dropped. Raises TraceError if no row is left, or naming a trace that can't be encoded.
    """
    rows, dropped = [], []
    stop = answer_end(model, tokenizer, plain)
    for trace in traces:
        try:
            [prompt] = problem_prompts(tokenizer, [trace.problem], plain=plain, thinking=bool(trace.thinking))
            parts = [OPEN, "\n" + trace.thinking + "\n", CLOSE, "\n\n" + trace.content]
            if not trace.thinking:
                parts = [trace.content]
            elif opens_thinking(tokenizer, prompt):
                parts[:2] = [trace.thinking + "\n"]
            answer = [id for part in parts for id in part_ids(tokenizer, part)]
        except QwenlabError as problem:
            raise TraceError(f"trace {trace.problem.number}: {problem}") from None
        row = Row([*prompt, *answer, *[stop][: trace.finished]][:max_length], len(prompt))
        if len(row.ids) > len(prompt):
            rows.append(row)
        else:
            dropped.append(trace.problem.number)
    if not rows:
        raise TraceError(f"none of {len(traces)} traces has a token of its answer within {max_length} tokens")
    return rows, dropped


def part_ids(tokenizer, part: str) -> list[int]:
    """A thinking mark is the control token where there is one; within a text it stays text."""
    known = part in (OPEN, CLOSE) and part in tokenizer.control
    return [tokenizer.control[part]] if known else tokenizer.encode(part)


def answer_end(model, tokenizer, plain: bool) -> int:
    """The stop id that the chat template puts behind an answer; without a template the first, which ends a text."""
    behind = tokenizer.next_turn("?") if tokenizer.template and not plain else []
    return next((id for id in behind if id in model.stop_ids), min(model.stop_ids))


def make_traces(
    model, tokenizer, problems: Sequence, folder, *, only_right=True, plain=False, seed=0, progress=False, **sampling
) -> list[Trace]:
    """Has a teacher answer `problems` in batches; the folder's traces.jsonl gets each as it ends.

    A run that was killed goes on where it was, and ends with the same file. A problem's sample draws from its own
    number's stream. Answers that never left their thinking or ended with an error go to rejected.jsonl instead, and
    with only_right those that don't grade right. `sampling` goes to `generate`: max_new_tokens, temperature, top_p,
    slots, ... Raises TraceError where no trace is of use, RunFolderError, and ValueError for a wrong option.
    """
    settings = {"task": "traces", "only_right": only_right} | identity(model, problems)
    settings |= {name: value for name, value in sampling.items() if name != "slots"}  # that changes the speed alone
    with RunFolder(folder, settings | {"plain": plain, "seed": seed}) as run:
        there = {name: run.records(name) for name in (TRACES, REJECTED)}
        done = {record["number"] for records in there.values() for record in records}
        left = [problem for problem in problems if problem.number not in done]
        prompts = problem_prompts(tokenizer, left, plain=plain)

        def note(request) -> None:
            problem = left[request.index]
            text = (OPEN if opens_thinking(tokenizer, request.prompt) else "") + tokenizer.decode(request.token_ids)
            thinking, content = take_apart(text)
            record = {"number": problem.number, "problem": problem.problem, "answer": problem.answer}
            record["instruction"] = problem.instruction
            record |= {"message_thinking": thinking, "message_content": content}
            record |= {"finish_reason": request.finish_reason, "tokens": len(request.logprobs)}
            if request.error:
                record["error"] = request.error
            right = not request.error and (not only_right or grade(extract_answer(text), problem.answer))
            run.append(TRACES if right and content.strip() else REJECTED, record)

        generate(model, prompts, seed=problem_seeds(left, seed), on_finish=note, progress=progress, **sampling)
        for name in there:
            run.keep(name, sorted(run.records(name), key=lambda record: record["number"]))
        if not run.records(TRACES):
            raise TraceError(f"{run.path}: none of {len(problems)} answers is of use, see {REJECTED} there")
    return load_traces(Path(folder) / TRACES)
