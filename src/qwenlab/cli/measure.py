"""`qwenlab bench` measures speed over batch size, `qwenlab table` the four workloads one by one and
batched, `qwenlab peers` speed beside transformers."""

from typing import TYPE_CHECKING, Annotated

import typer

from qwenlab.cli import options
from qwenlab.cli.common import open_model, say_dtype, speed_up
from qwenlab.cli.options import names_in, whole_numbers
from qwenlab.cli.threads import Threads
from qwenlab.console import say

if TYPE_CHECKING:
    from qwenlab.model.model import Model

BatchSizes = Annotated[str, typer.Option(help="Batch sizes, separated by commas.")]
NewTokens = Annotated[
    int, typer.Option(help="Tokens generated in each row; stop tokens are ignored.")
]
Repeats = Annotated[int, typer.Option(help="Measurements of each.")]


def bench(
    model: options.ModelName = options.TINY,
    batch: BatchSizes = "1,2,4,8,16,32,64",
    prompt_tokens: Annotated[
        int, typer.Option(help="Tokens of each prompt; the ids are random.")
    ] = 32,
    new_tokens: NewTokens = 32,
    repeats: Repeats = 5,
    threads: options.Threads = options.AUTO,
    dtype: Annotated[
        str | None,
        typer.Option(
            help=(
                "float32, bfloat16, float16, auto, or several, separated by commas.  "
                "[default: float32 on a CPU, bfloat16 on a GPU]"
            )
        ),
    ] = None,
    device: options.Device = None,
    compile: options.Compile = False,
    pack: options.Pack = False,
) -> None:
    """Measure speed over batch size. Prints a table and one line of JSON for each dtype."""
    import json
    from dataclasses import asdict

    from qwenlab.bench import sweep
    from qwenlab.loading import choose_device, choose_dtype

    sizes = whole_numbers(batch, "--batch")
    wanted = Threads(threads)
    names = [None] if dtype is None else names_in(dtype)
    place = choose_device(device)
    # Refuses a wrong one before any work.
    dtypes = [choose_dtype(say_dtype(name, device), place) for name in names]
    for chosen in dtypes:
        network, _ = open_model(model, chosen, device)
        report(wanted.use(network, max(sizes)))
        speed_up(network, compile, pack)
        result = sweep(network, sizes, prompt_tokens, new_tokens, repeats=repeats, progress=True)
        print(result)
        print(json.dumps({"model": model, **asdict(result)}), flush=True)


def table(
    model: options.ModelName = options.TINY,
    data: options.Data = "tiny-test",
    tasks: Annotated[
        str, typer.Option(help="Workloads, separated by commas.")
    ] = "evaluation,self-consistency,grpo,distillation",
    problems: Annotated[
        int,
        typer.Option(help="Problems of the evaluation; self-consistency and grpo take a quarter."),
    ] = 128,
    batch_size: Annotated[
        int, typer.Option(help="Most answers in progress at once in the evaluation.")
    ] = 64,
    max_new_tokens: options.MaxNewTokens = 256,
    repeats: Repeats = 1,
    threads: options.Threads = options.AUTO,
    dtype: options.Dtype = None,
    device: options.Device = None,
) -> None:
    """Measure workloads one by one and batched. Prints a table with published figures, and JSON."""
    from qwenlab.bench.workloads import compare_workloads

    wanted = Threads(threads)
    dtype = say_dtype(dtype, device)
    if wanted.auto:  # measured once, because every run gets a process of its own
        network, _ = open_model(model, dtype, device)
        report(wanted.use(network, batch_size))
        del network
    result = compare_workloads(
        model,
        problems,
        data=data,
        tasks=names_in(tasks),
        batch_size=batch_size,
        max_new_tokens=max_new_tokens,
        repeats=repeats,
        threads=wanted.number,
        dtype=dtype,
        device=device,
        progress=True,
    )
    print(result)
    print(result.json())


def peers(
    model: Annotated[
        str | None,
        typer.Option(
            help='A shipped model ("tiny"), a folder (./name) or a hub id (owner/name).',
            show_default=f"{options.TINY}, unless a shape is given",
        ),
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(
            help=(
                "Instead of a model: random weights of shape 0.6b or 0.8b.  With --table: shapes, "
                "separated by commas, of tiny, 0.6b and 0.8b."
            )
        ),
    ] = None,
    table: Annotated[
        bool,
        typer.Option(
            "--table",
            help=(
                "One table of decode speed on this CPU: all shapes in float32 and bfloat16, beside "
                "transformers and, if llama-cpp-python and gguf are installed, llama.cpp. "
                "--shape and --dtype choose parts of it."
            ),
        ),
    ] = False,
    batch: Annotated[
        str | None,
        typer.Option(
            help="Batch sizes, separated by commas.",
            show_default="1,8,64; with --table 1,4,16 for all but tiny",
        ),
    ] = None,
    prompt_tokens: Annotated[
        int | None,
        typer.Option(
            help="Tokens of the longest prompt; the ids are random.",
            show_default="32; with --table 16",
        ),
    ] = None,
    new_tokens: Annotated[
        int | None,
        typer.Option(
            help="Tokens generated in each row; stop tokens are ignored.",
            show_default="32; with --table 64 for tiny, else 16",
        ),
    ] = None,
    prefill: Annotated[
        str, typer.Option(help="Lengths of prompts that are only prefilled, separated by commas.")
    ] = "64,256,1024",
    repeats: Repeats = 3,
    threads: options.Threads = options.AUTO,
    dtype: options.Dtype = None,
    device: options.Device = None,
) -> None:
    """Measure speed beside transformers. Prints tables, then the same data as one line of JSON."""
    import torch

    from qwenlab import bench

    if table:
        if model is not None or device is not None:
            raise ValueError("--table measures shapes on the CPU, expected no --model or --device")
        result = bench.peer_table(
            **({} if shape is None else {"shapes": names_in(shape)}),
            **({} if dtype is None else {"dtypes": names_in(dtype)}),
            batch_sizes=None if batch is None else whole_numbers(batch, "--batch"),
            prompt_tokens=16 if prompt_tokens is None else prompt_tokens,
            new_tokens=new_tokens,
            threads=Threads(threads).number,
            set_threads=torch.set_num_threads,
            repeats=repeats,
            progress=True,
            on_start=say,
        )
        print(result)
        print(result.json())
        return
    if model is None and shape is None:
        model = options.TINY
    sizes = whole_numbers("1,8,64" if batch is None else batch, "--batch")
    lengths = whole_numbers(prefill, "--prefill")
    wanted = Threads(threads)

    def choose(network: "Model") -> None:
        report(wanted.use(network, max(sizes)))

    result = bench.peers(
        model,
        sizes,
        32 if prompt_tokens is None else prompt_tokens,
        32 if new_tokens is None else new_tokens,
        shape=shape,
        prefill=lengths,
        repeats=repeats,
        dtype=say_dtype(dtype, device),
        device=device,
        progress=True,
        on_load=choose,
    )
    print(result)
    print(result.json())


def report(threads: Threads) -> None:
    """Says why this number of threads was chosen; the tables themselves give the number."""
    if threads.reason:
        say(threads)
