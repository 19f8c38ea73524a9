"""`evaluate`: problems in, graded answers out, with a summary. A run in a folder resumes after a
kill."""

import json
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from math import sqrt
from pathlib import Path
from statistics import NormalDist, fmean
from time import perf_counter

from tqdm import tqdm

from qwenlab.engine.prompts import make_requests
from qwenlab.engine.request import RequestOutput
from qwenlab.engine.results import Stats
from qwenlab.errors import whole
from qwenlab.evaluation.answering import prepare, rows_that_fit, run_requests
from qwenlab.evaluation.elsewhere import Elsewhere
from qwenlab.evaluation.grading import extract_answer, grade
from qwenlab.evaluation.problems import Problem, opens_thinking, problem_prompts, problem_seeds
from qwenlab.files import write_whole
from qwenlab.fingerprints import counted, list_fingerprints, some_weights, taken_apart
from qwenlab.model.model import Model
from qwenlab.run_folder import (
    FLAG,
    NUMBER,
    OPTIONAL_TEXT,
    TEXT,
    WHOLE,
    RunFolder,
    RunFolderError,
)
from qwenlab.text.tokenizer import Tokenizer

RECORDS = "records.jsonl"
SUMMARY = "summary.json"
FIELDS = {"id": TEXT, "number": WHOLE, "sample": WHOLE, "prompt": TEXT, "text": TEXT}
FIELDS |= {"answer": OPTIONAL_TEXT, "gold": TEXT, "verdict": FLAG, "tokens": WHOLE}
FIELDS |= {"finish_reason": TEXT, "seconds": NUMBER}
MOST_ANSWERS = 10**7  # in a run, because all requests exist from the start
logger = logging.getLogger(__name__)


def evaluate(
    model: Model | Elsewhere,
    tokenizer: Tokenizer,
    problems: Sequence[Problem],
    *,
    batch_size: int | str = 64,
    strategy: str = "continuous",
    samples: int = 1,
    max_new_tokens: int = 1024,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    thinking: bool = True,
    plain: bool = False,
    folder: str | Path | RunFolder | None = None,
    progress: bool = False,
) -> "Evaluation":
    """Answers the problems in batches, grades each answer as it finishes, and sums up.

    `batch_size` answers are in progress at once; "auto" takes as many as memory allows and logs the
    number. If a GPU runs out of memory, half as many continue. The `samples` answers to a problem
    share one prefill of its prompt. Sample k of a problem depends on `seed`, the problem's own
    number and k, never on its neighbours in the batch. strategy and the sampling options are those
    of `generate`; thinking and plain are those of `problem_prompts`. With `Endpoints` in the
    model's place, servers answer: batch_size requests are in flight, and the rest stays as it is.
    With `RayActors`, processes answer, each batch_size requests at once, and records come as
    shares of the problems are finished.

    folder: where each record is appended to records.jsonl as its answer finishes (a path, or an
    open RunFolder), and summary.json is written at the end. Called again with the same settings,
    `evaluate` resumes: no answer is lost or repeated. Batch size and strategy may change, and with
    more problems after the same first ones, or more samples, the run is extended. In float32 the
    records equal those of an uninterrupted run; in bfloat16 other neighbours may change the last
    bits of the logits, and so a token.

    Raises ValueError for a wrong option, for no problems, or for two with the same number;
    ProblemError for a prompt that leaves no room for an answer; RunFolderError if the folder holds
    another run or can't be written; torch.OutOfMemoryError if not even one row fits;
    EndpointError for a server that can't be used; RayError if Ray gives up.
    """
    numbers = [problem.number for problem in problems]
    if not numbers or len(set(numbers)) < len(numbers):
        many = f"{len(numbers)} problems with {len(set(numbers))} numbers"
        raise ValueError(f"{many}, expected at least 1 problem, each with its own number")
    limit = model.config.max_position_embeddings
    prompts = problem_prompts(tokenizer, problems, plain=plain, thinking=thinking, limit=limit)
    samples = whole(samples, "samples", 1, MOST_ANSWERS // len(problems))
    requests = make_requests(
        model,
        prompts,
        samples,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=problem_seeds(problems, seed),
    )
    stats = prepare(model, requests, strategy)  # before any folder
    if batch_size == "auto":
        rows = rows_that_fit(model, requests)
    else:
        rows = whole(batch_size, "batch_size", 1)
    settings = {
        **identity(model, problems),
        "samples": samples,
        "max_new_tokens": max_new_tokens,
        "seed": seed,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "thinking": thinking,
        "plain": plain,
    }
    growing = growing_problems(problems)
    growing["samples"] = lambda there: isinstance(there, int) and there < samples
    ready = folder is None or isinstance(folder, RunFolder)
    with nullcontext(folder) if ready else RunFolder(folder, settings, growing) as run:
        missing = {}
        for request in requests:
            place, sample = divmod(request.index, samples)
            missing[numbers[place], sample] = request
        done = run.done(RECORDS, FIELDS, ("number", "sample"), missing) if run else {}
        for key in done:
            del missing[key]
        waiting = list(missing.values())
        if done:
            logger.info(f"{run.path}: {len(done)} answers are there, {len(waiting)} are left")
        bar = tqdm(total=len(requests), initial=len(done), unit="answer", disable=not progress)
        right = sum(record["verdict"] for record in done.values())
        grading = 0.0
        began = perf_counter()
        with bar:
            for request in run_requests(model, waiting, rows, strategy, samples, stats):
                ended = perf_counter()
                place, sample = divmod(request.index, samples)
                record = graded_record(tokenizer, problems[place], sample, request)
                record["seconds"] = round(ended - began, 3)
                if run:
                    run.append(RECORDS, record)
                done[record["number"], sample] = record
                right += record["verdict"]
                rate = f"{stats.tokens_per_second:.0f} tokens/s"
                bar.set_postfix_str(f"accuracy {right / len(done):.3f}, {rate}", refresh=False)
                bar.update()
                grading += perf_counter() - ended
        records = [done[key] for key in sorted(done)]
        result = Evaluation(problems, records, len(waiting), rows, stats, grading)
        if run and (waiting or not (run.path / SUMMARY).exists()):
            checkpoint = str(getattr(model, "folder", None))
            summary = {"model": checkpoint} | vars(result) | {"records": RECORDS}
            write_whole(run.path / SUMMARY, json.dumps(summary, indent=2) + "\n", RunFolderError)
    return result


def graded_record(
    tokenizer: Tokenizer, problem: Problem, sample: int, request: RequestOutput
) -> dict:
    """The record of one answer, as JSON values; `tokens` counts the sampled ones, the stop id
    included."""
    text = tokenizer.decode(request.token_ids)
    answer = extract_answer(text, thinking_open=opens_thinking(tokenizer, request.prompt))
    record = {
        "id": problem.id,
        "number": problem.number,
        "sample": sample,
        "prompt": tokenizer.decode(request.prompt),
        "text": text,
        "answer": answer,
        "gold": problem.answer,
        "verdict": grade(answer, problem.answer),
        "tokens": len(request.logprobs),
        "finish_reason": request.finish_reason,
    }
    if request.error:
        record["error"] = request.error
    return record


def identity(model: Model | Elsewhere, problems: Sequence[Problem]) -> dict[str, str]:
    """Fingerprints of the weights and of the problems; of servers, what they are."""
    data = counted(len(problems), "problem", problem_fingerprints(problems)[-1])
    if isinstance(model, Elsewhere):
        return {**model.identity(), "problems": data}
    return {"dtype": str(model.dtype), "weights": some_weights(model), "problems": data}


def growing_problems(problems: Sequence[Problem]) -> dict[str, Callable[[object], bool]]:
    """For RunFolder: a run over some of the first of these problems can go on over all of them."""
    known = set(problem_fingerprints(problems))
    return {"problems": lambda there: taken_apart(there)[1] in known}


def problem_fingerprints(problems: Sequence[Problem]) -> list[str]:
    """Fingerprints of the first problem, of the first two, and so on."""
    return list_fingerprints((p.number, p.id, p.question, p.answer) for p in problems)


class Evaluation:
    """The graded answers, by problem number and sample, with their summary. As text it is a table.

    records: id, number, sample, prompt, text, answer (None: none found), gold, verdict (True:
    right), tokens (sampled ones, the stop id included), finish_reason, error (what went wrong, if
    finish_reason is "error"), and seconds from the start of the run, or from its resumption, to the
    end of the answer.

    accuracy, cut_off and no_answer are fractions of all answers: the right ones, those that reached
    the limit of new tokens or of the context, and those in which no answer was found. errors counts
    those that ended with an error, such as NaN logits; they are graded as far as they got. interval
    is the accuracy's 95 % interval (Wilson) for the number of problems: answers to the same problem
    are correlated, so with several samples it is conservative. groups is {value: (answers,
    accuracy)} for each of "subject" and "level", empty where the problems have none.

    new_answers, sampled_tokens, generation_seconds, their ratio tokens_per_second, and
    grading_seconds (writing included) are those of this call, without the answers of an earlier
    one.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        records: list[dict],
        new: int,
        batch_size: int,
        stats: Stats,
        grading: float,
    ) -> None:
        self.problems = len(problems)
        self.records = records
        self.new_answers = new
        self.batch_size = batch_size
        self.accuracy = fmean(record["verdict"] for record in records)
        self.interval = wilson(self.accuracy, self.problems)
        reasons = Counter(record["finish_reason"] for record in records)
        self.cut_off = reasons["length"] / len(records)
        self.no_answer = fmean(record["answer"] is None for record in records)
        self.errors = reasons["error"]
        self.sampled_tokens = stats.sampled_tokens
        self.generation_seconds = stats.seconds
        self.tokens_per_second = stats.tokens_per_second
        self.grading_seconds = grading
        fields = {problem.number: problem.fields for problem in problems}
        self.groups = {name: grouped(records, fields, name) for name in ("subject", "level")}

    def __repr__(self) -> str:
        low, high = self.interval
        errors = f"; {self.errors} ended with an error" if self.errors else ""
        generated = (
            f"{self.sampled_tokens} tokens in {self.generation_seconds:.2f} s, "
            f"{self.tokens_per_second:.0f} tokens/s, batch size {self.batch_size}"
        )
        if self.new_answers < len(self.records):
            generated = f"of {self.new_answers} new answers: {generated}"
        if not self.new_answers:
            generated = "none was needed: all answers were there"
        lines = [
            f"accuracy    {self.accuracy:.3f}, 95 % interval {low:.3f} to {high:.3f}",
            f"answers     {len(self.records)} to {self.problems} problems; cut off "
            f"{self.cut_off:.3f} of them, no answer in {self.no_answer:.3f}{errors}",
            f"generation  {generated}",
            f"grading     {self.grading_seconds:.2f} s",
        ]
        for name, group in self.groups.items():
            if group:
                lines += ["", f"{name:24} answers  accuracy"]
            for value, (answers, accuracy) in group.items():
                lines.append(f"{value:24} {answers:7}  {accuracy:8.3f}")
        return "\n".join(lines)


def grouped(
    records: list[dict], fields: dict[int, dict], name: str
) -> dict[str, tuple[int, float]]:
    """For each value of the problems' field `name`, the number of answers and their accuracy."""
    verdicts: dict[str, list[bool]] = {}
    for record in records:
        known = fields[record["number"]]
        if name in known:
            verdicts.setdefault(str(known[name]), []).append(record["verdict"])
    group = {}
    for value in sorted(verdicts):
        group[value] = (len(verdicts[value]), fmean(verdicts[value]))
    return group


def wilson(share: float, n: int) -> tuple[float, float]:
    """95 % confidence interval of a proportion among n (Wilson, 1927): within [0, 1], and sensible
    for small n and for proportions near 0 or 1."""
    z = NormalDist().inv_cdf(0.975)
    centre = share + z * z / (2 * n)
    half = z * sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, (centre - half) / (1 + z * z / n)), min(1.0, (centre + half) / (1 + z * z / n))
