"""teach.exercise: an instructor's own exercise answers as those of the course do, and a faulty one
is refused when it is defined."""

import subprocess
import sys

import pytest

from qwenlab import exercises
from qwenlab.teach import check, exercise

CASES = [("two rows", ([1, 3],)), ("equal rows", ([2, 2],)), ("no row", ([],))]


def count_pads(lengths):
    return sum(max(lengths) - length for length in lengths)


def count_columns(lengths):
    return max(lengths, default=0)


def pads_per_row(lengths):
    return [max(lengths) - length for length in lengths]


@pytest.fixture(autouse=True)
def nothing_stays(monkeypatch):
    monkeypatch.setattr(exercises, "_OWN", {})


def test_it_answers_as_an_exercise_of_the_course_does():
    made = exercise(
        "count-pads", count_pads, CASES, mistakes=[(count_columns, "count pads, not columns.")]
    )
    assert made.ok and "Cases: 3 (two rows, equal rows, no row). Known mistakes: 1." in repr(made)
    assert "count-pads" in exercises.names()
    assert check("count-pads", count_pads).ok
    assert "not yet" in repr(check("count-pads", lambda lengths: None))
    wrong = check("count-pads", count_columns)
    assert not wrong.ok and "Hint: count pads, not columns." in repr(wrong)
    assert "result should be 2, yours is 3." in repr(wrong)
    assert "Known: admit," in repr(check("count-padds", count_pads))


def test_cases_may_come_from_a_function_and_a_list_may_be_one_result():
    def cases():
        yield "two rows", ([1, 3],)
        for length in range(1, 5):
            yield "random rows", ([length, 4],)

    rules = [("pads", lambda pads: "one number per row." if isinstance(pads, int) else None)]
    exercise("pads-per-row", pads_per_row, cases, results="pads", rules=rules)
    assert "right on all 5 cases (two rows, random rows)" in repr(
        check("pads-per-row", pads_per_row)
    )
    assert "pads should be [2, 0], yours is [0, 2]" in repr(
        check("pads-per-row", lambda lengths: pads_per_row(lengths)[::-1])
    )


def test_several_results_are_named():
    def pads_and_columns(lengths):
        return count_pads(lengths), count_columns(lengths)

    results = ("pads", "columns")
    exercise("pads-and-columns", pads_and_columns, CASES[:2], results=results)
    assert check("pads-and-columns", pads_and_columns).ok
    assert "Expected 2 values back, pads and columns" in repr(check("pads-and-columns", count_pads))


def test_a_second_definition_replaces_the_first():
    exercise("count-pads", count_pads, CASES)
    exercise("count-pads", count_columns, CASES)
    assert check("count-pads", count_columns).ok and not check("count-pads", count_pads).ok


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"name": "Count pads"}, "lower-case words joined by hyphens"),
        ({"name": "left-pad"}, "a lesson of the course has one of this name"),
        ({"cases": []}, "it has no case"),
        (
            {"cases": [("two rows", [1, 3])]},
            r"a tuple of arguments, .* got \('two rows', \[1, 3\]\)",
        ),
        ({"results": ("pads", "columns")}, "returns 1 values, and results names 2"),
        ({"rules": [("columns", len)]}, "a rule for 'columns', which is no result"),
        ({"solution": lambda lengths: lengths.pop()}, "the solution fails .*changed its own input"),
        ({"solution": lambda lengths: None}, "the solution fails .*returned None"),
        ({"mistakes": [(count_pads, "no.")]}, "mistake 1: it is right on all cases"),
        (
            {"mistakes": [(count_columns, "no."), (count_columns, "again.")]},
            "mistake 2: expected its own hint, 'again.', but check says: .*Hint: no.",
        ),
        ({"mistakes": [(lambda lengths: lengths[5], "no.")]}, "mistake 1: .*IndexError"),
    ],
)
def test_a_faulty_exercise_is_refused_in_one_line(given, words):
    whole = {"name": "count-pads", "solution": count_pads, "cases": CASES[:2], **given}
    with pytest.raises(ValueError, match=f"^exercise .*{words}") as error:
        exercise(**whole)
    assert "\n" not in str(error.value)
    assert whole["name"] not in exercises._OWN


def test_it_may_stand_in_a_module_beside_the_notebook(tmp_path):
    """Where a kernel finds it, because it starts in the notebook's folder."""
    module = "from qwenlab.teach import exercise\nexercise('one', lambda x: x, [('a', (1,))])\n"
    (tmp_path / "my_exercises.py").write_text(module, encoding="utf-8")
    program = "import my_exercises; from qwenlab.teach import check; print(check('one', abs))"
    run = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert "✓ one: right on all 1 cases (a)." in run.stdout, run.stderr
