"""`qwenlab traces` has a teacher answer problems; `qwenlab distill` trains a student on the
answers."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from qwenlab.cli import options, ranks
from qwenlab.cli.common import count, introduce, open_elsewhere, open_model
from qwenlab.cli.threads import Threads
from qwenlab.cli.train import summarise
from qwenlab.console import say

MOST_NAMED = 20  # dropped traces that are listed


def traces(
    data: options.Data,
    output: options.Output,
    model: options.ModelName = options.TINY,
    limit: options.Limit = None,
    max_new_tokens: options.MaxNewTokens = 2048,
    temperature: options.Temperature = 0.6,
    top_p: options.TopP = 0.95,
    seed: options.Seed = 0,
    slots: options.Slots = 64,
    only_right: Annotated[
        bool, typer.Option(help="Keep only traces whose answer is right.")
    ] = True,
    plain: options.Plain = False,
    endpoint: options.Endpoint = None,
    ray: options.Ray = None,
    threads: options.Threads = options.AUTO,
    dtype: options.Dtype = None,
    device: options.Device = None,
) -> None:
    """Have a teacher answer problems. `qwenlab distill` reads the result, OUTPUT/traces.jsonl."""
    from qwenlab.evaluation.problems import load_problems
    from qwenlab.training.traces import TRACES, make_traces

    wanted = Threads(threads)
    problems = load_problems(data, limit)
    elsewhere = open_elsewhere(endpoint, ray, model, dtype, device, wanted.number)
    network, tokenizer = elsewhere or open_model(model, dtype, device)
    if elsewhere:
        say(f"{network}, {count(problems, 'problem')}")
    else:
        wanted.use(network, min(slots, len(problems)))
        introduce(model, network, count(problems, "problem"), wanted)
    try:
        made = make_traces(
            network,
            tokenizer,
            problems,
            output,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_p=top_p,
            seed=seed,
            slots=slots,
            only_right=only_right,
            plain=plain,
            progress=sys.stderr.isatty(),
        )
    except KeyboardInterrupt:
        say(f"{output}: finished traces are saved; run the same command to resume")
        raise
    print(f"{output / TRACES}: {count(made, 'trace')} of {count(problems, 'problem')}")


def distill(
    data: Annotated[
        Path,
        typer.Option(
            help='Traces, .json or .jsonl: "problem", "message_thinking", "message_content".'
        ),
    ],
    output: options.Output,
    model: options.ModelName = options.TINY_BASE,
    epochs: Annotated[float, typer.Option(help="Passes over the traces.")] = 1.0,
    minutes: options.Minutes = None,
    batch_size: Annotated[int, typer.Option(help="Traces per step.")] = 8,
    micro_batch: Annotated[
        int | None,
        typer.Option(help="Traces computed at once, to save memory.  [default: all of a step]"),
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option(help="Most tokens of prompt and answer.  [default: the model's context]"),
    ] = None,
    lr: Annotated[float, typer.Option(help="Peak learning rate.")] = 1e-5,
    held_out: Annotated[int, typer.Option(help="Traces held out to measure the loss.")] = 64,
    teacher: Annotated[
        str | None,
        typer.Option(help="Learn this model's probabilities, not only the traces' tokens."),
    ] = None,
    temperature: Annotated[float, typer.Option(help="Of the teacher's probabilities.")] = 1.0,
    seed: options.Seed = 0,
    plain: options.Plain = False,
    threads: options.Threads = options.AUTO,
    device: options.Device = None,
) -> None:
    """Train a student on a teacher's traces. In float32, on the answers' tokens only."""
    from qwenlab.training import distillation
    from qwenlab.training.traces import load_traces

    wanted = Threads(threads)
    ranks.join(device)
    examples = load_traces(data)
    network, tokenizer = open_model(model, "float32", device)
    wanted.use(network, batch_size, output)
    teaching = None if teacher is None else open_model(teacher, "float32", device)
    introduce(model, network, count(examples, "trace"), wanted)
    run = distillation.distill(
        network,
        tokenizer,
        examples,
        epochs=epochs,
        minutes=minutes,
        batch_size=batch_size,
        micro_batch=micro_batch,
        max_length=max_length,
        lr=lr,
        held_out=held_out,
        teacher=teaching,
        temperature=temperature,
        plain=plain,
        seed=seed,
        folder=output,
        progress=sys.stderr.isatty(),
    )
    if run.dropped:
        names = ", ".join(map(str, run.dropped[:MOST_NAMED]))
        more = ", ..." if len(run.dropped) > MOST_NAMED else ""
        dropped = count(run.dropped, "trace")
        say(f"dropped {dropped} whose answer starts too late to fit: {names}{more}")
    summarise(output, run.metrics)
    losses = [f"{loss:.4f} (step {step})" for step, loss in run.losses.items()]
    first_and_last = losses if len(losses) < 2 else [losses[0], losses[-1]]
    measured = " -> ".join(first_and_last) or "not measured"
    print(f"held-out loss: {measured}; pads: {run.padded:.1%}")
