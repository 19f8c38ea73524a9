"""`evaluate`: problems in, graded answers out, with a summary. A run in a folder goes on after a
kill."""

import json
from collections.abc import Sequence
from contextlib import nullcontext
from math import sqrt
from statistics import NormalDist, fmean
from time import perf_counter

from tqdm import tqdm

from qwenlab.engine.engine import Engine
from qwenlab.engine.prompts import make_requests
from qwenlab.engine.request import RequestOutput
from qwenlab.engine.results import Stats
from qwenlab.errors import whole
from qwenlab.evaluation.answering import rows_that_fit, run_requests
from qwenlab.evaluation.grading import extract_answer, grade
from qwenlab.evaluation.problems import Problem, opens_thinking, problem_prompts, problem_seeds
from qwenlab.files import write_whole
from qwenlab.fingerprints import fingerprint, some_weights
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

RECORDS = "records.jsonl"
SUMMARY = "summary.json"
FIELDS = {"id": TEXT, "number": WHOLE, "sample": WHOLE, "prompt": TEXT, "text": TEXT}
FIELDS |= {"answer": OPTIONAL_TEXT, "gold": TEXT, "verdict": FLAG, "tokens": WHOLE}
FIELDS |= {"finish_reason": TEXT, "seconds": NUMBER}
MOST_ANSWERS = 10**7  # in a run: each has its place in memory from the start


def evaluate(
    model,
    tokenizer,
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
    folder=None,
    progress: bool = False,
) -> "Evaluation":
    """Answers the problems in batches, grades each answer as it ends, and sums up.

    `batch_size` answers are at work at once; "auto" takes what memory allows and logs it. If a
    GPU's memory runs out, half as many go on from there. `samples` answers a problem read its
    prompt once. What sample k of a problem says depends on `seed`, the problem's own number and k,
    never on its neighbours. strategy and the sampling options are those of `generate`, thinking and
    plain those of `problem_prompts`.

    folder: where records.jsonl gets each record as its answer ends (a path, or a RunFolder of the
    caller's). Called again with the same settings it goes on: no answer is lost, none is there
    twice. Batch size and strategy may change. At the end summary.json is written. In float32 the
    records are those of a run in one go; in bfloat16 other neighbours may change last bits, and so
    a word.

    Raises ValueError for a wrong option, for no problems, or for two with one number; ProblemError
    for a prompt that leaves no room; RunFolderError if the folder holds another run or can't be
    written; torch.OutOfMemoryError if a single row is too many.
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
    stats = Engine(
        model, 1, strategy=strategy
    ).stats  # a wrong strategy is named before there is a folder
    rows = (
        rows_that_fit(model, requests)
        if batch_size == "auto"
        else whole(batch_size, "batch_size", 1)
    )
    settings = identity(model, problems) | {
        "samples": samples,
        "max_new_tokens": max_new_tokens,
        "seed": seed,
    }
    settings |= {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "thinking": thinking,
        "plain": plain,
    }
    ready = folder is None or isinstance(folder, RunFolder)
    with nullcontext(folder) if ready else RunFolder(folder, settings) as run:
        keys = [(numbers[r.index // samples], r.index % samples) for r in requests]
        done = run.done(RECORDS, FIELDS, ("number", "sample"), keys) if run else {}
        missing = [r for r, key in zip(requests, keys, strict=True) if key not in done]
        began = perf_counter()
        grading = 0.0
        right = sum(record["verdict"] for record in done.values())
        with tqdm(
            total=len(requests), initial=len(done), unit="answer", disable=not progress
        ) as bar:
            for request in run_requests(model, missing, rows, strategy, samples, stats):
                ended = perf_counter()
                place, sample = divmod(request.index, samples)
                record = judged(tokenizer, problems[place], sample, request) | {
                    "seconds": round(ended - began, 3)
                }
                if run:
                    run.append(RECORDS, record)
                done[record["number"], sample] = record
                right += record["verdict"]
                bar.set_postfix_str(
                    f"accuracy {right / len(done):.3f}, {stats.tokens_per_second:.0f} tokens/s",
                    False,
                )
                bar.update()
                grading += perf_counter() - ended
        result = Evaluation(problems, [done[key] for key in sorted(done)], rows, stats, grading)
        if run and (missing or not (run.path / SUMMARY).exists()):
            held = (
                {"model": str(getattr(model, "folder", None))} | vars(result) | {"records": RECORDS}
            )
            write_whole(run.path / SUMMARY, json.dumps(held, indent=2) + "\n", RunFolderError)
    return result


def judged(tokenizer, problem: Problem, sample: int, request: RequestOutput) -> dict:
    """What is kept of one answer, as JSON values; `tokens` counts what was sampled, the stop id
    included."""
    prompt = tokenizer.decode(request.prompt)
    text = tokenizer.decode(request.token_ids)
    answer = extract_answer(text, thinking_open=opens_thinking(tokenizer, request.prompt))
    said = {
        "id": problem.id,
        "number": problem.number,
        "sample": sample,
        "prompt": prompt,
        "text": text,
    }
    verdict = {"answer": answer, "gold": problem.answer, "verdict": grade(answer, problem.answer)}
    ended = {"tokens": len(request.logprobs), "finish_reason": request.finish_reason}
    return said | verdict | ended | ({"error": request.error} if request.error else {})


def identity(model: Model, problems: Sequence[Problem]) -> dict[str, str]:
    """Which weights and which problems, as fingerprints."""
    asked = repr([(p.number, p.id, p.question, p.answer) for p in problems])
    data = fingerprint([asked.encode("utf-8", "replace")])
    return {"dtype": str(model.dtype), "weights": some_weights(model), "problems": data}


class Evaluation:
    """The graded answers, by problem number and sample, and what follows from them. As text it is a
    table.

    records: id, number, sample, prompt, text, answer (None: none was given), gold, verdict (True:
    right), tokens (sampled ones, the stop id too), finish_reason, error if that is "error" (what
    went wrong), and seconds: from the start of the run, or from where it was taken up, to the end
    of the answer.

    accuracy, cut_off and no_answer are shares of all answers: those that are right, that reached
    the limit of new tokens or of the context, and that had no answer in them. errors counts those
    that ended with an error, their logits being NaN say; they are graded as far as they got.
    interval is the accuracy's 95 % interval (Wilson), which counts problems: answers to the same
    one resemble each other, so with several samples it is on the wide side. groups has for
    "subject" and "level", empty where the problems have none, {value: (answers, accuracy)}.

    sampled_tokens, generation_seconds, their ratio tokens_per_second and grading_seconds, writing
    included, are of this call: what an earlier one had answered isn't in them.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        records: list[dict],
        batch_size: int,
        stats: Stats,
        grading: float,
    ):
        self.problems = len(problems)
        self.records = records
        self.batch_size = batch_size
        self.accuracy = fmean(record["verdict"] for record in records)
        self.interval = wilson(self.accuracy, self.problems)
        self.cut_off = fmean(record["finish_reason"] == "length" for record in records)
        self.no_answer = fmean(record["answer"] is None for record in records)
        self.errors = sum(record["finish_reason"] == "error" for record in records)
        self.sampled_tokens = stats.sampled_tokens
        self.generation_seconds = stats.seconds
        self.tokens_per_second = stats.tokens_per_second
        self.grading_seconds = grading
        fields = {problem.number: problem.fields for problem in problems}
        self.groups = {name: grouped(records, fields, name) for name in ("subject", "level")}

    def __repr__(self) -> str:
        low, high = self.interval
        lines = [
            f"accuracy    {self.accuracy:.3f}, 95 % interval {low:.3f} to {high:.3f}",
            f"answers     {len(self.records)} to {self.problems} problems; cut off "
            f"{self.cut_off:.3f} of them, no answer in {self.no_answer:.3f}"
            + (f"; {self.errors} ended with an error" if self.errors else ""),
            f"generation  {self.sampled_tokens} tokens in {self.generation_seconds:.2f} s, "
            f"{self.tokens_per_second:.0f} tokens/s, batch size {self.batch_size}",
            f"grading     {self.grading_seconds:.2f} s",
        ]
        for name, group in self.groups.items():
            lines += ["", f"{name:24} answers  accuracy"] if group else []
            lines += [
                f"{value:24} {answers:7}  {accuracy:8.3f}"
                for value, (answers, accuracy) in group.items()
            ]
        return "\n".join(lines)


def grouped(
    records: list[dict], fields: dict[int, dict], name: str
) -> dict[str, tuple[int, float]]:
    """For each value of the problems' field `name`: how many answers there are, and
    their accuracy."""
    verdicts: dict[str, list[bool]] = {}
    for record in records:
        if name in fields[record["number"]]:
            verdicts.setdefault(str(fields[record["number"]][name]), []).append(record["verdict"])
    return {value: (len(verdicts[value]), fmean(verdicts[value])) for value in sorted(verdicts)}


def wilson(share: float, n: int) -> tuple[float, float]:
    """95 % interval of a share among n (Wilson, 1927): inside [0, 1], and sensible where all are
    right, or few."""
    z = NormalDist().inv_cdf(0.975)
    centre = share + z * z / (2 * n)
    half = z * sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, (centre - half) / (1 + z * z / n)), min(1.0, (centre + half) / (1 + z * z / n))
