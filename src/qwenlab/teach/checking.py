"""`check`: run a reader's function on hand-made and random cases and answer at once, with a hint that fits the mistake.

An exercise is a solution, its cases, and the wrong ways that people take. Where a reader's output equals what a known
wrong way gives, and the right output differs, that way's hint is shown. They live in `qwenlab.exercises`, one file a
group; each calls `exercise(...)`, and every file there is read.
"""

import copy
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from importlib import import_module
from math import isclose

from qwenlab.teach.heatmaps import heatmap
from qwenlab.teach.pictures import Html, side_by_side


@dataclass(frozen=True)
class Exercise:
    """One exercise.

    solution(*arguments) is right. results names what it returns, one name a value. cases() gives (label, arguments),
    the telling ones first; several random ones may share a label. mistakes: (wrong function, its hint).
    rules: (name of a result, rule(theirs) -> hint or None), asked when no known mistake fits.
    """

    solution: Callable
    results: tuple
    cases: Callable
    mistakes: tuple = ()
    rules: tuple = ()


EXERCISES = {}
NOTHING = "Your function returned None."


def exercise(name, *args, **kwargs):
    EXERCISES[name] = Exercise(*args, **kwargs)


class Answer(Html):
    """What `check` returns: `.ok`, and the words and pictures that say why."""

    def __init__(self, ok, lines, pictures=()):
        self.ok = ok
        pictures = [picture for picture in pictures if picture is not None]
        html = "".join(f"<p>{escape(line)}</p>" for line in lines)
        html += side_by_side(*pictures).body if pictures else ""
        super().__init__(
            f'<div class="qwl {"qwl-good" if ok else "qwl-bad"}">{html}</div>',
            "\n".join([*lines, *map(repr, pictures)]),
        )


def check(name, answer):
    """Run the function `answer` on the cases of exercise `name`. Never raises; the result shows itself, `.ok` tells."""
    for module in pkgutil.iter_modules(import_module("qwenlab.exercises").__path__):
        import_module(f"qwenlab.exercises.{module.name}")
    if name not in EXERCISES:
        return Answer(False, [f"There is no exercise {name!r}. Known: {', '.join(sorted(EXERCISES))}."])
    if not callable(answer):
        return Answer(False, [f"{name}: not yet. Give check your function itself: check({name!r}, my_function)."])
    passed, count = [], 0
    for label, arguments in EXERCISES[name].cases():
        try:
            lines, pictures = _run(EXERCISES[name], arguments, answer)
        except Exception as error:  # a result so odd that it cannot even be compared
            lines = [f"What your function returned could not be compared: {type(error).__name__}: {error}"]
            pictures = []
        if lines == [NOTHING] and not count:
            return Answer(False, [f"{name}: not yet. {NOTHING}"])
        if lines:
            right = [f"Right so far: {', '.join(passed)}."] if passed else []
            return Answer(False, [f"✗ {name}: wrong on {label}.", *lines, *right], pictures)
        passed += [] if label in passed else [label]
        count += 1
    return Answer(True, [f"✓ {name}: right on all {count} cases ({', '.join(passed)})."])


def _run(exercise, arguments, answer):
    """One case: the lines that say what is wrong (none if it is right), and pictures of expected and theirs."""
    given = copy.deepcopy(arguments)
    try:
        theirs = answer(*given)
    except (Exception, SystemExit) as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        return [f"Called with {_show(arguments)} your function raised {said[:300]}"], []
    if theirs is None:
        return [NOTHING], []
    if not _same(given, arguments):
        return [f"Your function changed its own input {_show(arguments)}.", "Hint: callers keep theirs; copy it."], []
    expected = _tuple(exercise.solution(*copy.deepcopy(arguments)))
    theirs = _tuple(theirs) if len(expected) > 1 else (theirs,)  # where one value is due, a list is one value
    if len(theirs) != len(expected):
        names = " and ".join(exercise.results)
        return [f"Expected {len(expected)} values back, {names}; your function returned {len(theirs)}."], []
    for result, right, other in zip(exercise.results, expected, theirs, strict=True):
        if type(other) is not type(right):
            return [f"{result} should be of type {type(right).__name__}, yours is {type(other).__name__}."], []
    if _same(expected, theirs):
        return [], []
    hint = _hint(exercise, arguments, expected, theirs)
    wrong = [not _same(right, other) for right, other in zip(expected, theirs, strict=True)].index(True)
    result, right, other = exercise.results[wrong], expected[wrong], theirs[wrong]
    words = f"Given {_show(arguments)}: {result} should be {_describe(right)}, yours is {_describe(other)}."
    if _describe(right) == _describe(other):
        words = f"Given {_show(arguments)}: {result} has other values than it should."
    lines = [words] + ([f"Hint: {hint}"] if hint else [])
    right, other = _matrices(right, other)
    return lines, [_picture(right, f"expected {result}"), _picture(other, f"your {result}", right)]


def _hint(exercise, arguments, expected, theirs):
    for wrong, hint in exercise.mistakes:
        output = _tuple(wrong(*copy.deepcopy(arguments)))
        if _same(output, theirs) and not _same(output, expected):
            return hint
    results = dict(zip(exercise.results, theirs, strict=True))
    return next((hint for name, rule in exercise.rules if (hint := rule(results[name]))), None)


def _tuple(value):
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _same(a, b):
    """Equal in type, shape, dtype and values; floats within 1e-5, NaN equal to NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(_same, a, b))
    if hasattr(a, "is_floating_point"):  # a tensor
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        return a.allclose(b, 1e-5, 1e-5, equal_nan=True) if a.is_floating_point() else bool((a == b).all())
    return a == b or (isinstance(a, float) and (isclose(a, b, rel_tol=1e-5) or (a != a and b != b)))


def _describe(value):
    if hasattr(value, "is_floating_point"):
        return f"{str(value.dtype).removeprefix('torch.')} {' x '.join(map(str, value.shape)) or 'single number'}"
    return repr(value)


def _show(arguments):
    """In words, floats with 3 digits; each argument, and each entry of a dict, is cut by itself."""
    return f"({', '.join(map(_short, arguments))})"


def _short(value):
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {_short(entry)}' for key, entry in value.items())}}}"
    text = repr(_rounded(value)).replace(".0,", ",").replace(".0]", "]")
    return text if len(text) <= 200 else text[:200] + " ..."


def _rounded(value):
    value = value.tolist() if hasattr(value, "tolist") else value
    if type(value) in (list, tuple):
        return type(value)(map(_rounded, value))
    return round(value, 3) or value if isinstance(value, float) else value  # a tiny one stays as it is


def _matrices(right, other):
    """Of masks or weights (..., Q, K): the first matrix of each that differs, to be drawn. A vector is one row."""
    right, other = (value[None] if getattr(value, "ndim", 0) == 1 else value for value in (right, other))
    if min(getattr(right, "ndim", 0), getattr(other, "ndim", 0)) <= 2:
        return right, other
    pairs = list(zip(right.flatten(0, -3), other.flatten(0, -3), strict=False))  # the shapes may differ
    return next((pair for pair in pairs if not _same(*pair)), pairs[0] if pairs else (right, other))


def _picture(value, title, right=None):
    """A matrix as a heatmap; where it differs from the right one of the same shape, the cell is outlined."""
    if getattr(value, "ndim", 0) != 2 or 0 in value.shape or max(value.shape) > 40:
        return None
    marked = []
    if right is not None and right.shape == value.shape:
        differs = ~right.double().isclose(value.double(), rtol=1e-5, atol=1e-5, equal_nan=True)
        marked = differs.nonzero().tolist()
        title += " (wrong cells outlined)" if marked else ""
    return heatmap(value, title=title, marked=marked)
