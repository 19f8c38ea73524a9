"""What the cells of a lesson gave when its page was made: kept by `make book`, else run here, once."""

import os
from functools import cache
from pathlib import Path

import nbformat
from jupyter_cache.cache.main import JupyterCacheBase
from nbclient import NotebookClient

import qwenlab
from qwenlab.teach.sphinx_page import library_hash

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
KEPT = ROOT / "_build" / ".jupyter_cache"
MOST_SECONDS = (
    300  # a cell, as in _config.yml; a lesson takes about 30 s in all, and a machine may be busy
)


@cache
def executed(path: Path) -> nbformat.NotebookNode:
    """The lesson's code cells with their outputs, as its page shows them."""
    notebook = nbformat.read(path, as_version=4)
    kept = kept_by_the_book(notebook)
    if kept is not None:
        return kept
    before = os.environ.get("QWENLAB_PAGE")
    os.environ["QWENLAB_PAGE"] = "1"
    try:
        run(notebook, path)
    finally:
        if before is None:
            del os.environ["QWENLAB_PAGE"]
        else:
            os.environ["QWENLAB_PAGE"] = before
    notebook.cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return notebook


def kept_by_the_book(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode | None:
    """None where the book has not been built since the library or the lesson's code has changed,
    or was built with what this run is without."""
    library = KEPT / "qwenlab-library"
    if os.environ.get("QWENLAB_WITHOUT"):
        return None
    if not library.is_file() or library.read_text(encoding="utf-8") != hash_of_this_library():
        return None
    _, key = JupyterCacheBase(KEPT).create_hashed_notebook(notebook)
    path = KEPT / "executed" / key / "base.ipynb"
    return nbformat.read(path, as_version=4) if path.is_file() else None


@cache
def hash_of_this_library() -> str:
    return library_hash(Path(qwenlab.__file__).parent, ROOT / "notebooks")


def run(notebook: nbformat.NotebookNode, path: Path) -> None:
    """Every cell, in a kernel of its own that starts in the lesson's folder."""
    NotebookClient(
        notebook, timeout=MOST_SECONDS, resources={"metadata": {"path": str(path.parent)}}
    ).execute()


def text_of(cell: nbformat.NotebookNode) -> str:
    """All that a cell has printed or shown, as text."""
    texts = []
    for output in cell.outputs:
        texts.append(output.get("text", ""))
        texts.append(output.get("data", {}).get("text/plain", ""))
    return "".join(texts)
