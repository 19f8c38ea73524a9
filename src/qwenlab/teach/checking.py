"""`check`: runs a reader's function on hand-made and random cases and reports at once.

The exercises, with their cases and the mistakes that people make, are in `qwenlab.exercises`.
"""

import copy
from collections.abc import Callable, Sequence
from html import escape
from math import isclose
from typing import Any

from qwenlab import exercises
from qwenlab.exercises import Exercise
from qwenlab.teach.heatmaps import heatmap
from qwenlab.teach.pictures import Html, side_by_side

NOTHING = "Your function returned None."
Verdict = tuple[
    list[str], list
]  # what is wrong, line by line (nothing if it is right), and pictures


class Answer(Html):
    """What `check` returns: `.ok`, with the words and pictures that explain it."""

    def __init__(self, ok: bool, lines: list[str], pictures: Sequence = ()) -> None:
        self.ok = ok
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
    exercise = exercises.find(name)
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
            right = [f"Right so far: {', '.join(passed)}."] if passed else []
            return Answer(False, [f"✗ {name}: wrong on {label}.", *lines, *right], pictures)
        if label not in passed:
            passed.append(label)
        count += 1
    return Answer(True, [f"✓ {name}: right on all {count} cases ({', '.join(passed)})."])


def _run(exercise: Exercise, arguments: tuple, answer: Callable) -> Verdict:
    """One case: what is wrong, and pictures of the expected and the reader's result."""
    given = copy.deepcopy(arguments)
    try:
        theirs = answer(*given)
    except (Exception, SystemExit) as error:
        problem = " ".join(f"{type(error).__name__}: {error}".split())
        return [f"Called with {_show(arguments)} your function raised {problem[:300]}"], []
    if theirs is None:
        return [NOTHING], []
    if not _same(given, arguments):
        return [
            f"Your function changed its own input {_show(arguments)}.",
            "Hint: the caller still needs its own; copy it.",
        ], []
    expected = _tuple(exercise.solution(*copy.deepcopy(arguments)))
    # Where one value is expected, a list is one value.
    theirs = _tuple(theirs) if len(expected) > 1 else (theirs,)
    if len(theirs) != len(expected):
        names = " and ".join(exercise.results)
        due = f"Expected {len(expected)} values back, {names}"
        return [f"{due}; your function returned {len(theirs)}."], []
    for result, right, other in zip(exercise.results, expected, theirs, strict=True):
        if type(other) is not type(right):
            due = f"{result} should be of type {type(right).__name__}"
            return [f"{due}, yours is {type(other).__name__}."], []
    if _same(expected, theirs):
        return [], []
    triples = zip(exercise.results, expected, theirs, strict=True)
    result, right, other = next(filter(_differ, triples))
    if _describe(right) == _describe(other):
        lines = [f"Given {_show(arguments)}: {result} has the wrong values."]
    else:
        due = f"{result} should be {_describe(right)}"
        lines = [f"Given {_show(arguments)}: {due}, yours is {_describe(other)}."]
    hint = _hint(exercise, arguments, expected, theirs)
    if hint:
        lines.append(f"Hint: {hint}")
    right, other = _matrices(right, other)
    pictures = [_picture(right, f"expected {result}"), _picture(other, f"your {result}", right)]
    return lines, list(filter(None, pictures))


def _differ(triple: tuple) -> bool:
    """Whether a result, (name, right, theirs), is wrong."""
    _, right, theirs = triple
    return not _same(right, theirs)


def _hint(exercise: Exercise, arguments: tuple, expected: tuple, theirs: tuple) -> str | None:
    """The hint of the first mistake with this very output, or else of the first broken rule."""
    for wrong, hint in exercise.mistakes:
        output = _tuple(wrong(*copy.deepcopy(arguments)))
        if _same(output, theirs) and not _same(output, expected):
            return hint
    results = dict(zip(exercise.results, theirs, strict=True))
    for name, rule in exercise.rules:
        hint = rule(results[name])
        if hint:
            return hint
    return None


def _tuple(value: Any) -> tuple:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _same(a: Any, b: Any) -> bool:
    """Equal in type, shape, dtype and values; floats within 1e-5, NaN equal to NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(_same, a, b))
    if hasattr(a, "is_floating_point"):  # a tensor
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        if a.is_floating_point():
            return a.allclose(b, 1e-5, 1e-5, equal_nan=True)
        return bool((a == b).all())
    if isinstance(a, float):
        return isclose(a, b, rel_tol=1e-5) or (a != a and b != b)
    return a == b


def _describe(value: Any) -> str:
    if hasattr(value, "is_floating_point"):
        shape = " x ".join(map(str, value.shape)) or "single number"
        return f"{str(value.dtype).removeprefix('torch.')} {shape}"
    return repr(value)


def _show(arguments: tuple) -> str:
    """As text, floats to 3 digits; each argument, and each entry of a dict, is cut by itself."""
    return f"({', '.join(map(_short, arguments))})"


def _short(value: Any) -> str:
    if isinstance(value, dict):
        entries = []
        for key, entry in value.items():
            entries.append(f"{key!r}: {_short(entry)}")
        return f"{{{', '.join(entries)}}}"
    text = repr(_rounded(value)).replace(".0,", ",").replace(".0]", "]")
    return text if len(text) <= 200 else text[:200] + " ..."


def _rounded(value: Any) -> Any:
    value = value.tolist() if hasattr(value, "tolist") else value
    if type(value) in (list, tuple):
        return type(value)(map(_rounded, value))
    if isinstance(value, float):
        return round(value, 3) or value  # a tiny one stays as it is
    return value


def _matrices(right: Any, other: Any) -> tuple:
    """The first matrices of masks or weights (..., Q, K) that differ. A vector is one row."""
    if getattr(right, "ndim", 0) == 1:
        right = right[None]
    if getattr(other, "ndim", 0) == 1:
        other = other[None]
    if min(getattr(right, "ndim", 0), getattr(other, "ndim", 0)) <= 2:
        return right, other
    # The shapes may differ.
    pairs = list(zip(right.flatten(0, -3), other.flatten(0, -3), strict=False))
    for pair in pairs:
        if not _same(*pair):
            return pair
    return pairs[0] if pairs else (right, other)


def _picture(value: Any, title: str, right: Any = None) -> Html | None:
    """A matrix as a heatmap; cells that differ from a right one of the same shape are outlined."""
    if getattr(value, "ndim", 0) != 2 or 0 in value.shape or max(value.shape) > 40:
        return None
    marked = []
    if right is not None and right.shape == value.shape:
        equal = right.double().isclose(value.double(), rtol=1e-5, atol=1e-5, equal_nan=True)
        marked = (~equal).nonzero().tolist()
    if marked:
        title += " (wrong cells outlined)"
    return heatmap(value, title=title, marked=marked)
