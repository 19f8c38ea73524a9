"""`exercise`: defines an exercise of one's own, for `check`.

It stands where its lesson is, in a cell of the notebook or in a module beside it.
"""

import copy
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from qwenlab import exercises
from qwenlab.exercises import Exercise
from qwenlab.teach.checking import Answer, values_of, verdict_on

Cases = Iterable[tuple[str, tuple]]
NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def exercise(
    name: str,
    solution: Callable,
    cases: Cases | Callable[[], Cases],
    *,
    results: str | Sequence[str] = "result",
    mistakes: Sequence[tuple[Callable, str]] = (),
    rules: Sequence[tuple[str, Callable[[Any], str | None]]] = (),
) -> Answer:
    """Defines an exercise of your own and tries it: from then on, `check(name, answer)` knows it.

    name: lower-case words joined by hyphens. solution(*arguments) is right. cases: (label,
    arguments) pairs, the most telling first, or a function that yields them; arguments is a tuple,
    and random cases may share a label. results: what the values that a solution returns are called,
    in order; one name where it returns one. mistakes: (wrong function, hint) pairs: an answer
    that gives the same as the wrong function gets its hint. rules: (name of a result, rule) pairs,
    tried where no mistake fits: rule(theirs) returns a hint or None.

    The definition holds for this process, and a second one of the same name replaces it. Raises
    ValueError, in one line, for a name that is none or that a lesson of the course has; for cases
    that are none; where the solution fails on one of its own cases; and where a mistake passes all
    of them or gets another's hint.
    """
    if not NAME.fullmatch(name):
        raise ValueError(f"exercise {name!r}: expected lower-case words joined by hyphens")
    kept = _checked_cases(name, cases)
    names = (results,) if isinstance(results, str) else tuple(results)
    own = Exercise(solution, names, lambda: iter(kept), tuple(mistakes), tuple(rules))
    unknown = [result for result, _ in own.rules if result not in names]
    if unknown:
        raise ValueError(f"exercise {name!r}: a rule for {unknown[0]!r}, which is no result")
    _try_solution(name, own)
    for number, (wrong, hint) in enumerate(own.mistakes, start=1):
        _try_mistake(f"exercise {name!r}, mistake {number}", name, own, wrong, hint)
    exercises.keep(name, own)
    labels = ", ".join(dict.fromkeys(label for label, _ in kept))
    told = f"Cases: {len(kept)} ({labels}). Known mistakes: {len(own.mistakes)}."
    return Answer(True, [f"exercise {name}: defined. {told}"])


def _checked_cases(name: str, cases: Cases | Callable[[], Cases]) -> list[tuple[str, tuple]]:
    kept = list(cases() if callable(cases) else cases)
    if not kept:
        raise ValueError(f"exercise {name!r}: it has no case")
    for case in kept:
        if not isinstance(case, tuple) or len(case) != 2 or not isinstance(case[1], tuple):
            raise ValueError(
                f"exercise {name!r}: a case is (label, arguments) with a tuple of arguments, such "
                f'as ("one row", ([3],)); got {case!r}'
            )
    return kept


def _try_solution(name: str, own: Exercise) -> None:
    for _, arguments in own.cases():
        returned = len(values_of(own, own.solution(*copy.deepcopy(arguments))))
        if returned != len(own.results):
            raise ValueError(
                f"exercise {name!r}: the solution returns {returned} values, and results names "
                f"{len(own.results)}"
            )
    answer = verdict_on(lambda *given: own.solution(*given), name, own)
    if not answer.ok:
        raise ValueError(
            f"exercise {name!r}: the solution fails on its own cases. {' '.join(answer.lines)}"
        )


def _try_mistake(where: str, name: str, own: Exercise, wrong: Callable, hint: str) -> None:
    answer = verdict_on(wrong, name, own)
    if answer.ok:
        raise ValueError(
            f"{where}: it is right on all cases; add one on which it differs. Its hint: {hint}"
        )
    if f"Hint: {hint}" not in answer.lines:
        raise ValueError(
            f"{where}: expected its own hint, {hint!r}, but check says: {' '.join(answer.lines)}"
        )
