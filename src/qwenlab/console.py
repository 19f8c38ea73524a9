"""What both commands, `qwenlab` and `python -m qwenlab.bench`, have alike: streams, errors, status, some options.

Exit status: 0 done, 1 failed, 2 wrong input, 130 interrupted; whatever goes wrong is said in one line on stderr.
"""

import logging
import os
import sys
import warnings
from typing import Annotated, NoReturn

import typer

from qwenlab.errors import whole

Dtype = Annotated[
    str | None, typer.Option(help="float32, bfloat16 or float16.  [default: float32 on a CPU, bfloat16 on a GPU]")
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, ...  [default: a GPU if there is one]")]
MOST_THREADS = 256
Threads = Annotated[int | None, typer.Option(help="Threads on a CPU.  [default: PyTorch's own]")]


def run_app(app: typer.Typer, name: str, arguments: list[str] | None = None) -> NoReturn:
    """Runs the command that `arguments` ask for (None: those of the process) and exits with its status."""
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:  # closed, as under some schedulers
            setattr(sys, stream, open(os.devnull, "w"))
        if hasattr(getattr(sys, stream), "reconfigure"):  # not every terminal can write every answer
            getattr(sys, stream).reconfigure(errors="backslashreplace")
    warnings.showwarning = lambda message, *where: say(message)
    log = logging.getLogger("qwenlab")  # what the library tells while it works
    log.setLevel(logging.INFO)
    log.addHandler(LINES)
    try:
        arguments = sys.argv[1:] if arguments is None else arguments
        status = app(arguments or ["--help"], prog_name=name, standalone_mode=False)
        sys.stdout.flush()
        if status == 130:
            say("interrupted")
    except typer.Abort:  # what older versions of typer make of Ctrl-C
        status = say("interrupted", 130)
    except BrokenPipeError:  # whoever read our output has left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    except ValueError as problem:  # QwenlabError, and what the library says about its arguments
        status = say(problem, getattr(problem, "status", 2))
    except Exception as problem:
        if hasattr(problem, "format_message"):  # typer's own: an unknown option, a missing argument
            status = say(problem.format_message(), getattr(problem, "exit_code", 2))
        else:
            status = say(f"{type(problem).__name__}: {problem}", 1)
    finally:
        log.removeHandler(LINES)
    sys.exit(status or 0)


class Lines(logging.Handler):
    """Says each record of a log, above the progress bar where there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        from tqdm import tqdm

        with tqdm.external_write_mode(file=sys.stderr):
            say(record.getMessage())


LINES = Lines()


def say(what, status: int = 0) -> int:
    """One line on stderr; stdout is for answers."""
    print("qwenlab:", " ".join(str(what).split()), file=sys.stderr)
    return status


def whole_numbers(text: str, option: str) -> list[int]:
    """ "1,2,4" -> [1, 2, 4]. Raises ValueError in one line that names the option."""
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise ValueError(f"{option} is {text!r}, expected whole numbers with commas, as in 1,2,4,8") from None


def use_threads(threads: int | None) -> None:
    """What --threads asks of PyTorch. Raises ValueError; also for more threads than any machine gains from, since
    OpenMP ends the process where the system refuses it one."""
    if threads is not None:
        import torch

        most = max(MOST_THREADS, os.cpu_count() or 1)
        torch.set_num_threads(whole(threads, "--threads", 1, most))
