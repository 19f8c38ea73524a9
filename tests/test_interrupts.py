"""Ctrl-C waits for the work at hand; a second one doesn't."""

import signal
import threading

import pytest

from qwenlab.interrupts import held_back


def test_ctrl_c_is_held_back_once(caplog):
    before = signal.getsignal(signal.SIGINT)
    with held_back("wait") as pressed:
        assert not pressed
        signal.raise_signal(signal.SIGINT)
        assert pressed and caplog.messages == ["wait"]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_the_handler_is_put_back_whatever_is_raised():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError), held_back():
        _ = 1 / 0
    assert signal.getsignal(signal.SIGINT) is before


def test_where_ctrl_c_is_ignored_it_stays_so():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with held_back() as pressed:
            signal.raise_signal(signal.SIGINT)
        assert not pressed
    finally:
        signal.signal(signal.SIGINT, before)


def test_in_another_thread_nothing_changes():
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def work() -> None:
        with held_back() as pressed:
            seen.append((pressed, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [([], before)]
