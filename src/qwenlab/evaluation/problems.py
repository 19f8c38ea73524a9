"""Problems with their answers: the shipped models' own, MATH-500, or a file of yours; and the
prompts that ask them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path

from qwenlab.errors import QwenlabError, json_value, text_of, whole
from qwenlab.evaluation.arithmetic import arithmetic_problems
from qwenlab.text.chat_template import CLOSE, OPEN

# Which of the arithmetic problems, and how many: of those to train on, products run out after some
# 7,800.
TINY = {"tiny-test": ("held-out", 1000), "tiny-train": ("train", 5000)}
# Lightman et al. (2023) took these 500 from MATH's test set (Hendrycks et al., 2021).
MATH500 = {"repo_id": "HuggingFaceH4/MATH-500", "filename": "test.jsonl", "repo_type": "dataset"}
# The wording that Qwen3's model card recommends for mathematics.
BOXED = "Please reason step by step, and put your final answer within \\boxed{}."
SUFFIXES = (".json", ".jsonl")
PLAIN = "Problem: {question}\n\nSolution:"


class ProblemError(QwenlabError):
    """Problems can't be loaded, or one of them can't be asked."""


@dataclass(frozen=True)
class Problem:
    """`number` counts from 0 in its set and seeds the samples; `id` is its `unique_id`, or else the
    number.

    `fields` is what else the record holds (MATH-500: subject, level, solution). `instruction` is
    asked with it.
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
    source, limit: int | None = None, *, instruction: str | None = None
) -> list[Problem]:
    r"""Problems of `source`, the first `limit` of them if that is given.

    - ``"tiny-test"``: the 1,000 held-out arithmetic problems; ``"tiny-train"``: 5,000 others.
    subject is the kind.
    - ``"math500"``: from the Hugging Face hub, once, and then from its cache.
    - A file, ``.json`` (a list of objects) or ``.jsonl`` (an object a line; blank lines are
      skipped), in UTF-8. `problem` is a string, `answer` a string or a number, which is kept as
      Python writes it; `unique_id`, a string or whole number, may be left out.

    instruction: what is asked with each problem. None takes the set's own: nothing for the two tiny
    sets, on which the shipped models were trained bare, and "put your final answer within \boxed{}"
    for everything else. Raises ProblemError in one line that names the file and the line or entry,
    ValueError for a limit under 1.
    """
    if limit is not None:
        whole(limit, "limit", 1)
    if source in TINY:
        split, size = TINY[source]
        made = arithmetic_problems(size if limit is None else min(limit, size), split=split)
        asked = instruction or ""
        return [
            Problem(p.number, p.question, p.answer, str(p.number), {"subject": p.kind}, asked)
            for p in made
        ]
    if source != "math500" and Path(source).suffix.lower() not in SUFFIXES:
        raise ProblemError(
            f"no problems {str(source)!r}: expected {', '.join(TINY)}, math500, "
            "or a .json or .jsonl file"
        )
    problems = []
    places = {}
    for place, record in records(fetch() if source == "math500" else Path(source)):
        problem = from_record(
            len(problems), record, place, BOXED if instruction is None else instruction
        )
        if problem.id in places:
            raise ProblemError(f"{place}: id {problem.id!r} once more, as in {places[problem.id]}")
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
        lines = [
            (f"{path} line {number}", line)
            for number, line in enumerate(text.split("\n"), 1)
            if line.strip()
        ]
        return [(place, json_value(line, place, ProblemError)) for place, line in lines]
    values = json_value(text, str(path), ProblemError) if text.strip() else []
    if not isinstance(values, list):
        raise ProblemError(f"{path}: expected a list of objects, found {type(values).__name__}")
    return [(f"{path} entry {number}", value) for number, value in enumerate(values, 1)]


def from_record(number: int, record, place: str, instruction: str) -> Problem:
    if not isinstance(record, dict):
        raise ProblemError(
            f'{place}: expected an object with "problem" and "answer", '
            f"found {type(record).__name__}"
        )
    held = dict(record)
    problem = held.pop("problem", None)
    answer = held.pop("answer", None)
    name = held.pop("unique_id", number)
    if isinstance(answer, int | float) and not isinstance(answer, bool) and isfinite(answer):
        answer = json.dumps(answer)
    for key, value in (("problem", problem), ("answer", answer)):
        if not isinstance(value, str) or not value.strip():
            said = f"is {record[key]!r:.80}" if key in record else "is missing"
            raise ProblemError(f"{place}: {key} {said}, expected a text that is not empty")
    for key, text in (("answer", answer), ("unique_id", str(name))):
        if text != text.encode("utf-8", "ignore").decode():
            raise ProblemError(f"{place}: {key} holds half a surrogate pair")
    if isinstance(name, bool) or not isinstance(name, str | int) or name == "":
        raise ProblemError(f"{place}: unique_id is {name!r:.80}, expected a text or a whole number")
    return Problem(number, problem, answer, str(name), held, instruction)


def fetch() -> Path:
    """MATH-500's file in the hub's cache. Raises ProblemError, saying what to do
    without a network."""
    from huggingface_hub import constants, hf_hub_download

    try:
        return Path(hf_hub_download(**MATH500))
    except Exception as problem:  # sockets, disks, the hub's own
        offline = (
            "HF_HUB_OFFLINE is set"
            if constants.HF_HUB_OFFLINE
            else f"{constants.ENDPOINT} doesn't give it"
        )
        raise ProblemError(
            f"math500: {MATH500['repo_id']} is not in the cache {constants.HF_HUB_CACHE}, and "
            f"{offline} ({type(problem).__name__}); name a .json or .jsonl file that you have, "
            "or set HF_HOME to a folder that has it"
        ) from None


def problem_prompts(
    tokenizer,
    problems: Sequence[Problem],
    *,
    plain: bool = False,
    thinking: bool = True,
    limit: int | None = None,
) -> list[list[int]]:
    """Token ids of each problem's question: its text and, after an empty line, its instruction.

    By the checkpoint's chat template, as one message of the user, with `thinking` on or off. Where
    it has none, or with `plain` (base models, which never saw a chat), as "Problem: ... Solution:",
    which `thinking` doesn't change. limit: the model's context in tokens. Raises ProblemError,
    naming the problem by its id, for a prompt which leaves no room in it for an answer, or which
    the tokenizer or its template refuses; and without a tokenizer.
    """
    if tokenizer is None:
        raise ProblemError("there is no tokenizer, which is needed to turn problems into tokens")
    prompts = []
    for problem in problems:
        try:
            if plain or tokenizer.template is None:
                ids = tokenizer.encode(PLAIN.format(question=problem.question))
            else:
                ids = tokenizer.chat(
                    [{"role": "user", "content": problem.question}], thinking=thinking
                )
        except QwenlabError as reason:
            raise ProblemError(f"problem {problem.id}: {reason}") from None
        if limit is not None and len(ids) >= limit:
            raise ProblemError(
                f"problem {problem.id}: {len(ids)} tokens leave no room in a context of {limit}"
            )
        prompts.append(ids)
    return prompts


def problem_seeds(problems: Sequence[Problem], seed: int) -> list[int]:
    """One seed a problem, by its own number: its samples are the same in every set, order and
    batch."""
    return [whole(seed, "seed", 0) * 2**32 + problem.number for problem in problems]


def opens_thinking(tokenizer, prompt: Sequence[int]) -> bool:
    """Whether a prompt ends inside a thinking block, as Qwen3.5's template has it: the answer then
    doesn't open one. The control tokens tell, never the text: a question may write them out."""
    marks = [
        id for id in prompt if id in (tokenizer.control.get(OPEN), tokenizer.control.get(CLOSE))
    ]
    return marks[-1:] == [tokenizer.control.get(OPEN)]
