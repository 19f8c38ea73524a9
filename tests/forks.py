"""Functions and commands in processes of their own, to be killed or interrupted at a place that is
counted.

Each is forked from one process that has imported everything, so none pays for imports where the
system has fork. A place is
an operation on a file of `folder`: the n-th of a run is the same on a fast machine and on a slow
one.
"""

import importlib
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from qwenlab.cli.main import main

# Where the system has no fork, each process imports everything itself, which takes seconds.
HAS_FORK = hasattr(os, "fork")
PROCESSES = multiprocessing.get_context("forkserver" if HAS_FORK else "spawn")
if HAS_FORK:
    PROCESSES.set_forkserver_preload(
        ["torch._dynamo", "torch.optim", "tokenizers", "qwenlab.cli.main", "qwenlab.training.rl"]
    )
CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "shutil.rmtree")


class Forked:
    """A running process. streams: (stdin, stdout, stderr), each the path of a file, or None.

    signal_at: the place (from 0) right before which the process sends itself `signal_number`
    (None: SIGKILL).
    torn: no file may grow beyond so many bytes from `signal_at` on: the write that would do it ends
    the process halfway.
    settings: what is changed before, as {"qwenlab.module.NAME": value}.
    variables: environment variables, None to remove one.
    """

    def __init__(
        self,
        function: Callable,
        *arguments,
        folder: Path,
        signal_at: int | None = None,
        signal_number: int | None = None,
        torn: int | None = None,
        streams=(None, None, None),
        cwd: Path | None = None,
        settings: dict | None = None,
        variables: dict | None = None,
    ):
        if signal_at is not None and os.name == "nt":
            pytest.skip("needs signals that end a process: Windows has none")
        if torn is not None and not HAS_FORK:
            pytest.skip("needs the module resource, to limit how large a file may grow")
        self.folder = folder
        self.log = folder.with_name(f"{folder.name}.places")
        self.log.write_text("", encoding="utf-8")
        for stream in streams[1:]:
            if stream is not None:
                Path(stream).touch()
        place = (str(folder), str(self.log), signal_at, signal_number, torn)
        changes = (settings or {}, variables or {})
        self.process = PROCESSES.Process(
            target=child, args=(function, arguments, place, streams, cwd, *changes)
        )
        self.process.start()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Raises AssertionError if the process ends before."""
        while not condition():
            assert self.process.is_alive() or condition(), "it ended before"
            time.sleep(0.005)

    def interrupt(self) -> None:
        if os.name == "nt":
            pytest.skip("needs signals: Windows has none to send")
        os.kill(self.process.pid, signal.SIGINT)

    def end(self) -> int:
        """The exit status, or the negative number of the signal that ended it."""
        self.process.join()
        return self.process.exitcode

    @property
    def places(self) -> list[str]:
        """The names of the operations so far."""
        return [json.loads(line) for line in self.log.read_text(encoding="utf-8").splitlines()]


def child(function, arguments, place, streams, cwd, settings, variables):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name, value in variables.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    torch.set_num_threads(1)
    if cwd is not None:
        os.chdir(cwd)
    for number, stream in enumerate(streams):
        redirect(number, stream)
    for name, value in settings.items():
        module, _, attribute = name.rpartition(".")
        setattr(importlib.import_module(module), attribute, value)
    count_places(*place)
    function(*arguments)


def redirect(number: int, stream) -> None:
    """As if the process had been started with this stream as its stdin, stdout or stderr."""
    if stream is None:
        return
    flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND
    os.dup2(os.open(stream, flags), number)
    name = ("stdin", "stdout", "stderr")[number]
    mode = "r" if number == 0 else "w"
    encoding = os.environ.get("PYTHONIOENCODING", "utf-8")
    setattr(sys, name, open(number, mode, buffering=1, encoding=encoding, closefd=False))


def count_places(
    folder: str, log: str, signal_at: int | None, signal_number: int | None, torn: int | None
) -> None:
    told = os.open(log, os.O_WRONLY | os.O_APPEND)
    reached = 0

    def count(event, arguments):
        nonlocal reached
        if not changes_a_file(event, arguments, folder):
            return
        if reached == signal_at:
            if torn is None:
                os.kill(os.getpid(), signal_number or signal.SIGKILL)
            else:
                import resource

                signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                resource.setrlimit(resource.RLIMIT_FSIZE, (torn, torn))
        reached += 1
        os.write(told, json.dumps(event).encode() + b"\n")

    sys.addaudithook(count)


def changes_a_file(event: str, arguments: tuple, folder: str) -> bool:
    if event == "open":
        flags = arguments[2]
        if not isinstance(flags, int) or not flags & (os.O_WRONLY | os.O_RDWR):
            return False
    elif event not in CHANGES:
        return False
    path = arguments[0]
    if not isinstance(path, (str, os.PathLike)):
        return False
    # What shutil.rmtree removes in a folder it names by the last part of its path only.
    path = os.fspath(path)
    return path.startswith(folder) or not os.path.isabs(path)


def run_command(*arguments) -> None:
    """A command of qwenlab, to its end."""
    main([str(argument) for argument in arguments])
