"""Symbolic comparison in a process of its own, which can be ended whatever it hangs in."""

import atexit
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from qwenlab.errors import QwenlabError

PROGRAM = Path(__file__).with_name("symbolic_worker.py")
# Seconds for one question, which the worker keeps by itself; for one that doesn't; and for it to load math-verify.
LIMIT = 1.0
LATE = LIMIT + 0.5
START = 60.0


class GradingError(QwenlabError):
    """The process that compares answers can't be started."""


class Worker:
    """One process for all threads of this one, started at the first question and kept for the next.

    It is replaced when it died or hangs. It is a plain child process with two pipes: it needs no main guard, ends when
    this process does, and a forked child gets one of its own.
    """

    def __init__(self):
        self.lock = threading.Lock()
        self.process: subprocess.Popen | None = None
        self.ready = False

    def matches(self, answers: list[str], golds: list[str], ordered: bool) -> bool:
        """If all are equal one to one; False where LIMIT or the worker's memory doesn't suffice to say.

        Raises GradingError where no worker can be started.
        """
        question = json.dumps([answers, golds, ordered]).encode() + b"\n"
        with self.lock:
            try:
                for _ in range(2):  # once more where the worker had died before, of whatever it was
                    self.wait()
                    started = time.monotonic()
                    reply = self.exchange(question, LATE)
                    if reply:
                        return json.loads(reply)
                    self.stop()
                    if time.monotonic() - started >= LIMIT:
                        break
                return False
            except BaseException:  # Ctrl-C: the answer still to come would be taken for that of the next question
                self.stop()
                raise

    def start(self) -> None:
        command = [sys.executable, "-P", str(PROGRAM), str(LIMIT)]  # -P: our modules' names aren't those of the world
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        try:  # in a session of its own, out of reach of the terminal's Ctrl-C
            self.process = subprocess.Popen(command, **pipes, bufsize=0, start_new_session=True)
        except OSError as problem:
            raise GradingError(
                f"grading needs a process of its own; {command[0]!r} doesn't start ({problem})"
            ) from None
        self.ready = False

    def wait(self) -> None:
        """Until a worker is ready."""
        if self.ready and self.process is not None:
            return
        if self.process is None:
            self.start()
        reply = self.exchange(b"", START)
        if not reply:  # ended while it loaded: was it ended from outside?
            self.stop()
            self.start()
            reply = self.exchange(b"", START)
        why = json.loads(reply) if reply else f"its process ended at once or took over {START:.0f} s"
        if why:
            raise GradingError(f"grading needs math-verify, which doesn't load in {sys.executable}: {why}")
        self.ready = True

    def exchange(self, question: bytes, seconds: float) -> bytes:
        """The next line of the worker; nothing if it ends, as it does after so many seconds."""
        timer = threading.Timer(seconds, self.process.kill)
        timer.daemon = True
        timer.start()
        try:
            self.process.stdin.write(question)
            return self.process.stdout.readline()
        except BrokenPipeError:
            return b""
        finally:
            timer.cancel()

    def stop(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            with process:  # closes the pipes and waits
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
