"""What several commands have alike: options, opening a model, how things are counted in a line of text."""

import re
import warnings
from collections import Counter
from typing import Annotated

import typer

from qwenlab.console import say

ModelName = Annotated[str, typer.Option(help='A shipped model ("tiny"), a folder (./name) or a hub id (owner/name).')]
MaxNewTokens = Annotated[int, typer.Option(help="Most tokens an answer may have.")]
Temperature = Annotated[float, typer.Option(help="0 takes the likeliest token, 1 samples as trained.")]
TopK = Annotated[int, typer.Option(help="Sample among the k likeliest tokens; 0: all.")]
TopP = Annotated[float, typer.Option(help="Sample among the likeliest tokens that add up to p; 1: all.")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same samples.")]
Strategy = Annotated[str, typer.Option(help="sequential, static, early-stop or continuous.")]
Slots = Annotated[int, typer.Option(help="Most prompts answered at the same time.")]


def open_model(name: str, dtype: str | None, device: str | None):
    """The model and its tokenizer. What its checkpoint has more than it needs is named in a line."""
    from qwenlab.loading import load_with_tokenizer

    with warnings.catch_warnings(record=True) as heard:
        network, tokenizer = load_with_tokenizer(name, dtype, device)
    for warning in heard:
        say(warning.message)
    say_ignored(name, network.ignored)
    return network, tokenizer


def say_ignored(model: str, names: list[str]) -> None:
    """Which parts of a checkpoint have no use here, each with its number of tensors: the eyes of a multimodal one."""
    parts = Counter(part_of(name) for name in names)
    if parts:
        told = [f"{part} ({many} tensor{'s' * (many > 1)})" for part, many in parts.items()]
        say(f"{model}: ignored {', '.join(told)}")


def part_of(name: str) -> str:
    """The part of a checkpoint that a tensor belongs to."""
    return "inv_freq" if name.endswith("inv_freq") else re.match(r"(model\.)?\w+", name)[0]


def where(network) -> str:
    return f"{str(network.dtype).removeprefix('torch.')} on {network.device}"


def count(things: list, name: str) -> str:
    return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"
