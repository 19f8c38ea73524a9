"""`qwenlab evaluate` and `qwenlab vote`: problems answered and graded, each answer for itself or by a vote of many."""

import sys
from inspect import Signature, signature
from pathlib import Path
from typing import Annotated

import typer

from qwenlab.commands import common
from qwenlab.console import Device, Dtype, say
from qwenlab.errors import QwenlabError


def evaluate(
    model: common.ModelName,
    data: Annotated[str, typer.Option(help="tiny-test, tiny-train, math500, or a .json or .jsonl file.")],
    batch_size: Annotated[str, typer.Option(help="Most answers at once, or auto: what memory allows.")] = "64",
    strategy: common.Strategy = "continuous",
    samples: Annotated[int, typer.Option(help="Answers to each problem.")] = 1,
    max_new_tokens: common.MaxNewTokens = 1024,
    temperature: common.Temperature = 0.0,
    top_k: common.TopK = 0,
    top_p: common.TopP = 1.0,
    seed: common.Seed = 0,
    no_thinking: Annotated[bool, typer.Option("--no-thinking", help="Tell the chat template not to think.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="No chat template: for base models.")] = False,
    subject: Annotated[str | None, typer.Option(help="Only problems of this subject.")] = None,
    level: Annotated[str | None, typer.Option(help="Only problems of this level.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many of those problems.")] = None,
    output: Annotated[Path | None, typer.Option(help="Keep the records in this folder; go on with them there.")] = None,
    dtype: Dtype = None,
    device: Device = None,
) -> None:
    """Answer problems in batches, grade the answers and sum up."""
    options = dict(locals())
    from qwenlab.tasks.evaluation import evaluate

    work(evaluate, **options)


def vote(**options) -> None:
    """Answer each problem several times and let the answers vote (self-consistency)."""
    from qwenlab.tasks.voting import self_consistency

    work(self_consistency, **options)


# The same options; three have another value if they are not given.
given = {"samples": 8, "temperature": 0.9, "top_p": 0.9}
parameters = signature(evaluate).parameters.values()
vote.__signature__ = Signature([p.replace(default=given.get(p.name, p.default)) for p in parameters])


def work(task, model, data, batch_size, no_thinking, subject, level, limit, output, dtype, device, **options) -> None:
    """What both commands do: `task` on the chosen problems, then its table."""
    from qwenlab.tasks.problems import load_problems

    options["batch_size"] = int(batch_size) if batch_size.isdecimal() else batch_size
    problems = load_problems(data)
    for name, value in (("subject", subject), ("level", level)):
        there = dict.fromkeys(str(problem.fields[name]) for problem in problems if name in problem.fields)
        if value not in (None, *there):
            raise QwenlabError(f"{data}: no problem left of {name} {value!r}, expected {', '.join(there) or 'none'}")
        problems = [problem for problem in problems if value in (None, str(problem.fields.get(name)))]
    network, tokenizer = common.open_model(model, dtype, device)
    options |= {"thinking": not no_thinking, "folder": output, "progress": sys.stderr.isatty()}
    try:
        say(f"{model}, {common.where(network)}, {common.count(problems[:limit], 'problem')}")
        print(task(network, tokenizer, problems[:limit], **options))
    except KeyboardInterrupt:
        say(f"to go on from here in {output}, run the same command" if output else "without --output nothing is kept")
        raise
