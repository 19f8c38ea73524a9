"""`make new-lesson`: what it writes is a lesson as it is, and a name that can't be taken is refused
in one line before anything is written."""

import re
import shutil
import subprocess
import sys

import contract
import nbformat
import pytest
import test_lessons
import yaml
from executed import NOTEBOOKS, ROOT
from new_lesson import TEMPLATE, LessonError, new_lesson

from qwenlab import exercises, teach
from qwenlab.teach import exploring

PAGE = (ROOT / "book" / "own-lesson.md").read_text(encoding="utf-8")
NUMBER = len(NOTEBOOKS) + 1
NAME = f"{NUMBER:02}-beam-search"


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A copy of what a new lesson changes."""
    copy = tmp_path_factory.mktemp("course")
    files = ["_toc.yml", "book/welcome.md", TEMPLATE, str(NOTEBOOKS[-1].relative_to(ROOT))]
    for file in files:
        (copy / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, copy / file)
    return copy


def texts(root):
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


REFUSED = [
    ("", "Beam search"),
    ("beam-search", "Beam search"),
    (NOTEBOOKS[-1].stem, "Beam search"),
    (f"{NUMBER + 1:02}-beam-search", "Beam search"),
    (f"{NUMBER:02}-Beam", "Beam search"),
    (f"{NUMBER:02}-beam/../search", "Beam search"),
    (NAME, " "),
    (NAME, "Beam\nsearch"),
    (NAME, "Beam [search]"),
]


@pytest.mark.parametrize(("name", "title"), REFUSED)
def test_a_wrong_name_or_title_is_refused_and_nothing_is_written(course, name, title):
    before = texts(course)
    with pytest.raises(LessonError, match=r"^(NAME=.* such as \d\d-my-lesson|TITLE=.*)$") as error:
        new_lesson(course, name, title)
    assert "\n" not in str(error.value) and texts(course) == before


def test_a_page_without_a_place_for_it_is_named_and_nothing_is_written(course, tmp_path):
    copy = shutil.copytree(course, tmp_path / "copy")
    (copy / "book" / "welcome.md").write_text("# Welcome\n", encoding="utf-8")
    before = texts(copy)
    with pytest.raises(LessonError, match=r"^welcome\.md: expected one line with the last lesson"):
        new_lesson(copy, NAME, "Beam search")
    assert texts(copy) == before


def test_the_command_says_it_in_one_line():
    command = [sys.executable, str(ROOT / "scripts" / "new_lesson.py"), NOTEBOOKS[0].stem, "Once"]
    run = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    assert run.returncode == 2 and not run.stdout
    assert re.fullmatch(r"NAME='01-.*\n", run.stderr)


@pytest.fixture(scope="module")
def lesson(course):
    copy = shutil.copytree(course, course.parent / f"{course.name}-with-a-lesson")
    return new_lesson(copy, NAME, "Beam search")


def test_a_new_lesson_is_in_the_contents_and_on_the_path(lesson):
    root = lesson.parents[1]
    toc = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8"))
    files = [chapter["file"] for part in toc["parts"] for chapter in part["chapters"]]
    place = files.index(f"notebooks/{NOTEBOOKS[-1].stem}")
    assert files[place + 1] == f"notebooks/{NAME}"
    welcome = (root / "book" / "welcome.md").read_text(encoding="utf-8").splitlines()
    (path,) = [i for i, line in enumerate(welcome) if f"{NOTEBOOKS[-1].name})" in line]
    assert welcome[path + 1].startswith(f"{NUMBER}. [Beam search](../notebooks/{NAME}.ipynb): ")


def test_a_new_lesson_keeps_what_every_lesson_keeps(lesson, monkeypatch):
    """Before a word of it is changed."""
    test_lessons.test_the_file_is_clean(lesson)
    test_lessons.test_it_keeps_the_contract(lesson)
    assert contract.shared_headings([*NOTEBOOKS, lesson]) == []
    title = nbformat.read(lesson, as_version=4).cells[0].source
    assert title.startswith("# Beam search\n") and "TITLE" not in lesson.read_text("utf-8")
    test_lessons.test_every_cell_ran_and_every_solution_is_right(lesson, monkeypatch)
    test_lessons.test_what_a_clock_said_is_printed_with_its_circumstances(lesson)


def test_it_has_the_install_cell_of_the_course(lesson):
    one, other = (nbformat.read(path, as_version=4) for path in (lesson, NOTEBOOKS[-1]))
    assert contract.by_id(one, "install") == contract.by_id(other, "install")


# --- The page that explains it ---------------------------------------------------------------------


def constant(file, name):
    """A number at the head of a file of tests/site."""
    text = (ROOT / "tests" / "site" / file).read_text(encoding="utf-8")
    return int(re.search(rf"^{name} = ([\d_]+)", text, re.MULTILINE)[1])


def limits_kept():
    """What stands in the page's table of limits, by the constants that keep them."""
    yield f"| {exploring.MAX_STATES} |"
    yield f"| {exploring.MAX_BYTES // 1000} kB |"
    yield f"| {constant('test_site.py', 'MAX_PAGE') // 1000} kB |"
    yield f"| {contract.MOST_LINES} in a lesson, {contract.MOST_LINES_A_CELL} in a cell |"
    yield f"| {test_lessons.MOST_WIDTH} characters |"
    yield f"| {test_lessons.MOST_MEMORY / 1e9} GB |"
    yield f"| {constant('test_first_screen.py', 'LOWEST')} pixels"


def test_the_page_names_the_limits_that_are_kept():
    table = PAGE.partition("## The limits of a page")[2].partition("\n## ")[0]
    assert constant("test_site.py", "MAX_WIDGETS") == exploring.MAX_BYTES
    assert [limit for limit in limits_kept() if limit not in table] == []
    assert f"at most {contract.MOST_LINES_OF_THE_HERO} visible lines" in PAGE


def test_the_next_free_number_stands_in_the_page_and_in_the_help():
    last = max(int(path.stem[:2]) for path in (ROOT / "notebooks").glob("[0-9][0-9]-*.ipynb"))
    for file in ("book/own-lesson.md", "Makefile", "scripts/new_lesson.py"):
        text = (ROOT / file).read_text(encoding="utf-8")
        assert set(re.findall(r"\b(\d\d)-my-lesson", text)) == {f"{last + 1:02}"}, file


def test_every_test_that_the_page_names_exists():
    tests = {path.name: path for path in (ROOT / "tests").rglob("test_*.py")}
    functions = "".join(path.read_text(encoding="utf-8") for path in tests.values())
    named = set(re.findall(r"`(?:tests/lessons/)?(test_\w+(?:\.py)?)`", PAGE))
    assert len(named) > 10
    for name in named:
        assert name in tests or f"def {name}(" in functions, name


def test_every_part_that_the_page_names_is_in_the_template():
    ids = {cell["id"] for cell in nbformat.read(ROOT / TEMPLATE, as_version=4).cells}
    table = PAGE.partition("## The parts of a lesson")[2].partition("\n\n**")[0]
    parts = re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE)
    assert parts == contract.OPENING and {*parts, "measure"} <= ids


def test_the_page_s_own_code_runs(monkeypatch):
    """But for the page model, which test_own_widget.py tries."""
    monkeypatch.setattr(exercises, "_OWN", {})
    monkeypatch.setattr(exploring, "_spent", 0)
    monkeypatch.setenv("QWENLAB_PAGE", "1")
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names = {}
    for block in blocks:
        if "page_model" not in block:
            exec(block, names)
    assert teach.check("count-pads", names["count_pads"]).ok
