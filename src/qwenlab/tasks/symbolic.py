"""Symbolic comparison in a process of its own, which can be ended whatever it hangs in."""

import atexit
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

from qwenlab.errors import QwenlabError

PROGRAM = Path(__file__).with_name("symbolic_worker.py")
# Seconds for one question.
LIMIT = 1.0


class GradingError(QwenlabError):
    """The process that compares answers can't be started."""


class Worker:
    """One process for all threads of this one, started at the first question and kept for the next.

    It is a plain child process with two pipes. So it needs no main guard, and ends when this process does, however
    that ends. It is replaced when it has died, and a forked child gets one of its own.
    """

    def __init__(self):
        self.lock = threading.Lock()
        self.process: subprocess.Popen | None = None

    def equal(self, a: str, b: str) -> bool:
        """If math-verify finds both to be the same; False where LIMIT or the worker's memory doesn't suffice to say.

        Raises GradingError where no worker can be started.
        """
        question = json.dumps([a, b]).encode() + b"\n"
        with self.lock:
            try:
                for _ in range(2):  # once more where the worker had died before, of whatever it was
                    if self.process is None:
                        self.start()
                    if reply := self.exchange(question):
                        return json.loads(reply)
                    self.stop()
                return False
            except BaseException:  # Ctrl-C: the reply still to come would be taken for that to the next question
                self.stop()
                raise

    def start(self) -> None:
        command = [sys.executable, "-P", str(PROGRAM), str(LIMIT)]  # -P: tasks/ is no place to import from
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        try:  # in a session of its own, out of reach of the terminal's Ctrl-C
            self.process = subprocess.Popen(command, **pipes, bufsize=0, start_new_session=True)
        except OSError as problem:
            raise GradingError(f"grading needs a process of its own, {command[0]!r} doesn't start: {problem}") from None
        reply = self.process.stdout.readline()
        if why := json.loads(reply) if reply else "its process ended at once":
            raise GradingError(f"grading needs math-verify, which doesn't load in {sys.executable}: {why}")

    def exchange(self, question: bytes) -> bytes:
        """The next line of the worker; nothing if it is gone."""
        try:
            self.process.stdin.write(question)
            return self.process.stdout.readline()
        except BrokenPipeError:
            return b""

    def stop(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            with process:  # closes the pipes, which ends the worker's child, and waits
                pass

    def forget(self) -> None:
        """In a forked child: the worker is the parent's."""
        self.lock = threading.Lock()
        process, self.process = self.process, None
        if process is not None:
            process.returncode = 0  # no child of ours to wait for
            process.stdin.close()
            process.stdout.close()


WORKER = Worker()
atexit.register(WORKER.stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=WORKER.forget)
