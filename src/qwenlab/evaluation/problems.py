"""Problems with their answers, from the shipped sets, MATH-500 or a file of your own, and their
prompts."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path

from qwenlab.errors import QwenlabError, json_value, text_of, whole
from qwenlab.evaluation.arithmetic import ArithmeticProblem, arithmetic_problems
from qwenlab.text.chat_template import CLOSE, OPEN
from qwenlab.text.tokenizer import Tokenizer

# Split and size of each set; the products of the training split run out after some 7,800 problems.
TINY = {"tiny-test": ("held-out", 1000), "tiny-train": ("train", 5000)}
# 500 problems of MATH's test set (Hendrycks et al., arXiv:2103.03874), chosen by Lightman et al.
# (arXiv:2305.20050).
MATH500 = {"repo_id": "HuggingFaceH4/MATH-500", "filename": "test.jsonl", "repo_type": "dataset"}
# The wording that Qwen3's model card recommends for mathematics.
BOXED = "Please reason step by step, and put your final answer within \\boxed{}."
SUFFIXES = (".json", ".jsonl")
PLAIN = "Problem: {question}\n\nSolution:"


class ProblemError(QwenlabError):
    """Problems can't be loaded, or one of them can't be turned into a prompt."""


@dataclass(frozen=True)
class Problem:
    """A problem and its answer. `number` counts from 0 in its set and seeds the samples; `id` is
    the record's `unique_id`, else the number.

    `fields`: the record's other fields (MATH-500: subject, level, solution). `instruction`: what
    the prompt says after the problem.
    """

    number: int
    problem: str
    answer: str
    id: str
    fields: dict = field(default_factory=dict)
    instruction: str = ""

    @property
    def question(self) -> str:
        return f"{self.problem}\n\n{self.instruction}" if self.instruction else self.problem


def load_problems(
    source: str | Path, limit: int | None = None, *, instruction: str | None = None
) -> list[Problem]:
    r"""The problems of `source`, or the first `limit` of them.

    - ``"tiny-test"``: the 1,000 held-out arithmetic problems; ``"tiny-train"``: 5,000 others. Their
      subject is the kind.
    - ``"math500"``: downloaded once from the Hugging Face hub, then read from its cache.
    - A file, ``.json`` (a list of objects) or ``.jsonl`` (an object per line; blank lines are
      skipped), in UTF-8. `problem` is a string, `answer` a string or a number, which is kept as
      Python writes it; `unique_id`, a string or whole number, is optional.

    instruction: what each prompt says after the problem. None takes the set's own: nothing for the
    two tiny sets, because the shipped models box their answers unasked, and "put your final answer
    within \boxed{}" for everything else. Raises ProblemError in one line that names the file and
    the line or entry, ValueError for a limit under 1.
    """
    if limit is not None:
        whole(limit, "limit", 1)
    if source in TINY:
        split, size = TINY[source]
        drawn = arithmetic_problems(size if limit is None else min(limit, size), split=split)
        return [from_arithmetic(problem, instruction or "") for problem in drawn]
    if source != "math500" and Path(source).suffix.lower() not in SUFFIXES:
        raise ProblemError(
            f"no problems {str(source)!r}: expected {', '.join(TINY)}, math500, "
            "or a .json or .jsonl file"
        )
    instruction = BOXED if instruction is None else instruction
    problems = []
    places = {}
    for place, record in records(fetch() if source == "math500" else Path(source)):
        problem = from_record(len(problems), record, place, instruction)
        if problem.id in places:
            first = places[problem.id]
            raise ProblemError(f"{place}: duplicate id {problem.id!r}, first used at {first}")
        places[problem.id] = place
        problems.append(problem)
    if not problems:
        raise ProblemError(f"{source}: no problem in it")
    return problems[:limit]


def records(path: Path) -> list[tuple[str, object]]:
    """(place, value) of each entry of a .json list, or of each line of a .jsonl file that is not
    blank."""
    if path.suffix.lower() not in SUFFIXES:
        raise ProblemError(f"{path}: expected a .json or .jsonl file")
    text = text_of(path, ProblemError)
    if path.suffix.lower() == ".jsonl":
        entries = []
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                place = f"{path} line {number}"
                entries.append((place, json_value(line, place, ProblemError)))
        return entries
    values = json_value(text, str(path), ProblemError) if text.strip() else []
    if not isinstance(values, list):
        raise ProblemError(f"{path}: expected a list of objects, found {type(values).__name__}")
    return [(f"{path} entry {number}", value) for number, value in enumerate(values, 1)]


def from_arithmetic(problem: ArithmeticProblem, instruction: str) -> Problem:
    name = str(problem.number)
    fields = {"subject": problem.kind}
    return Problem(problem.number, problem.question, problem.answer, name, fields, instruction)


def from_record(number: int, record: object, place: str, instruction: str) -> Problem:
    """The problem in one entry of a file. Raises ProblemError, naming the place and the field."""
    if not isinstance(record, dict):
        raise ProblemError(
            f'{place}: expected an object with "problem" and "answer", '
            f"found {type(record).__name__}"
        )
    fields = dict(record)
    problem = fields.pop("problem", None)
    answer = fields.pop("answer", None)
    name = fields.pop("unique_id", number)
    if isinstance(answer, int | float) and not isinstance(answer, bool) and isfinite(answer):
        answer = json.dumps(answer)
    for key, value in (("problem", problem), ("answer", answer)):
        if not isinstance(value, str) or not value.strip():
            found = f"is {record[key]!r:.80}" if key in record else "is missing"
            raise ProblemError(f"{place}: {key} {found}, expected a text that is not empty")
    for key, text in (("answer", answer), ("unique_id", str(name))):
        if text != text.encode("utf-8", "ignore").decode():
            raise ProblemError(f"{place}: {key} holds half a surrogate pair")
    if isinstance(name, bool) or not isinstance(name, str | int) or name == "":
        raise ProblemError(f"{place}: unique_id is {name!r:.80}, expected a text or a whole number")
    return Problem(number, problem, answer, str(name), fields, instruction)


def fetch() -> Path:
    """MATH-500's file in the hub's cache. Raises ProblemError, with advice for working offline."""
    from huggingface_hub import constants, hf_hub_download

    try:
        return Path(hf_hub_download(**MATH500))
    except Exception as problem:  # sockets, disks, the hub's own errors
        reason = f"{constants.ENDPOINT} doesn't provide it"
        if constants.HF_HUB_OFFLINE:
            reason = "HF_HUB_OFFLINE is set"
        raise ProblemError(
            f"math500: {MATH500['repo_id']} is not in the cache {constants.HF_HUB_CACHE}, and "
            f"{reason} ({type(problem).__name__}); name a .json or .jsonl file that you have, "
            "or set HF_HOME to a folder that has it"
        ) from None


def problem_prompts(
    tokenizer: Tokenizer | None,
    problems: Sequence[Problem],
    *,
    plain: bool = False,
    thinking: bool = True,
    limit: int | None = None,
) -> list[list[int]]:
    """Token ids of each problem's question: its text and, after an empty line, its instruction.

    The question goes through the checkpoint's chat template as one user message, with `thinking` on
    or off. Without a template, or with `plain` (for base models, which never saw a chat), the
    prompt is "Problem: ... Solution:" whatever `thinking` is. limit: the model's context in tokens.
    Raises ProblemError without a tokenizer and, naming the problem by its id, for a prompt that
    leaves no room for an answer or that the tokenizer or its template refuses.
    """
    if tokenizer is None:
        raise ProblemError("there is no tokenizer, which is needed to turn problems into tokens")
    prompts = []
    for problem in problems:
        try:
            if plain or tokenizer.template is None:
                ids = tokenizer.encode(PLAIN.format(question=problem.question))
            else:
                messages = [{"role": "user", "content": problem.question}]
                ids = tokenizer.chat(messages, thinking=thinking)
        except QwenlabError as reason:
            raise ProblemError(f"problem {problem.id}: {reason}") from None
        if limit is not None and len(ids) >= limit:
            raise ProblemError(
                f"problem {problem.id}: {len(ids)} tokens leave no room in a context of {limit}"
            )
        prompts.append(ids)
    return prompts


def problem_seeds(problems: Sequence[Problem], seed: int) -> list[int]:
    """One seed per problem, from its own number, so that its samples are the same in every subset,
    order and batch."""
    return [whole(seed, "seed", 0) * 2**32 + problem.number for problem in problems]


def opens_thinking(tokenizer: Tokenizer, prompt: Sequence[int]) -> bool:
    """Whether a prompt ends inside a thinking block, as with Qwen3.5's template; the answer then
    doesn't open one. Only control tokens count, because a question may spell the marks out."""
    opening = tokenizer.control.get(OPEN)
    closing = tokenizer.control.get(CLOSE)
    for id in reversed(prompt):
        if id in (opening, closing):
            return id == opening
    return False
