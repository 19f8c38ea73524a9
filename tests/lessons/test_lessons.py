"""Every lesson: it keeps the contract, it runs alone and offline, and any cell may run again.

A lesson runs once for its page and these tests. At full count it runs once more by itself, with every
cell again, twice, in random order.
"""

import json
import random
import re

import contract
import nbformat
import pytest
import torch
from executed import NOTEBOOKS, executed, run, text_of
from nbclient.exceptions import CellExecutionError

from qwenlab.bench.timing import machine_name

MOST_MEMORY = 1.5e9
MOST_WIDTH = 79  # characters of a code cell that the page shows without scrolling

lessons = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path):
    notebook = nbformat.read(path, as_version=4)
    return notebook, [cell for cell in notebook.cells if cell.cell_type == "code"]


def checks(codes):
    """(exercise, the reader's name, the solution's name) for each stub."""
    stubs = [re.findall(r'check\("([\w-]+)", my_(\w+)\)', cell.source) for cell in codes]
    return [
        (exercise, f"my_{name}", f"{name}_solution") for found in stubs for exercise, name in found
    ]


@lessons
def test_the_file_is_clean(path):
    notebook, codes = read(path)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    kept = [cell["id"] for cell in codes if cell.outputs or cell.execution_count is not None]
    assert not kept and "widgets" not in notebook.metadata, (
        f"outputs are kept in {kept}: clear them before you save (Edit, Clear Outputs of All Cells)"
    )
    ids = [cell["id"] for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]]
    assert len(ids) == len(set(ids)), "two cells have the same id"
    assert codes[0]["id"] == "install", "the first code cell is not the install cell"
    for cell in codes[1:]:
        wide = [line for line in cell.source.splitlines() if len(line) > MOST_WIDTH]
        assert not wide, f"{cell['id']}: longer than {MOST_WIDTH} characters: {wide}"


@lessons
def test_it_keeps_the_contract(path):
    found = contract.complaints(path)
    assert not found, "\n" + "\n".join(found)


def test_no_two_lessons_share_a_heading():
    assert contract.shared_headings(NOTEBOOKS) == []


def test_every_fact_with_a_source_still_stands_in_its_lesson():
    assert contract.stale_sources(NOTEBOOKS) == []


@lessons
def test_its_markdown_is_plain(path):
    """Roles and directives would be shown raw in JupyterLab, Colab and VS Code."""
    assert contract.plain_markdown(read(path)[0]) == []


PROBE = """
import json, torch
from qwenlab.bench.workloads import peak_memory
from qwenlab.teach import check
print("probe" + json.dumps({
    "memory": peak_memory(torch.device("cpu")),
    "figures": len(__import__("sys").modules["matplotlib.pyplot"].get_fignums())
               if "matplotlib.pyplot" in __import__("sys").modules else 0,
    "stubs": [repr(check(name, globals()[mine])) for name, mine, _ in STUBS],
    "solved": [check(name, globals()[solution]).ok for name, _, solution in STUBS],
}))
"""


@lessons
def test_every_cell_ran_and_every_solution_is_right(path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    codes = executed(path).cells
    assert [cell.source for cell in codes] == [cell.source for cell in read(path)[1]]
    assert all(cell.execution_count for cell in codes)
    assert [
        output for cell in codes for output in cell.outputs if output.output_type == "error"
    ] == []
    for exercise, mine, solution in checks(codes):
        (stub,) = [text_of(cell) for cell in codes if f'check("{exercise}", {mine})' in cell.source]
        assert f"{exercise}: not yet" in stub
        (solved,) = [
            text_of(cell) for cell in codes if f'check("{exercise}", {solution})' in cell.source
        ]
        assert f"✓ {exercise}: right on all" in solved


@lessons
def test_what_a_clock_said_is_printed_with_its_circumstances(path):
    """By the cell that measured or the one below it: machine, dtype, repeats and spread."""
    kept = executed(path).cells
    for cell, below in zip(kept, [*kept[1:], None], strict=True):
        if not re.search(r"\balternate\(", cell.source):
            continue
        said = text_of(cell) + (text_of(below) if below else "")
        machine = machine_name(torch.device("cpu")).rpartition(",")[0]
        for due in (re.escape(machine), "float32|bfloat16", "repeat", r"\d(–| to )\d"):
            assert re.search(due, said), f"{cell['id']} does not print {due}: {said}"


@pytest.mark.full
@lessons
def test_any_cell_runs_again_in_any_order(path, monkeypatch):
    monkeypatch.delenv("QWENLAB_PAGE", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    notebook, codes = read(path)
    rng = random.Random(path.stem)
    again = rng.sample(codes * 2, len(codes) * 2)
    probe = nbformat.v4.new_code_cell(PROBE.replace("STUBS", repr(checks(codes))))
    copies = [nbformat.v4.new_code_cell(cell.source, metadata=cell.metadata) for cell in again]
    notebook.cells = [*codes, *copies, probe]
    try:
        run(notebook, path)
    except CellExecutionError as error:
        pytest.fail(
            "a cell fails when it runs again, after others: does it change what it starts from, or "
            f"do two cells give one name to different things?\n{error}"
        )
    found = json.loads(text_of(notebook.cells[-1]).split("probe")[1])
    assert found["memory"] < MOST_MEMORY, f"{found['memory'] / 1e9:.2f} GB"
    assert found["figures"] == 0
    assert all("not yet" in answer for answer in found["stubs"]) and all(found["solved"])
