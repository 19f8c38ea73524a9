"""What every lesson keeps: a valid notebook without outputs, and the same seven parts."""

import json
import re
from pathlib import Path

import nbformat
import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def sources(path, kind):
    return ["".join(cell["source"]) for cell in read(path)["cells"] if cell["cell_type"] == kind]


def test_there_are_notebooks():
    assert NOTEBOOKS


@each_notebook
def test_is_a_valid_notebook_for_python3_without_outputs(path):
    notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) >= (4, 5)  # cell ids
    assert notebook.metadata.kernelspec.name == "python3"
    assert "widgets" not in notebook.metadata
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == [] and cell.execution_count is None, cell.id


@each_notebook
def test_cell_ids_are_names_that_stay(path):
    ids = [cell["id"] for cell in read(path)["cells"]]
    assert len(set(ids)) == len(ids)
    for name in ids:
        assert re.fullmatch(r"[a-z][a-z0-9-]*", name) and not re.fullmatch(r"[0-9a-f]{8}", name), name


@each_notebook
def test_file_name_has_a_number_and_hyphens_and_is_on_the_site(path):
    assert re.fullmatch(r"\d\d(-[a-z0-9]+)+", path.stem)
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    files = [chapter["file"] for part in toc["parts"] for chapter in part["chapters"]]
    assert f"notebooks/{path.stem}" in files


FRAME = ["See it fail", "Look at it", "Mend it", "Measure it", "Exercises", "Break it", "Recap"]


@each_notebook
def test_a_lesson_has_the_frame(path):
    """What lessons have in common, so that a reader knows where things are (book/welcome.md says it to them)."""
    cells = read(path)["cells"]
    prose = "\n\n".join(sources(path, "markdown"))
    title = "".join(cells[0]["source"])
    assert cells[0]["cell_type"] == "markdown" and re.match(r"# \S.*\n\n\*\*.+\*\*\n", title)  # title and claim
    for part in ("New in the library", "you can\n", "*Before you start:*", "*Time:*"):
        assert part in title, part
    assert len(re.findall(r"^- \*\*\w+\*\*", title, re.MULTILINE)) == 3  # three verbs
    assert re.findall(r"^## (.*)", prose, re.MULTILINE) == FRAME
    assert "### Where this loses" in prose[prose.index("## Measure it") : prose.index("## Exercises")]
    assert "<summary>For instructors</summary>" in prose[prose.index("## Recap") :]
    recap = prose[prose.index("## Recap") : prose.index("*Next:*")]
    assert len(re.findall(r"^\d\. ", recap, re.MULTILINE)) == 5
    exercises = re.findall(r"\{exercise\}", prose)
    assert 2 <= len(exercises) <= 3
    assert prose.count("<summary>Hint</summary>") == len(exercises)


@each_notebook
def test_a_lesson_has_its_cells(path):
    """One line picks the checkpoint; a widget; checks with folded solutions; a cell to break and one to restore."""
    cells = [cell for cell in read(path)["cells"] if cell["cell_type"] == "code"]
    code = ["".join(cell["source"]) for cell in cells]
    tags = [cell["metadata"].get("tags", []) for cell in cells]
    assert re.search(r'^CHECKPOINT = "tiny"', code[1], re.MULTILINE)  # in the first cell after the install cell
    assert any(re.search(r"^explore\(", source, re.MULTILINE) for source in code)
    stubs = {name for source in code for name in re.findall(r'check\("([\w-]+)", my_', source)}
    solved = {
        name
        for source, marks in zip(code, tags, strict=True)
        if "hide-cell" in marks
        for name in re.findall(r'check\("([\w-]+)", \w+_solution', source)
    }
    assert stubs and stubs == solved
    assert sum("break" in marks for marks in tags) >= 1
    assert sum("restore" in marks for marks in tags) == 1
