"""`check`: runs a reader's function on hand-made and random cases and reports at once.

The exercises of the course, with their cases and the mistakes that people make, are in
`qwenlab.exercises`; `exercise` defines others (own_exercises.py).
"""

import copy
import sysconfig
from collections.abc import Callable, Sequence
from html import escape
from inspect import signature
from itertools import product
from pathlib import Path
from traceback import extract_tb
from typing import Any

from qwenlab import exercises
from qwenlab.exercises import Exercise
from qwenlab.teach.comparing import (
    describe,
    differences,
    is_tensor,
    kind,
    plain,
    same,
    show,
)
from qwenlab.teach.heatmaps import heatmap
from qwenlab.teach.pictures import Html, side_by_side

NOTHING = "Your function returned None."
LIBRARY = Path(exercises.__file__).parents[1]
PYTHON = Path(sysconfig.get_path("stdlib"))
Verdict = tuple[
    list[str], list
]  # what is wrong, line by line (nothing if it is right), and pictures


class Answer(Html):
    """What `check` returns: `.ok`, with the words and pictures that explain it."""

    def __init__(self, ok: bool, lines: list[str], pictures: Sequence = ()) -> None:
        self.ok = ok
        self.lines = lines
        html = ""
        for line in lines:
            html += f"<p>{escape(line)}</p>"
        if pictures:
            html += side_by_side(*pictures).body
        mark = "qwl-good" if ok else "qwl-bad"
        text = "\n".join([*lines, *map(repr, pictures)])
        super().__init__(f'<div class="qwl {mark}">{html}</div>', text)


def check(name: str, answer: Callable | None) -> Answer:
    """Runs the function `answer` on the cases of exercise `name`.

    Never raises. The result shows itself; `.ok` is True where every case passed.
    """
    if name not in exercises.names():
        known = ", ".join(exercises.names())
        return Answer(False, [f"There is no exercise {name!r}. Known: {known}."])
    if not callable(answer):
        return Answer(
            False,
            [f"{name}: not yet. Give check your function itself: check({name!r}, my_function)."],
        )
    if _is_the_library_s(answer):
        return Answer(False, [f"{name}: that is the library's own function. Write yours."])
    return verdict_on(answer, name, exercises.find(name))


def verdict_on(answer: Callable, name: str, exercise: Exercise) -> Answer:
    """What is right about an answer, case by case up to the first that fails."""
    passed = []
    count = 0
    for label, arguments in exercise.cases():
        try:
            lines, pictures = _run(exercise, arguments, answer)
        except Exception as error:  # a result so odd that it cannot even be compared
            problem = f"{type(error).__name__}: {error}"
            lines = [f"What your function returned could not be compared: {problem}"]
            pictures = []
        if lines == [NOTHING] and not count:
            return Answer(False, [f"{name}: not yet. {NOTHING}"])
        if lines:
            where = f"one of the {label}" if label in passed else label
            others = [other for other in passed if other != label]
            right = [f"Right so far: {', '.join(others)}."] if others else []
            return Answer(False, [f"✗ {name}: wrong on {where}.", *lines, *right], pictures)
        if label not in passed:
            passed.append(label)
        count += 1
    return Answer(True, [f"✓ {name}: right on all {count} cases ({', '.join(passed)})."])


def _is_the_library_s(answer: Callable) -> bool:
    module = getattr(answer, "__module__", None) or ""
    return module.startswith("qwenlab.") and not module.startswith("qwenlab.exercises.")


def _run(exercise: Exercise, arguments: tuple, answer: Callable) -> Verdict:
    """One case: what is wrong, and pictures of the expected and the reader's result."""
    names = list(signature(exercise.solution).parameters)[: len(arguments)]
    shown = show(names, arguments)
    given = copy.deepcopy(arguments)
    try:
        theirs = answer(*given)
    except (Exception, SystemExit) as error:
        return _raised(error, names, arguments), []
    if theirs is None:
        return [NOTHING], []
    if not same(given, arguments):
        return [
            f"Your function changed its own input, {shown}.",
            "Hint: the caller still needs its own; copy it.",
        ], []
    expected = values_of(exercise, exercise.solution(*copy.deepcopy(arguments)))
    if len(exercise.results) == 1:  # a list is one value here
        theirs = (theirs,)
    elif not isinstance(theirs, (tuple, list)) or len(theirs) != len(expected):
        due = f"Expected {len(expected)} values back, {' and '.join(exercise.results)}"
        return [f"{due}; your function returned {_count(theirs)}."], []
    for result, right, other in zip(exercise.results, expected, theirs, strict=True):
        both = is_tensor(right) and is_tensor(other)
        if kind(other) != kind(right) and not both:
            due = f"{result} should be of type {kind(right)}"
            return [f"{due}, yours is {kind(other)}."], []
    if same(expected, tuple(theirs)):
        return [], []
    triples = zip(exercise.results, expected, theirs, strict=True)
    result, right, other = next(filter(_differ, triples))
    lines = [f"Given {shown}: {_unlike(result, right, other)}"]
    hint = _hint(exercise, arguments, expected, tuple(theirs))
    if hint:
        lines.append(f"Hint: {hint}")
    return lines, _pictures(result, right, other)


def _raised(error: BaseException, names: list[str], arguments: tuple) -> list[str]:
    """What a reader's function raised, with the line of their code that did."""
    text = str(error)
    overloads = "received an invalid combination of arguments"
    if overloads in text:  # PyTorch lists all it would have taken
        text = text.split(", but expected")[0].replace(overloads, "can't take these arguments")
    problem = " ".join(f"{type(error).__name__}: {text}".split())[:300]
    lines = [f"Called with {show(names, arguments)} your function raised {problem}"]
    own = [frame for frame in extract_tb(error.__traceback__) if not _is_library(frame.filename)]
    if own:
        lines.append(f"In line {own[-1].lineno} of your code: {own[-1].line}")
    if isinstance(error, TypeError) and "list" in text:
        for name, value in zip(names, arguments, strict=True):
            if isinstance(value, list):
                return [*lines, f"Hint: {name} is a list; torch.tensor({name}) is a tensor."]
    return lines


def _is_library(filename: str) -> bool:
    """Whether a file is qwenlab's, an installed package's or Python's own, and not a reader's."""
    path = Path(filename)
    installed = {"site-packages", "dist-packages"} & set(path.parts)
    ours = path.is_relative_to(LIBRARY) or path.is_relative_to(PYTHON)
    return bool(installed) or ours or filename.startswith("<frozen")


def _count(theirs: Any) -> str:
    """How many values came back: "1, a dict"."""
    if isinstance(theirs, (tuple, list)):
        return str(len(theirs))
    return f"1, a {kind(theirs)}"


def _unlike(result: str, right: Any, other: Any) -> str:
    """The sentence that says how a result is wrong."""
    if not is_tensor(right) or right.ndim == 0:
        right, other = plain(right), plain(other)
    if describe(right) != describe(other):
        return f"{result} should be {describe(right)}, yours is {describe(other)}."
    if not is_tensor(right):
        return f"{result} has the wrong value."
    index = differences(right, other)[0]
    due, found = right[tuple(index)].item(), other[tuple(index)].item()
    values = f"expected {_digits(due)}, yours is {_digits(found)}"
    return f"{result} has wrong values, first at {index}: {values}."


def _digits(number: float) -> str:
    """Enough digits to see a difference that counts."""
    return f"{number:.9g}" if isinstance(number, float) else str(number)


def _differ(triple: tuple) -> bool:
    """Whether a result, (name, right, theirs), is wrong."""
    _, right, theirs = triple
    return not same(right, theirs)


def _hint(exercise: Exercise, arguments: tuple, expected: tuple, theirs: tuple) -> str | None:
    """The hint of the first mistake with this very output, or else of the first broken rule."""
    for wrong, hint in exercise.mistakes:
        output = values_of(exercise, wrong(*copy.deepcopy(arguments)))
        if same(output, theirs) and not same(output, expected):
            return hint
    results = dict(zip(exercise.results, theirs, strict=True))
    for name, rule in exercise.rules:
        hint = rule(results[name])
        if hint:
            return hint
    return None


def values_of(exercise: Exercise, returned: Any) -> tuple:
    """What a function returned, value by value: a list is one value where one is due."""
    several = len(exercise.results) > 1 and isinstance(returned, (tuple, list))
    return tuple(returned) if several else (returned,)


def _pictures(result: str, right: Any, other: Any) -> list[Html]:
    """Expected and theirs side by side: of masks or weights (..., Q, K) the first matrices that
    differ, named by their index."""
    if 0 in [*getattr(right, "shape", ()), *getattr(other, "shape", ())]:
        return []
    place = ""
    if min(getattr(right, "ndim", 0), getattr(other, "ndim", 0)) > 2:
        index = _first_unlike(right, other)
        place = f"[{', '.join(map(str, index))}]"
        right, other = right[index], other[index]
    right, other = _as_rows(right), _as_rows(other)
    pictures = [
        _picture(right, f"expected {result}{place}"),
        _picture(other, f"your {result}{place}", right),
    ]
    return list(filter(None, pictures))


def _first_unlike(right: Any, other: Any) -> tuple[int, ...]:
    """The index of the first matrices that differ, which both have; else of the first."""
    if right.shape[:-2] == other.shape[:-2]:
        for index in product(*map(range, right.shape[:-2])):
            if not same(right[index], other[index]):
                return index
    return (0,) * (min(right.ndim, other.ndim) - 2)


def _as_rows(value: Any) -> Any:
    """A vector as a matrix of one row."""
    return value[None] if getattr(value, "ndim", 0) == 1 else value


def _picture(value: Any, title: str, right: Any = None) -> Html | None:
    """A matrix as a heatmap; cells that differ from a right one of the same shape are outlined."""
    if getattr(value, "ndim", 0) != 2 or 0 in value.shape or max(value.shape) > 40:
        return None
    marked = []
    if right is not None and right.shape == value.shape:
        marked = differences(right, value)
    if marked:
        title += " (wrong cells outlined)"
    return heatmap(value, title=title, marked=marked)
