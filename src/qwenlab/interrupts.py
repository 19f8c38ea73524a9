"""Ctrl-C that waits until the work in progress is done."""

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)


@contextmanager
def held_back(notice: str = "") -> Iterator[list[bool]]:
    """Inside, the first Ctrl-C is only recorded, in the list that this yields; a second interrupts.

    notice: logged at the first one. Where Ctrl-C can't be held back (outside the main thread, or
    in a process that ignores it), nothing changes and the list stays empty.
    """
    pressed: list[bool] = []
    before = signal.getsignal(signal.SIGINT)

    def record(*_: object) -> None:
        pressed.append(True)
        signal.signal(signal.SIGINT, before)
        if notice:
            logger.warning(notice)

    listening = callable(before) and threading.current_thread() is threading.main_thread()
    try:
        if listening:
            signal.signal(signal.SIGINT, record)
        yield pressed
    finally:
        if listening:
            signal.signal(signal.SIGINT, before)
