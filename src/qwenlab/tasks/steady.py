"""What holds while a training runs: Ctrl-C waits for the end of a step, and no kernel changes."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tqdm import tqdm

from qwenlab.fast import linear


@contextmanager
def patient() -> Iterator[list]:
    """Inside, the first Ctrl-C is noted in the list; the next one interrupts."""
    asked, before = [], signal.getsignal(signal.SIGINT)

    def note(*_) -> None:
        asked.append(True)
        signal.signal(signal.SIGINT, before)
        tqdm.write("qwenlab: this step is finished first; Ctrl-C once more stops at once", file=sys.stderr)

    listening = callable(before) and threading.current_thread() is threading.main_thread()
    try:
        if listening:
            signal.signal(signal.SIGINT, note)
        yield asked
    finally:
        if listening:
            signal.signal(signal.SIGINT, before)


@contextmanager
def reference_kernels() -> Iterator[None]:
    """Inside, F.linear computes every product, or what QWENLAB_LINEAR names: kernels chosen by measuring differ in the
    last bits, so the same seed wouldn't give the same weights twice."""
    before = linear.forced() or ""
    os.environ["QWENLAB_LINEAR"] = before or "linear"
    linear.known.clear()
    try:
        yield
    finally:
        os.environ["QWENLAB_LINEAR"] = before
        linear.known.clear()
