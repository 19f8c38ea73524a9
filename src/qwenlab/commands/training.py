"""`qwenlab grpo` trains a model on problems whose answers can be checked, `qwenlab plot` draws what a run measured."""

from io import BytesIO
from pathlib import Path
from typing import Annotated

import typer

from qwenlab.commands.common import MaxNewTokens, ModelName, Seed, open_model, where
from qwenlab.console import Device, Threads, say, use_threads
from qwenlab.errors import QwenlabError

Data = Annotated[str, typer.Option(help="tiny-train, math500, or a .json or .jsonl file of problems with answers.")]
Output = Annotated[Path, typer.Option(help="Folder of the run; the same command goes on there.")]
Steps = Annotated[int, typer.Option(help="How many steps the model has done at the end.")]
Minutes = Annotated[float | None, typer.Option(help="No new step after so many minutes of training.")]
LearningRate = Annotated[float, typer.Option(help="3e-4 for the tiny models, 1e-6 for published ones.")]
SaveEvery = Annotated[int, typer.Option(help="Steps between two checkpoints; the newest is kept.")]
PNG, PICTURES = "metrics.png", (".png", ".svg", ".pdf")


def grpo(
    model: ModelName,
    data: Data,
    output: Output,
    lr: LearningRate,
    steps: Steps = 100,
    minutes: Minutes = None,
    num_rollouts: Annotated[int, typer.Option(help="Answers sampled to each problem: a group.")] = 8,
    batch_size: Annotated[int, typer.Option(help="Rows answered, and trained on, at the same time.")] = 4,
    max_new_tokens: MaxNewTokens = 1024,
    prompts_per_step: Annotated[int, typer.Option(help="Problems of a step.")] = 8,
    temperature: Annotated[float, typer.Option(help="Of sampling, and of the probabilities trained.")] = 1.0,
    clip_ratio: Annotated[float, typer.Option(help="How far a token's probability may move from its sampling.")] = 0.2,
    kl: Annotated[float, typer.Option(help="Weight of the divergence from the first model; 0 keeps no copy.")] = 0.0,
    averaging: Annotated[str, typer.Option(help="token, sequence or fixed: what counts alike.")] = "token",
    warm_up: Annotated[int, typer.Option(help="Steps in which the learning rate rises to its value.")] = 0,
    updates: Annotated[int, typer.Option(help="Steps of the optimiser on the same answers.")] = 1,
    limit: Annotated[int | None, typer.Option(help="Only the first so many problems.")] = None,
    no_thinking: Annotated[bool, typer.Option("--no-thinking", help="Tell the chat template not to think.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help='Ask with "Problem: ... Solution:", no template.')] = False,
    seed: Seed = 0,
    save_every: SaveEvery = 10,
    threads: Threads = None,
    device: Device = None,
    plot: Annotated[bool, typer.Option("--plot", help=f"Draw the metrics into {PNG} at the end.")] = False,
) -> None:
    """Train a model by its own sampled answers (GRPO)."""
    from qwenlab.tasks import rl
    from qwenlab.tasks.problems import load_problems

    use_threads(threads)
    problems = load_problems(data, limit)
    network, tokenizer = open_model(model, "float32", device)
    say(f"{model}, {where(network)}, {len(problems)} problems")
    options = {"num_rollouts": num_rollouts, "batch_size": batch_size, "max_new_tokens": max_new_tokens}
    options |= {"prompts_per_step": prompts_per_step, "temperature": temperature, "clip_ratio": clip_ratio, "kl": kl}
    options |= {"warm_up": warm_up}
    options |= {"averaging": averaging, "updates": updates, "plain": plain, "thinking": not no_thinking, "seed": seed}
    options |= {"folder": output, "steps": steps, "minutes": minutes, "save_every": save_every, "progress": True}
    metrics = rl.grpo(network, tokenizer, problems, lr=lr, **options)
    summarise(output, metrics)
    if plot:
        draw(output)


def summarise(folder: Path, metrics: list[dict]) -> None:
    """A run's metrics as people read them: the first tenth of the steps beside the last, and where the model is."""
    from qwenlab.tasks.training import last_checkpoint

    few = max(1, len(metrics) // 10)
    print(f"{'mean of':20} {f'first {few}':>12} {f'last {few}':>12}")
    for name in metrics[0]:
        if name != "step":
            first, last = (sum(record[name] for record in part) / few for part in (metrics[:few], metrics[-few:]))
            print(f"{name:20} {first:>12.4g} {last:>12.4g}")
    print(f"{len(metrics)} steps in {sum(record['seconds'] for record in metrics):.0f} s")
    print(f"the model: {last_checkpoint(folder)}")


def plot(
    folder: Annotated[Path, typer.Argument(help="The folder that a training wrote.")],
    output: Annotated[Path | None, typer.Option(help=f".png, .svg or .pdf.  [default: {PNG} there]")] = None,
) -> None:
    """Draw the metrics of a training, a panel for each."""
    draw(folder, output)


def draw(folder: Path, output: Path | None = None) -> None:
    """The metrics in `folder` as a picture: a point a step, and a line for the mean of ten. Raises QwenlabError."""
    from matplotlib.figure import Figure

    from qwenlab.tasks.run_folder import write_whole
    from qwenlab.tasks.training import read_metrics

    output = output or folder / PNG
    if output.suffix.lower() not in PICTURES:
        raise QwenlabError(f"{output}: can't be written (expected a name that ends in {', '.join(PICTURES)})")
    metrics = read_metrics(folder)
    names = [name for name in metrics[0] if name != "step"]
    figure = Figure(figsize=(12, 2.2 * -(-len(names) // 4)), layout="constrained")
    figure.suptitle(f"{folder.name}: a point for each step, a line for the mean of ten")
    for place, name in enumerate(names, 1):
        axes = figure.add_subplot(-(-len(names) // 4), 4, place, title=name)
        values = [record[name] for record in metrics]
        smooth = [sum(part) / len(part) for part in (values[max(0, i - 9) : i + 1] for i in range(len(values)))]
        axes.plot(values, ".", markersize=3, alpha=0.5)
        axes.plot(smooth)
    picture = BytesIO()
    figure.savefig(picture, format=output.suffix[1:].lower())
    write_whole(output, picture.getvalue())
    say(f"{output}: {len(names)} metrics of {len(metrics)} steps")
