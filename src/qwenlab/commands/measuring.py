"""`qwenlab bench` measures speed over batch size, `qwenlab table` the four workloads one by one and batched."""

from typing import Annotated

import typer

from qwenlab.commands.common import ModelName, open_model
from qwenlab.console import Device, Dtype, Threads, use_threads, whole_numbers


def bench(
    model: ModelName,
    batch: Annotated[str, typer.Option(help="Batch sizes, with commas.")] = "1,2,4,8,16,32,64",
    prompt_tokens: Annotated[int, typer.Option(help="Tokens of each prompt; the ids are random.")] = 32,
    new_tokens: Annotated[int, typer.Option(help="Tokens that each row generates; nothing stops it earlier.")] = 32,
    repeats: Annotated[int, typer.Option(help="How often each batch size is measured.")] = 5,
    threads: Threads = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="float32, bfloat16, float16, or several with commas.  [default: float32 on a CPU, bfloat16 on a GPU]"
        ),
    ] = None,
    device: Device = None,
) -> None:
    """Measure speed over batch size: a table, then the same as one line of JSON, for each dtype in turn."""
    import json
    from dataclasses import asdict

    from qwenlab.bench import sweep
    from qwenlab.loading import choose_device, choose_dtype

    sizes = whole_numbers(batch, "--batch")
    use_threads(threads)
    names = [None] if dtype is None else [name.strip() for name in dtype.split(",")]
    for chosen in [choose_dtype(name, choose_device(device)) for name in names]:  # a wrong one is named at once
        network, _ = open_model(model, chosen, device)
        result = sweep(network, sizes, prompt_tokens, new_tokens, repeats=repeats, progress=True)
        print(result)
        print(json.dumps({"model": model, **asdict(result)}), flush=True)


def table(
    model: ModelName,
    data: Annotated[str, typer.Option(help="tiny-test, tiny-train, math500, or a .json or .jsonl file.")] = "tiny-test",
    tasks: Annotated[str, typer.Option(help="Which, with commas.")] = "evaluation,self-consistency,grpo,distillation",
    problems: Annotated[
        int, typer.Option(help="Problems of the evaluation; self-consistency and grpo take a quarter.")
    ] = 128,
    batch_size: Annotated[int, typer.Option(help="Answers at once in the evaluation.")] = 64,
    max_new_tokens: Annotated[int, typer.Option(help="Most tokens an answer may have.")] = 256,
    repeats: Annotated[int, typer.Option(help="How often each is measured.")] = 1,
    threads: Threads = None,
    dtype: Dtype = None,
    device: Device = None,
) -> None:
    """Measure the four workloads one by one and batched, beside published figures: a table, then one line of JSON."""
    from qwenlab.bench.workloads import compare_workloads

    options = {"batch_size": batch_size, "max_new_tokens": max_new_tokens, "repeats": repeats, "threads": threads}
    options |= {"tasks": [name.strip() for name in tasks.split(",")], "dtype": dtype, "device": device}
    result = compare_workloads(model, problems, data=data, **options, progress=True)
    print(result)
    print(result.json())
