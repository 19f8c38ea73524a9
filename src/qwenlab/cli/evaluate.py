"""`qwenlab evaluate` and `qwenlab vote`: problems answered and graded, singly or by vote."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qwenlab.cli import options
from qwenlab.cli.common import (
    count,
    introduce,
    open_elsewhere,
    open_model,
    speed_up,
)
from qwenlab.cli.threads import Threads
from qwenlab.console import say
from qwenlab.errors import QwenlabError

if TYPE_CHECKING:
    from qwenlab.evaluation.problems import Problem

ROWS = 64  # batch size for which threads are chosen if --batch-size is auto

BatchSize = Annotated[
    str, typer.Option(help="Most answers in progress at once, or auto: as many as memory allows.")
]
Samples = Annotated[int, typer.Option(help="Answers to each problem.")]
Subject = Annotated[str | None, typer.Option(help="Only problems of this subject.")]
Level = Annotated[str | None, typer.Option(help="Only problems of this level.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Use only the first N of those problems.")]
Output = Annotated[
    Path | None,
    typer.Option(
        help="Keep the records in this folder; the same command resumes there, and more problems "
        "or samples extend the run."
    ),
]


def evaluate(
    data: options.Data,
    model: options.ModelName = options.TINY,
    batch_size: BatchSize = "64",
    strategy: options.Strategy = "continuous",
    samples: Samples = 1,
    max_new_tokens: options.MaxNewTokens = 1024,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    seed: options.Seed = 0,
    no_thinking: options.NoThinking = False,
    plain: options.Plain = False,
    subject: Subject = None,
    level: Level = None,
    limit: Limit = None,
    output: Output = None,
    endpoint: options.Endpoint = None,
    ray: options.Ray = None,
    threads: options.Threads = options.AUTO,
    dtype: options.Dtype = None,
    device: options.Device = None,
    compile: options.Compile = False,
    pack: options.Pack = False,
) -> None:
    """Answer problems, grade the answers, summarise."""
    given = dict(locals())
    from qwenlab.evaluation.evaluation import evaluate

    answer_and_grade(evaluate, **given)


def vote(
    data: options.Data,
    model: options.ModelName = options.TINY,
    batch_size: BatchSize = "64",
    strategy: options.Strategy = "continuous",
    samples: Samples = 8,
    max_new_tokens: options.MaxNewTokens = 1024,
    temperature: options.Temperature = 0.9,
    top_k: options.TopK = 0,
    top_p: options.TopP = 0.9,
    seed: options.Seed = 0,
    no_thinking: options.NoThinking = False,
    plain: options.Plain = False,
    subject: Subject = None,
    level: Level = None,
    limit: Limit = None,
    output: Output = None,
    endpoint: options.Endpoint = None,
    ray: options.Ray = None,
    threads: options.Threads = options.AUTO,
    dtype: options.Dtype = None,
    device: options.Device = None,
    compile: options.Compile = False,
    pack: options.Pack = False,
) -> None:
    """Let sampled answers vote (self-consistency)."""
    given = dict(locals())
    from qwenlab.evaluation.voting import self_consistency

    answer_and_grade(self_consistency, **given)


def answer_and_grade(
    task: Callable[..., object],
    *,
    model: str,
    data: str,
    batch_size: str,
    samples: int,
    no_thinking: bool,
    subject: str | None,
    level: str | None,
    limit: int | None,
    output: Path | None,
    endpoint: list[str] | None,
    ray: int | None,
    threads: str,
    dtype: str | None,
    device: str | None,
    compile: bool,
    pack: bool,
    **generation: object,
) -> None:
    """Both commands: runs `task` on the chosen problems, then prints its table."""
    from qwenlab.evaluation.problems import load_problems

    wanted = Threads(threads)
    size = int(batch_size) if batch_size.isdecimal() else batch_size
    problems = chosen(load_problems(data), data, "subject", subject)
    problems = chosen(problems, data, "level", level)[:limit]
    if (compile or pack) and (endpoint or ray):
        given = "--compile" if compile else "--pack"
        where = "--endpoint has a server" if endpoint else "--ray has actors"
        raise QwenlabError(f"{given} is given, but {where} compute the steps")
    elsewhere = open_elsewhere(endpoint, ray, model, dtype, device, wanted.number)
    network, tokenizer = elsewhere or open_model(model, dtype, device)
    try:
        if elsewhere:
            say(f"{network}, {count(problems, 'problem')}")
        else:
            rows = min(size if isinstance(size, int) else ROWS, len(problems) * samples)
            introduce(model, network, count(problems, "problem"), wanted.use(network, rows))
            speed_up(network, compile, pack)
        result = task(
            network,
            tokenizer,
            problems,
            batch_size=size,
            samples=samples,
            thinking=not no_thinking,
            folder=output,
            progress=sys.stderr.isatty(),
            **generation,
        )
        print(result)
    except KeyboardInterrupt:
        kept = f"{output}: finished answers are saved; run the same command to resume"
        say(kept if output else "nothing was saved: that needs --output")
        raise


def chosen(
    problems: "Sequence[Problem]", data: str, field: str, value: str | None
) -> "list[Problem]":
    """The problems whose `field` is `value` (None: all). Raises QwenlabError if there is none."""
    if value is None:
        return list(problems)
    by_value: dict[str, list[Problem]] = {}
    for problem in problems:
        if field in problem.fields:
            by_value.setdefault(str(problem.fields[field]), []).append(problem)
    if value not in by_value:
        known = ", ".join(by_value) or "none"
        raise QwenlabError(f"{data}: no problem has {field} {value!r}, expected {known}")
    return by_value[value]
