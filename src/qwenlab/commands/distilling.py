"""`qwenlab traces` has a teacher answer problems, `qwenlab distill` trains a student on what it wrote."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from qwenlab.commands.common import MaxNewTokens, ModelName, Seed, Slots, Temperature, TopP, count, open_model, where
from qwenlab.commands.training import Minutes, Output, summarise
from qwenlab.console import Device, Dtype, say

WHERE = ("model", "data", "output", "limit", "dtype", "device")  # options that tell what to work on; the others how
Plain = Annotated[bool, typer.Option("--plain", help="Ask without a chat template, as base models need it.")]


def collect(
    model: ModelName,
    data: Annotated[str, typer.Option(help='Problems: "tiny-train", "math500", or a .json or .jsonl file.')],
    output: Output,
    limit: Annotated[int | None, typer.Option(help="Only the first so many problems.")] = None,
    max_new_tokens: MaxNewTokens = 2048,
    temperature: Temperature = 0.6,
    top_p: TopP = 0.95,
    seed: Seed = 0,
    slots: Slots = 64,
    only_right: Annotated[bool, typer.Option(help="Keep only traces whose answer is right.")] = True,
    plain: Plain = False,
    dtype: Dtype = None,
    device: Device = None,
) -> None:
    """Have a teacher answer problems in batches: OUTPUT/traces.jsonl is what `qwenlab distill` reads."""
    options = {name: value for name, value in locals().items() if name not in WHERE}
    from qwenlab.tasks.problems import load_problems
    from qwenlab.tasks.traces import TRACES, make_traces

    problems = load_problems(data, limit)
    network, tokenizer = open_model(model, dtype, device)
    say(f"{model}, {where(network)}, {count(problems, 'problem')}")
    try:
        made = make_traces(network, tokenizer, problems, output, **options, progress=sys.stderr.isatty())
    except KeyboardInterrupt:
        say(f"{output}: finished traces are safe; the same command goes on from there")
        raise
    print(f"{output / TRACES}: {count(made, 'trace')} of {count(problems, 'problem')}")


def train_student(
    model: ModelName,
    data: Annotated[
        Path, typer.Option(help='Traces, .json or .jsonl: "problem", "message_thinking", "message_content".')
    ],
    output: Output,
    epochs: Annotated[float, typer.Option(help="How often every trace is read.")] = 1.0,
    minutes: Minutes = None,
    batch_size: Annotated[int, typer.Option(help="Traces a step.")] = 8,
    micro_batch: Annotated[int | None, typer.Option(help="Traces at once, to save memory.  [default: all]")] = None,
    max_length: Annotated[
        int | None, typer.Option(help="Most tokens of prompt and answer.  [default: context]")
    ] = None,
    lr: Annotated[float, typer.Option(help="Learning rate at its highest.")] = 1e-5,
    held_out: Annotated[int, typer.Option(help="Traces kept apart to measure the loss.")] = 64,
    teacher: Annotated[str | None, typer.Option(help="A model whose probabilities are learnt, not its words.")] = None,
    temperature: Annotated[float, typer.Option(help="Of these probabilities.")] = 1.0,
    seed: Seed = 0,
    plain: Plain = False,
    device: Device = None,
) -> None:
    """Train a student on a teacher's traces, in float32, on the answers' tokens only."""
    options = {name: value for name, value in locals().items() if name not in WHERE}
    from qwenlab.tasks.distillation import distill
    from qwenlab.tasks.traces import load_traces

    traces = load_traces(data)
    network, tokenizer = open_model(model, "float32", device)
    options["teacher"] = teacher and open_model(teacher, "float32", device)
    say(f"{model}, {where(network)}, {count(traces, 'trace')}")
    run = distill(network, tokenizer, traces, folder=output, progress=sys.stderr.isatty(), **options)
    if run.dropped:
        names = ", ".join(map(str, run.dropped[:20])) + ", ..." * (len(run.dropped) > 20)
        say(f"dropped {count(run.dropped, 'trace')} whose answer begins too late: {names}")
    summarise(output, run.metrics)
    measured = [f"{loss:.4f} (step {step})" for step, loss in run.losses.items()]
    print(f"held-out loss: {' -> '.join(measured[:1] + measured[1:][-1:]) or 'not measured'}; pads: {run.padded:.1%}")
