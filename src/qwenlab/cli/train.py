"""`qwenlab grpo` trains on problems with known answers; `qwenlab plot` draws a run's metrics."""

import sys
from io import BytesIO
from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer

from qwenlab.cli import options, ranks
from qwenlab.cli.common import count, introduce, open_model
from qwenlab.cli.threads import Threads
from qwenlab.console import say
from qwenlab.errors import QwenlabError, failure

PNG = "metrics.png"
PICTURES = (".png", ".svg", ".pdf")
COLUMNS = 4  # of panels in the picture
WINDOW = 10  # steps of a running mean
STEPS = 100  # of a training for which neither steps nor minutes are given


def grpo(
    data: options.Data,
    output: options.Output,
    lr: Annotated[
        float,
        typer.Option(help="Learning rate: 3e-4 for the tiny models, 1e-6 for published ones."),
    ],
    model: options.ModelName = options.TINY_BASE,
    steps: Annotated[
        int | None,
        typer.Option(
            help="Steps in total, those before a resume included.",
            show_default=f"{STEPS}; with --minutes any number",
        ),
    ] = None,
    minutes: options.Minutes = None,
    num_rollouts: Annotated[
        int, typer.Option(help="Answers sampled for each problem: one group.")
    ] = 8,
    batch_size: Annotated[
        int, typer.Option(help="Rows sampled at once, and trained on at once.")
    ] = 4,
    max_new_tokens: options.MaxNewTokens = 1024,
    prompts_per_step: Annotated[int, typer.Option(help="Problems per step.")] = 8,
    temperature: Annotated[
        float, typer.Option(help="Temperature of sampling, and of the probabilities in the loss.")
    ] = 1.0,
    clip_ratio: Annotated[
        float, typer.Option(help="How far a token's probability ratio may move from 1.")
    ] = 0.2,
    kl: Annotated[
        float,
        typer.Option(
            help="Weight of the divergence from the initial model; 0 keeps no copy of it."
        ),
    ] = 0.0,
    averaging: Annotated[
        str, typer.Option(help="How token losses are averaged: token, sequence or fixed.")
    ] = "token",
    warm_up: Annotated[
        int, typer.Option(help="Steps over which the learning rate rises to its value.")
    ] = 0,
    decay_steps: Annotated[
        int | None,
        typer.Option(
            help="Steps after which the learning rate has fallen to 0.", show_default="never"
        ),
    ] = None,
    updates: Annotated[int, typer.Option(help="Optimiser steps on the same answers.")] = 1,
    limit: options.Limit = None,
    no_thinking: options.NoThinking = False,
    plain: options.Plain = False,
    seed: options.Seed = 0,
    save_every: Annotated[
        int, typer.Option(help="Steps between checkpoints; only the newest is kept.")
    ] = 10,
    threads: options.Threads = options.AUTO,
    device: options.Device = None,
    plot: Annotated[
        bool, typer.Option("--plot", help=f"Draw the metrics into {PNG} at the end.")
    ] = False,
) -> None:
    """Train a model on its sampled answers (GRPO)."""
    from qwenlab.evaluation.problems import load_problems
    from qwenlab.training import rl

    wanted = Threads(threads)
    ranks.join(device)
    problems = load_problems(data, limit)
    network, tokenizer = open_model(model, "float32", device)
    wanted.use(network, batch_size, output)
    introduce(model, network, count(problems, "problem"), wanted)
    if steps is None and minutes is None:
        steps = STEPS
    metrics = rl.grpo(
        network,
        tokenizer,
        problems,
        steps=steps,
        lr=lr,
        num_rollouts=num_rollouts,
        batch_size=batch_size,
        prompts_per_step=prompts_per_step,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        clip_ratio=clip_ratio,
        kl=kl,
        averaging=averaging,
        updates=updates,
        warm_up=warm_up,
        decay_steps=decay_steps,
        seed=seed,
        plain=plain,
        thinking=not no_thinking,
        folder=output,
        minutes=minutes,
        save_every=save_every,
        progress=sys.stderr.isatty(),
    )
    summarise(output, metrics)
    if plot and ranks.is_first():
        draw(output)


def summarise(folder: Path, metrics: list[dict]) -> None:
    """Prints a run's metrics, averaged over the first and the last tenth of its steps, and its
    checkpoint."""
    from qwenlab.training.distillation import HELD_OUT
    from qwenlab.training.trainer import last_checkpoint

    few = max(1, len(metrics) // 10)
    first = metrics[:few]
    last = metrics[-few:]
    print(f"{'mean of':20} {f'first {few}':>12} {f'last {few}':>12}")
    for name in metrics[0]:
        if name not in ("step", HELD_OUT):  # whose values the caller prints by step
            print(f"{name:20} {mean_of(name, first):>12.4g} {mean_of(name, last):>12.4g}")
    print(f"{count(metrics, 'step')} in {sum(record['seconds'] for record in metrics):.0f} s")
    print(f"the model: {last_checkpoint(folder)}")


def mean_of(name: str, metrics: list[dict]) -> float:
    return fmean(record[name] for record in metrics)


def plot(
    folder: Annotated[Path, typer.Argument(help="The folder of a training run.")],
    output: Annotated[
        Path | None,
        typer.Option(help=f"A .png, .svg or .pdf file.  [default: {PNG} in that folder]"),
    ] = None,
) -> None:
    """Draw the metrics of a training run, one panel each."""
    draw(folder, output)


def draw(folder: Path, output: Path | None = None) -> None:
    """Draws the metrics in `folder`: one point per step, and a running mean as a line.

    The loss on held-out traces has a point for each measurement. Raises QwenlabError.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        reason = 'pictures need matplotlib: pip install "qwenlab[notebook]"'
        raise failure(QwenlabError(reason)) from None

    from qwenlab.files import write_whole
    from qwenlab.training.distillation import HELD_OUT, measured_losses
    from qwenlab.training.trainer import read_metrics

    output = output or folder / PNG
    if output.suffix.lower() not in PICTURES:
        expected = f"expected a name that ends in {', '.join(PICTURES)}"
        raise QwenlabError(f"{output}: can't be written ({expected})")
    metrics = read_metrics(folder)
    names = [name for name in metrics[0] if name != "step"]
    rows = -(-len(names) // COLUMNS)
    figure = Figure(figsize=(3 * COLUMNS, 2.2 * rows), layout="constrained")
    figure.suptitle(f"{folder.name}: one point per step; line: mean of the last {WINDOW}")
    for place, name in enumerate(names, 1):
        axes = figure.add_subplot(rows, COLUMNS, place, title=name)
        if name == HELD_OUT:
            losses = measured_losses(metrics, folder)
            axes.plot(losses.keys(), losses.values(), ".-")
            continue
        values = [record[name] for record in metrics]
        axes.plot(values, ".", markersize=3, alpha=0.5)
        axes.plot(running_mean(values))
    picture = BytesIO()
    figure.savefig(picture, format=output.suffix[1:].lower())
    write_whole(output, picture.getvalue())
    say(f"{output}: {count(names, 'metric')} of {count(metrics, 'step')}")


def running_mean(values: list[float]) -> list[float]:
    """For each value, the mean of it and those before it, WINDOW at most."""
    means = []
    for end in range(1, len(values) + 1):
        means.append(fmean(values[max(0, end - WINDOW) : end]))
    return means
