"""Every exercise: its solution passes, each wrong answer fails with the hint that fits it."""

import copy
import re
from importlib import import_module

import nbformat
import numpy as np
import pytest
import torch
from lesson_cells import NOTEBOOKS
from wrong_answers import ANSWERS

from qwenlab import exercises, left_pad
from qwenlab.model.softmax import masked_softmax
from qwenlab.teach import check

NAMES = exercises.names()
UNFORESEEN = [
    pytest.param(name, answer, words, id=f"{name}-{answer.__name__}")
    for name, table in ANSWERS.items()
    for answer, words in table.items()
]


def hints(answer):
    return [line for line in repr(answer).splitlines() if line.startswith("Hint: ")]


def fails_visibly(answer):
    """Expected stands beside theirs: in pictures, or in words where it is one number."""
    shown = re.search("expected .*your|should be .* yours is", answer._repr_html_(), re.DOTALL)
    return not answer.ok and shown is not None


@pytest.mark.parametrize("number", exercises.LESSONS)
def test_a_lesson_s_file_holds_its_exercises(number):
    module = import_module(f"qwenlab.exercises.lesson_{number:02}")
    assert set(exercises.LESSONS[number]) == set(module.EXERCISES)
    assert list(NOTEBOOKS.glob(f"{number:02}-*.ipynb"))


@pytest.mark.parametrize("page", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda page: page.stem)
def test_what_a_page_checks_is_defined_for_it(page):
    """In the library, or beside it with `exercise`: in a cell or a module of the same folder."""
    cells = nbformat.read(page, as_version=4).cells
    code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    asked = set(re.findall(r'check\("([\w-]+)"', code))
    beside = [code, *(path.read_text(encoding="utf-8") for path in NOTEBOOKS.glob("*.py"))]
    own = re.findall(r'\bexercise\(\s*"([\w-]+)"', "\n".join(beside))
    due = set(exercises.LESSONS.get(int(page.stem[:2]), ()))
    assert asked - set(own) == due, (
        f"{page.stem} checks {sorted(asked)}: define them in a cell with exercise(...), as "
        "book/own-lesson.md says, or in qwenlab.exercises"
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_solution_passes(name):
    solution = exercises.find(name).solution
    answer = check(name, lambda *given: solution(*given))
    assert answer.ok and "right on all" in repr(answer) and "✓" in answer._repr_html_()


@pytest.mark.parametrize(
    ("name", "function"), [("left-pad", left_pad), ("masked-softmax", masked_softmax)]
)
def test_the_library_s_own_function_is_no_answer(name, function):
    answer = check(name, function)
    assert not answer.ok and "the library's own function" in repr(answer)


@pytest.mark.parametrize("name", NAMES)
def test_a_right_number_is_right_whatever_its_type(name):
    """Python's, NumPy's or a tensor's, an integer or a float; a list or a tuple of them too."""

    def other_types(value, to):
        if isinstance(value, bool):
            return to(value)
        if isinstance(value, (int, float)):
            return to(float(value))
        if isinstance(value, (list, tuple)):
            return [other_types(entry, to) for entry in value]
        return value

    solution = exercises.find(name).solution
    for to in (np.asarray, torch.tensor, lambda number: np.asarray([number])[0]):
        assert check(name, lambda *given, to=to: other_types(solution(*given), to)).ok


@pytest.mark.parametrize("name", NAMES)
def test_every_known_mistake_fails_with_its_own_hint(name):
    mistakes = exercises.find(name).mistakes
    assert len({hint for _, hint in mistakes}) >= 5
    for wrong, hint in mistakes:
        answer = check(name, wrong)
        assert fails_visibly(answer) and hints(answer) == [f"Hint: {hint}"], wrong.__name__


@pytest.mark.parametrize(("name", "wrong", "words"), UNFORESEEN)
def test_an_unforeseen_answer_fails_with_the_hint_that_fits(name, wrong, words):
    answer = check(name, wrong)
    (hint,) = hints(answer)
    assert fails_visibly(answer) and words in hint
    others = [other for other in ANSWERS[name].values() if other != words]
    assert not any(other in hint for other in others)


def plain(value):
    """A function's answer as what can be compared: each tensor as its dtype and numbers."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), value.tolist()
    return tuple(map(plain, value)) if isinstance(value, tuple) else value


def outputs(name, function):
    """What a function answers to each case of an exercise."""
    found = []
    for _, arguments in exercises.find(name).cases():
        try:
            found.append(plain(function(*copy.deepcopy(arguments))))
        except Exception as error:
            found.append(type(error).__name__)
    return repr(found)  # in which NaN is like NaN


@pytest.mark.parametrize("name", NAMES)
def test_no_wrong_answer_stands_in_two_places(name):
    wrong = [wrong for wrong, _ in exercises.find(name).mistakes]
    wrong += ANSWERS.get(name, {})
    places = {}
    for answer in wrong:
        other = places.setdefault(outputs(name, answer), answer)
        assert other is answer, (other.__name__, answer.__name__)
