"""`python -m qwenlab.bench peers`: our generation measured beside that of transformers."""

from typing import Annotated

import typer

from qwenlab.console import Device, Dtype, Threads, run_app, use_threads, whole_numbers

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.callback()
def options() -> None:
    """Measurements beside other libraries. The speed over batch sizes alone: `qwenlab bench`."""


@app.command("peers")
def measure_peers(
    model: Annotated[
        str | None, typer.Option(help='A shipped model ("tiny"), a folder (./name) or a hub id (owner/name).')
    ] = None,
    shape: Annotated[str | None, typer.Option(help="Instead of a model: random weights of shape 0.6b or 0.8b.")] = None,
    batch: Annotated[str, typer.Option(help="Batch sizes, with commas.")] = "1,8,64",
    prompt_tokens: Annotated[int, typer.Option(help="Tokens of the longest prompt; the ids are random.")] = 32,
    new_tokens: Annotated[int, typer.Option(help="Tokens that each row generates; nothing stops it earlier.")] = 32,
    prefill: Annotated[str, typer.Option(help="Lengths of one row that is only read, with commas.")] = "64,256,1024",
    repeats: Annotated[int, typer.Option(help="How often each is measured.")] = 3,
    threads: Threads = None,
    dtype: Dtype = None,
    device: Device = None,
) -> None:
    """Measure `generate` beside transformers': tables, then the same as one line of JSON."""
    from qwenlab.bench import peers

    sizes = whole_numbers(batch, "--batch")
    lengths = whole_numbers(prefill, "--prefill")
    use_threads(threads)
    settings = {"shape": shape, "prefill": lengths, "repeats": repeats, "dtype": dtype, "device": device}
    result = peers(model, sizes, prompt_tokens, new_tokens, **settings, progress=True)
    print(result)
    print(result.json())


if __name__ == "__main__":
    run_app(app, "python -m qwenlab.bench")
