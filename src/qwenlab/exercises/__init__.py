"""What `teach.check` knows of each lesson's exercises: solutions, cases, known mistakes, hints.

One file a lesson, `lesson_01.py` and on. Only the file of the lesson that is asked for is loaded.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

Cases = Iterator[tuple[str, tuple]]  # (label, arguments) of each


@dataclass(frozen=True)
class Exercise:
    """One exercise.

    solution(*arguments) is right. results names what it returns, one name a value.
    cases() gives (label, arguments), the telling ones first; several random ones may share a label.
    mistakes holds (wrong function, its hint). Where a reader's output equals what a wrong function
    gives, and the right output differs, that hint is shown. The first that fits is taken.
    rules holds (name of a result, rule); rule(theirs) gives a hint or None. They are asked when no
    known mistake fits.
    """

    solution: Callable
    results: tuple[str, ...]
    cases: Callable[[], Cases]
    mistakes: tuple[tuple[Callable, str], ...] = ()
    rules: tuple[tuple[str, Callable[[Any], str | None]], ...] = ()


LESSONS = {
    1: ("bytes-per-step", "batch-where-it-bends"),
    2: ("left-pad", "position-ids"),
    3: ("cached-mask", "combined-mask"),
    4: ("nan-rows", "masked-softmax"),
    5: ("decode-step", "cut-at-stop"),
    6: ("survivors", "scatter-back", "row-steps"),
    7: ("schedule-steps", "admit", "next-chunk"),
    8: ("common-prefix", "repeat-rows", "prefill-tokens"),
    9: ("delta-step", "state-bytes"),
    10: ("hide-gates", "next-window", "next-positions"),
    11: ("last-box", "problems-left", "accuracy-interval"),
    12: ("majority-vote", "vote-accuracy", "pass-at-k"),
    13: ("group-advantages", "completion-mask", "average-loss"),
    14: ("answer-mask", "truncate", "token-mean"),
}


def names() -> list[str]:
    """The names of all exercises, sorted."""
    return sorted(name for lesson in LESSONS.values() for name in lesson)


def find(name: str) -> Exercise:
    """The exercise `name`. Raises KeyError if there is none."""
    for lesson, exercises in LESSONS.items():
        if name in exercises:
            return import_module(f"qwenlab.exercises.lesson_{lesson:02}").EXERCISES[name]
    raise KeyError(name)
