"""Sphinx extension for the book: a folded cell is announced by its own title.

Colab shows the title of a cell whose first line is `# @title ...`. On the page the same words stand
on the bar that unfolds the cell, where myst-nb would write "Show the code".
"""

from typing import TYPE_CHECKING

from docutils import nodes

if TYPE_CHECKING:
    from sphinx.application import Sphinx

TITLE = "# @title "


def setup(app: "Sphinx") -> dict[str, bool]:
    app.connect("doctree-read", name_folds)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def name_folds(_app: "Sphinx", doctree: nodes.document) -> None:
    """Gives each folded cell its title, unless its metadata say what stands on its bar."""
    for cell in doctree.findall(nodes.container):
        if "prompt_show" not in cell or "mystnb" in cell.get("cell_metadata", {}):
            continue
        source = next(iter(cell.findall(nodes.literal_block)), None)
        if source is None:
            continue
        first_line = source.astext().split("\n", 1)[0]
        if first_line.startswith(TITLE):
            cell["prompt_show"] = first_line.removeprefix(TITLE)
            cell["prompt_hide"] = f"Hide: {cell['prompt_show']}"
