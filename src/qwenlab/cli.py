"""The command line: `qwenlab` and its commands, each of which stands in `qwenlab.commands`.

Commands import what they need when they run, so that `qwenlab --help` answers at once.
"""

from typing import Annotated

import typer

from qwenlab import __version__
from qwenlab.commands import distilling, evaluating, generating, measuring, talking, training
from qwenlab.console import run_app

app = typer.Typer(
    help="Batched inference for Qwen models: answer prompts, talk, evaluate, vote, train and measure.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
COMMANDS = {
    "generate": generating.generate,
    "chat": talking.chat,
    "evaluate": evaluating.evaluate,
    "vote": evaluating.vote,
    "grpo": training.grpo,
    "traces": distilling.collect,
    "distill": distilling.train_student,
    "plot": training.plot,
    "table": measuring.table,
    "bench": measuring.bench,
}
for name, command in COMMANDS.items():
    app.command(name)(command)


def main(arguments: list[str] | None = None) -> None:
    """Runs a command and exits with its status."""
    run_app(app, "qwenlab", arguments)


def show_version(wanted: bool) -> None:
    if wanted:
        print(f"qwenlab {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


if __name__ == "__main__":
    main()
