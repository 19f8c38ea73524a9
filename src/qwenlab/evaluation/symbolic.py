"""Symbolic comparison in a process of its own, which can be killed wherever it hangs."""

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import BinaryIO

from qwenlab.errors import QwenlabError

PROGRAM = Path(__file__).with_name("symbolic_worker.py")
# in seconds
LIMIT = 1.0  # for one verdict
VOTE_LIMIT = 5.0  # for all verdicts of one vote
LATE = 0.7  # how late a reply may be before the process counts as hung
START = 120.0  # for the start, which loads SymPy
NEW_GROUP = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)  # 0: not Windows


class GradingError(QwenlabError):
    """The process that compares answers can't be started."""


class Budget:
    """Seconds of the worker's own time for one verdict or one vote. Waiting for other threads is
    free."""

    def __init__(self, seconds: float = LIMIT) -> None:
        self.left = seconds

    def equal(self, one: str, two: str) -> bool:
        """As `Worker.equal`; False once the time is spent."""
        return self.left > 0 and WORKER.equal(one, two, self)


class Worker:
    """One worker process for all threads of this one, started by the first question and then kept.

    It is a plain child process with two pipes on every system, so scripts need no main guard, and
    it ends whenever and however this process does. It is replaced if it dies or hangs, and a forked
    child gets one of its own.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.process: subprocess.Popen | None = None
        self.replies: SimpleQueue[bytes] = SimpleQueue()
        self.reader: threading.Thread | None = None

    def equal(self, one: str, two: str, budget: Budget | None = None) -> bool:
        """Whether two values, equations or inequalities in LaTeX are equal; False if LIMIT,
        `budget` or the worker's memory doesn't suffice to decide.

        Raises GradingError if no worker can be started.
        """
        budget = budget or Budget()
        seconds = min(LIMIT, budget.left)
        question = json.dumps([seconds, one, two]).encode() + b"\n"
        with self.lock:
            try:
                for _ in range(2):  # once more if the worker had died before this question
                    if self.process is None:
                        self.start()
                    started = time.monotonic()
                    reply = self.exchange(question, seconds + LATE)
                    budget.left -= time.monotonic() - started
                    if reply:
                        return json.loads(reply)
                    self.stop()
                    if reply is None:
                        break
                return False
            except BaseException:
                # After Ctrl-C, the late reply would be taken for the answer to the next question.
                self.stop()
                raise

    def start(self) -> None:
        command = [sys.executable, "-P", str(PROGRAM)]  # -P: don't import from this folder
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        # In a session of its own (on Windows, a process group), so the terminal's Ctrl-C can't
        # reach it.
        group = {"start_new_session": True, "creationflags": NEW_GROUP}
        try:
            self.process = subprocess.Popen(command, **pipes, **group, bufsize=0)
        except OSError as problem:
            reason = f"{command[0]!r} doesn't start: {problem}"
            raise GradingError(f"grading needs a process of its own, {reason}") from None
        # A thread reads, because not every system can wait for a pipe with a timeout.
        self.replies = SimpleQueue()
        task = (self.process.stdout, self.replies)
        self.reader = threading.Thread(target=read_lines, args=task, daemon=True)
        self.reader.start()
        reply = self.line(START)
        if reply is None:
            raise GradingError(
                f"grading needs a process of its own, which wasn't ready after {START:.0f} s"
            )
        if why := json.loads(reply) if reply else "its process ended at once":
            raise GradingError(
                f"grading needs math-verify's parser, which doesn't load in {sys.executable}: {why}"
            )

    def exchange(self, question: bytes, seconds: float) -> bytes | None:
        """The worker's next line; b"" if it has died, None if nothing arrives in time."""
        try:
            self.process.stdin.write(question)
            return self.line(seconds)
        except OSError:  # a broken pipe
            return b""

    def line(self, seconds: float) -> bytes | None:
        try:
            return self.replies.get(timeout=seconds)
        except Empty:
            return None

    def stop(self) -> None:
        process = self.process
        self.process = None
        if process is None:
            return
        if hasattr(os, "killpg"):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # and its child, which may be what hangs
        else:
            process.kill()  # without fork it has no child
        if self.reader is not None:
            self.reader.join(LATE)  # it must not be reading when the pipe is closed
        with process:  # closes the pipes, and waits
            pass

    def forget(self) -> None:
        """In a forked child, where the worker is the parent's."""
        self.lock = threading.Lock()
        self.reader = None  # threads don't survive a fork
        process = self.process
        self.process = None
        if process is not None:
            process.returncode = 0  # it isn't our child, so don't wait for it
            process.stdin.close()
            process.stdout.close()


def read_lines(pipe: BinaryIO, lines: SimpleQueue[bytes]) -> None:
    """Puts every line of the pipe into `lines`, and b"" once it is closed."""
    while True:
        try:
            line = pipe.readline()
        except (OSError, ValueError):  # closed on our side
            line = b""
        lines.put(line)
        if not line:
            return


WORKER = Worker()
atexit.register(WORKER.stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=WORKER.forget)
