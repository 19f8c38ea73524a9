"""Time for the grader: enough for every comparison that can be decided, also on a busy machine."""

from collections.abc import Callable

import pytest

from qwenlab.evaluation import symbolic, voting


@pytest.fixture(autouse=True)
def allow_seconds(monkeypatch) -> Callable[..., None]:
    """Sets the seconds of a comparison, and how late its reply may be: far more than by default."""

    def allow(seconds: float, late: float = 60.0) -> None:
        monkeypatch.setattr(symbolic, "LIMIT", seconds)
        monkeypatch.setattr(symbolic.Budget.__init__, "__defaults__", (seconds,))
        monkeypatch.setattr(symbolic, "LATE", late)

    monkeypatch.setattr(voting, "VOTE_LIMIT", 60.0)
    allow(10.0)
    return allow
