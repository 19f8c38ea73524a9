"""`qwenlab` itself: its commands, and how errors are reported.

Exit status: 0 success, 1 failure, 2 wrong input, 130 interrupted. Every error is one line on
stderr.
"""

import logging
import os
import sys
import warnings
from typing import Annotated, NoReturn

import typer

from qwenlab import __version__
from qwenlab.cli import chat, distill, evaluate, generate, measure, ranks, train
from qwenlab.cli.ranks import complain
from qwenlab.console import say

HELP = "Batched inference for Qwen models: generate, chat, evaluate, vote, train and measure."
COMMANDS = {
    "generate": generate.generate,
    "chat": chat.chat,
    "evaluate": evaluate.evaluate,
    "vote": evaluate.vote,
    "grpo": train.grpo,
    "traces": distill.traces,
    "distill": distill.distill,
    "plot": train.plot,
    "bench": measure.bench,
    "table": measure.table,
    "peers": measure.peers,
}

app = typer.Typer(
    help=HELP,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for name, command in COMMANDS.items():
    app.command(name)(command)


def show_version(wanted: bool) -> None:
    if wanted:
        print(f"qwenlab {__version__}")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option(
        "--version", callback=show_version, is_eager=True, help="Show the version and exit."
    ),
]


@app.callback()
def options(version: Version = False) -> None:
    pass


class Lines(logging.Handler):
    """Prints each log record as a line on stderr, above the progress bar if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        from tqdm import tqdm

        with tqdm.external_write_mode(file=sys.stderr):
            say(record.getMessage())


LINES = Lines()


def main(arguments: list[str] | None = None) -> NoReturn:
    """Runs the command in `arguments` (None: those of the process) and exits with its status."""
    prepare_streams()
    ranks.silence_others()
    warnings.showwarning = lambda message, *_: say(message)
    log = logging.getLogger("qwenlab")  # the library's reports on work in progress
    log.setLevel(logging.INFO)
    log.addHandler(LINES)
    try:
        status = run(sys.argv[1:] if arguments is None else arguments)
    finally:
        log.removeHandler(LINES)
    sys.exit(status)


def run(arguments: list[str]) -> int:
    """Runs the command and returns its exit status. Any error is printed as one line."""
    try:
        if arguments and arguments[0] in COMMANDS:
            ranks.check_command(arguments[0])
        status = app(arguments or ["--help"], prog_name="qwenlab", standalone_mode=False)
        sys.stdout.flush()
        ranks.leave()
    except typer.Abort:  # older versions of typer turn Ctrl-C into this
        status = 130
    except BrokenPipeError:  # the reader of our output is gone, as with `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except ValueError as problem:  # QwenlabError among them
        return complain(problem, getattr(problem, "status", 2))
    except Exception as problem:
        if hasattr(problem, "format_message"):  # typer's own, such as for an unknown option
            return complain(problem.format_message(), getattr(problem, "exit_code", 2))
        return complain(f"{type(problem).__name__}: {problem}", 1)
    if status == 130:
        say("interrupted")
    return status or 0


def prepare_streams() -> None:
    """Makes a closed stream discard its output, and escapes text that a terminal can't encode."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as under some schedulers
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
        stream = getattr(sys, name)
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
