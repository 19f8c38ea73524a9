"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from qwenlab.errors import whole

ModelName = Annotated[
    str, typer.Option(help='A shipped model ("tiny"), a folder (./name) or a hub id (owner/name).')
]
TINY = "tiny"  # the model if none is named
TINY_BASE = "tiny-base"  # the model to train if none is named: it has more to learn
Data = Annotated[
    str,
    typer.Option(
        help='Problems: tiny-test, tiny-train, math500, or a .json or .jsonl file with "problem" '
        'and "answer".'
    ),
]
Limit = Annotated[int | None, typer.Option(help="Use only the first N problems.")]
Strategy = Annotated[str, typer.Option(help="sequential, static, early-stop or continuous.")]
Slots = Annotated[int, typer.Option(help="Most prompts in the running batch.")]
MaxNewTokens = Annotated[int, typer.Option(help="Most tokens to generate per prompt.")]
Temperature = Annotated[
    float,
    typer.Option(
        help="0 takes the most likely token; 1 samples from the model's own distribution."
    ),
]
TopK = Annotated[int, typer.Option(help="Sample from the k most likely tokens; 0: from all.")]
TopP = Annotated[
    float,
    typer.Option(
        help="Sample from the most likely tokens whose probabilities add up to p; 1: from all."
    ),
]
Seed = Annotated[int, typer.Option(help="The same seed gives the same samples.")]
NoThinking = Annotated[
    bool, typer.Option("--no-thinking", help="Switch thinking off in the chat template.")
]
Plain = Annotated[
    bool,
    typer.Option("--plain", help="Use a plain prompt, not the chat template: for base models."),
]
Output = Annotated[
    Path, typer.Option(help="Folder of the run; the same command resumes an interrupted one.")
]
Minutes = Annotated[
    float | None, typer.Option(help="Start no further step after this many minutes of training.")
]
Dtype = Annotated[
    str | None,
    typer.Option(
        help="float32, bfloat16, float16, or auto: bfloat16 where the CPU has instructions for it."
        "  [default: float32 on a CPU, bfloat16 on a GPU]"
    ),
]
Device = Annotated[
    str | None, typer.Option(help="cpu, cuda, ...  [default: a GPU if there is one]")
]
Threads = Annotated[
    str,
    typer.Option(
        help="CPU threads: a number, or auto, which times a decode step with one thread and with "
        "all cores."
    ),
]
AUTO = "auto"
Compile = Annotated[
    bool,
    typer.Option(
        "--compile",
        help="Compile the steps of 1 to 4 rows first; needs a C++ compiler and a CPU. Takes up to "
        "minutes the first time.",
    ),
]
Pack = Annotated[
    bool,
    typer.Option(
        "--pack",
        help="Keep the weights a second time, as a CPU's fastest kernels read them: faster for 2 "
        "rows or more.",
    ),
]
Endpoint = Annotated[
    list[str] | None,
    typer.Option(
        help="Have this server answer (http://host:8000, vLLM's completions API), which serves the "
        "checkpoint named by --model; repeat the option for several that share the work."
    ),
]

Ray = Annotated[
    int | None,
    typer.Option(
        help="Have so many processes answer, each with the model and --threads threads (auto: "
        "one), on this machine or in the Ray cluster at RAY_ADDRESS."
    ),
]


def names_in(text: str) -> list[str]:
    """The names in a list separated by commas."""
    return [name.strip() for name in text.split(",")]


def whole_numbers(text: str, option: str) -> list[int]:
    """The numbers in a list separated by commas. Raises ValueError in one line that names the
    option."""
    try:
        return list(map(int, text.split(",")))
    except ValueError:
        message = f"{option} is {text!r}, expected whole numbers separated by commas: 1,2,4,8"
        raise ValueError(message) from None


def number_of_threads(text: str, most: int) -> int | None:
    """The number in --threads; None for "auto", which decides by a measurement. Raises
    ValueError."""
    if text == AUTO:
        return None
    if not text.lstrip("-").isdecimal():
        raise ValueError(f"--threads is {text!r}, expected auto or a whole number of at least 1")
    return whole(int(text), "--threads", 1, most)
