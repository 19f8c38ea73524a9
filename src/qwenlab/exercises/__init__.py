"""What `teach.check` knows of each lesson's exercises: solutions, cases, known mistakes, hints.

There is one file per lesson, `lesson_01.py` onwards; only the lesson asked for is loaded. Those
that `teach.exercise` defines, beside a lesson of somebody's own, are kept for this process.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import chain
from typing import Any

Cases = Iterator[tuple[str, tuple]]  # (label, arguments) of each


@dataclass(frozen=True)
class Exercise:
    """One exercise.

    solution(*arguments) is right. results names the values it returns.
    cases() yields (label, arguments), the most telling first; random ones may share a label.
    mistakes holds pairs (wrong function, its hint): the hint of the first function whose output
    equals the reader's, and differs from the right one, is shown.
    rules holds pairs (name of a result, rule), tried when no known mistake fits; rule(theirs)
    returns a hint or None.
    """

    solution: Callable
    results: tuple[str, ...]
    cases: Callable[[], Cases]
    mistakes: tuple[tuple[Callable, str], ...] = ()
    rules: tuple[tuple[str, Callable[[Any], str | None]], ...] = ()


LESSONS = {
    1: ("bytes-per-step", "batch-where-it-bends"),
    2: ("left-pad", "position-ids"),
    3: ("combined-mask", "packed-mask"),
    4: ("nan-rows", "masked-softmax"),
    5: ("decode-step", "cut-at-stop"),
    6: ("survivors", "scatter-back", "row-steps"),
    7: ("schedule-steps", "admit", "next-chunk"),
    8: ("common-prefix", "repeat-rows", "prefill-tokens"),
    9: ("delta-step", "state-bytes"),
    10: ("hide-gates", "next-window", "next-positions"),
    11: ("last-box", "won-and-lost", "problems-needed"),
    12: ("vote-chance", "vote-decided"),
    13: ("silent-groups", "completion-mask", "average-loss"),
    14: ("turn-mask", "truncate", "part-factors"),
    15: ("rows-that-fit", "batch-bytes", "rows-in-budget"),
    16: ("fixed-rows", "may-flip", "count-flips"),
    17: ("fair-share", "wire-bytes", "fewest-devices"),
}


_OWN: dict[str, Exercise] = {}  # defined in this process


def random_numbers(draw: random.Random, most: int, highest: int, fewest: int = 1) -> list[int]:
    """From `fewest` to `most` whole numbers between 1 and `highest`, for random cases."""
    return [draw.randint(1, highest) for _ in range(draw.randint(fewest, most))]


def names() -> list[str]:
    """The names of all exercises that there are in this process, sorted."""
    return sorted({*chain.from_iterable(LESSONS.values()), *_OWN})


def keep(name: str, exercise: Exercise) -> None:
    """Makes `find` know an exercise, in place of an earlier one kept under its name.

    Raises ValueError for a name that a lesson of the course has.
    """
    if name in chain.from_iterable(LESSONS.values()):
        raise ValueError(f"exercise {name!r}: a lesson of the course has one of this name")
    _OWN[name] = exercise


def find(name: str) -> Exercise:
    """The exercise `name`. Raises KeyError if there is none."""
    if name in _OWN:
        return _OWN[name]
    for lesson, exercises in LESSONS.items():
        if name in exercises:
            return import_module(f"qwenlab.exercises.lesson_{lesson:02}").EXERCISES[name]
    raise KeyError(name)
