"""Cells of a lesson, run in a test one by one, as they stand or with a piece replaced."""

import re
from pathlib import Path

import nbformat
import pytest
from bs4 import BeautifulSoup
from executed import executed, text_of
from helpers import FULL

from qwenlab.bench.timing import alternate
from qwenlab.teach import explore, exploring

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


RIGHT = "same as alone"
WRONG = "DIFFERENT"


def verdicts(text):
    """What a cell printed of each row: RIGHT or WRONG."""
    return re.findall(f"{RIGHT}|{WRONG}", text)


def signs(text):
    """The same as one string: "=" where a row is as alone, "-" where it is different."""
    return "".join("=" if verdict == RIGHT else "-" for verdict in verdicts(text))


def numbers(pattern, text):
    """What the group of `pattern` finds in a text, as floats."""
    return [float(found.replace(",", "")) for found in re.findall(pattern, text)]


def code_cells(name):
    """The source of each code cell of a notebook, by the cell's id. Below full count each case
    is timed once, without a warm-up: what a clock says is not tested."""
    cells = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4).cells
    sources = {cell["id"]: cell.source for cell in cells if cell.cell_type == "code"}
    return sources if FULL else {cell: timed_once(source) for cell, source in sources.items()}


def asked(name, exercise, **names):
    """What the Python code defines that the text of an exercise shows, a colleague's for example.

    names: what the code finds there already.
    """
    cells = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4).cells
    (text,) = [cell.source for cell in cells if cell["id"] == f"exercise-{exercise}"]
    exec(re.search(r"```python\n(.+?)```", text, re.DOTALL)[1], names)
    return names


def timed_once(source):
    imported = r"^(from qwenlab\.bench\.timing import .*\balternate\b.*)$"
    return re.sub(
        imported,
        r"\1\nfrom lesson_cells import alternate_once as alternate",
        source,
        flags=re.MULTILINE,
    )


def alternate_once(run, cases, repeats, **options):
    return alternate(run, cases, 1, **{**options, "warm_up": 0})


def say(lesson, cell, capsys, *changes):
    """Run a cell after replacing pieces of its source; what it prints.

    lesson: (sources, first names).
    """
    sources, names = lesson
    source = sources[cell]
    for old, new in changes:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    capsys.readouterr()
    exec(source, dict(names))
    return capsys.readouterr().out


def shown(name, cell):
    """What a lesson's page shows of a cell, as text."""
    for kept in executed(NOTEBOOKS / f"{name}.ipynb").cells:
        if kept["id"] == cell:
            return text_of(kept)
    raise KeyError(cell)


class Lesson:
    """A lesson's code cells, run by their id in one namespace."""

    def __init__(self, name, until):
        self.name = name
        self.sources = code_cells(name)
        self.widgets = []
        self.names = {"record": self.record}
        for cell, source in self.sources.items():
            exec(source.replace("\nexplore(", "\nrecord("), self.names)
            if cell == until:
                break

    def record(self, draw, **controls):
        self.widget = explore(draw, **controls)
        self.controls = controls
        self.widgets.append((self.widget, controls))

    def say(self, cell, capsys, *changes):
        """Run a cell after replacing pieces of its source; what it prints."""
        source = self.sources[cell]
        for old, new in changes:
            assert source.count(old) == 1, old
            source = source.replace(old, new)
        capsys.readouterr()
        exec(source, dict(self.names))
        assert self.names["model"].attention == "sdpa"
        return capsys.readouterr().out

    def shown(self, cell):
        """The same as `say` without running the cell again."""
        return shown(self.name, cell)


def lesson_of_a_page(name, until):
    """A lesson run as for the website: the widgets hold all of their states."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QWENLAB_PAGE", "1")
        patch.setattr(exploring, "_spent", 0)
        return Lesson(name, until=until)


def hero_pictures(name):
    """`pictures` of a lesson's first widget, as the executed page holds them."""
    (hero,) = [cell for cell in executed(NOTEBOOKS / f"{name}.ipynb").cells if cell["id"] == "hero"]
    html = "".join(output.get("data", {}).get("text/html", "") for output in hero.outputs)
    return pictures(html)


def pictures(html):
    """Every state that a widget's page holds, in order, as (picture, tables).

    A table is the texts of its cells, row by row.
    """
    open_html = html.replace("<template>", "<section>").replace("</template>", "</section>")
    root = BeautifulSoup(open_html, "html.parser").find(class_="qwl-explore")
    found = []  # a template would hide its text
    for picture in (root.find(class_="qwl-state"), *root.find_all("section")):
        tables = picture.find_all("table")
        found.append(
            (
                picture,
                [
                    [[td.text for td in tr.find_all("td")] for tr in t.tbody.find_all("tr")]
                    for t in tables
                ],
            )
        )
    return found
