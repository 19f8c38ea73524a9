"""`heatmap`: a matrix with tokens on its axes and its values readable, as an HTML table or a
matplotlib figure."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from qwenlab.teach import palette
from qwenlab.teach.pictures import Html

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Cell:
    """One cell: its text, its kind (a CSS class of the palette) and, for numbers, a level from 0 to
    100."""

    text: str
    # t token, p pad, a allowed, m masked, n NaN, v number >= 0, g number < 0; steps: see timelines
    kind: str
    level: int = 0

    @property
    def colour(self) -> str:
        if self.kind in palette.KINDS:
            return palette.LIGHT[palette.KINDS[self.kind]]
        return palette.mix(self.level, palette.PLUS if self.kind == "v" else palette.MINUS)


class Heatmap(Html):
    """What `heatmap` returns: shows itself as HTML, prints as text, and `.figure()` is its
    matplotlib form."""

    def __init__(
        self,
        cells: list[list[Cell]],
        rows: list[str],
        columns: list[str],
        title: str,
        alt: str,
        marked: set[tuple[int, int]],
        focus: bool = False,
        faint: Iterable[int] = (),
    ) -> None:
        self.cells = cells
        self.rows = rows
        self.columns = columns
        self.title = title
        self.alt = alt
        self.marked = marked
        self.focus = focus
        self.faint = set(faint)
        super().__init__(self._body(), self._plain())

    def _body(self) -> str:
        head = ""
        for label in self.columns:
            head += f'<th scope="col">{escape(label)}</th>'
        lines = []
        for i, row in enumerate(self.cells):
            faint = ' class="faint"' if i in self.faint else ""
            line = f'<tr{faint}{self._focus(i)}><th scope="row">{escape(self.rows[i])}</th>'
            for j, cell in enumerate(row):
                kind = cell.kind
                style = ""
                if kind in "vg":
                    style = f' style="--v:{cell.level}"'
                    kind += " w" if palette.ink_on(cell.colour) == "#ffffff" else ""
                kind += " x" if (i, j) in self.marked else ""
                line += f'<td class="{kind}"{style}>{escape(cell.text)}</td>'
            lines.append(line + "</tr>")
        return (
            f'<figure class="qwl"><figcaption>{escape(self.title)}</figcaption>'
            f'<div class="qwl-box" tabindex="0" role="group" aria-label="{escape(self.alt)}">'
            f'<table class="qwl-grid{" see" if self.focus else ""}">'
            f'<thead><tr><td class="o"></td>{head}</tr></thead><tbody>{"".join(lines)}'
            "</tbody></table></div></figure>"
        )

    def _focus(self, row: int) -> str:
        """Attributes of a row that mouse, touch and keyboard can pick, with a label for screen
        readers."""
        if not self.focus:
            return ""
        seen = []
        for label, cell in zip(self.columns, self.cells[row], strict=True):
            if cell.kind == "a":
                seen.append(label)
        return (
            f' tabindex="0" aria-label="{escape(self.rows[row])} sees '
            f'{escape(", ".join(seen) or "nothing")}"'
        )

    def _plain(self) -> str:
        table = [["", *self.columns]]
        for label, row in zip(self.rows, self.cells, strict=True):
            table.append([label, *(cell.text for cell in row)])
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [self.title] if self.title else []
        for line in table:
            lines.append("  ".join(map(str.rjust, line, widths)))
        return "\n".join(lines)

    def figure(self) -> "Figure":
        """The same picture as a matplotlib figure (light palette), for slides and print."""
        from matplotlib.patches import Rectangle
        from matplotlib.pyplot import close, subplots

        longest = max(map(len, self.columns))
        for cell in chain.from_iterable(self.cells):
            longest = max(longest, len(cell.text))
        width = 0.25 + 0.09 * longest  # inches per column
        size = (1 + width * len(self.columns), 0.8 + 0.34 * len(self.rows))
        figure, axes = subplots(figsize=size, layout="constrained")
        for i, row in enumerate(self.cells):
            alpha = palette.FAINT if i in self.faint else 1
            for j, cell in enumerate(row):
                if cell.kind == "o":
                    continue
                style = {"edgecolor": palette.LIGHT["line"], "facecolor": cell.colour}
                style |= {"alpha": alpha}
                ink = palette.LIGHT["ink"] if i in self.faint else palette.ink_on(cell.colour)
                style |= {"linestyle": "--"} if cell.kind == "i" else {}
                if cell.kind in palette.HATCHES:
                    hatch, colour = palette.HATCHES[cell.kind]
                    style |= {"hatch": hatch, "edgecolor": palette.LIGHT[colour]}
                if (i, j) in self.marked:
                    style |= {"edgecolor": palette.LIGHT["ink"], "linewidth": 2, "zorder": 2}
                axes.add_patch(Rectangle((j + 0.04, i + 0.06), 0.92, 0.88, **style))
                weight = "bold" if cell.kind == "n" else "normal"
                axes.text(
                    j + 0.5, i + 0.52, _plain_math(cell.text), ha="center", va="center",
                    fontsize=9, family="monospace", color=ink, weight=weight, zorder=3,
                )  # fmt: skip
        height = len(self.rows)
        axes.set(xlim=(0, len(self.columns)), ylim=(height, 0), title=_plain_math(self.title))
        axes.set_xticks(np.arange(len(self.columns)) + 0.5, list(map(_plain_math, self.columns)))
        axes.set_yticks(np.arange(height) + 0.5, list(map(_plain_math, self.rows)))
        axes.tick_params(length=0, labeltop=True, labelbottom=False, colors=palette.LIGHT["muted"])
        axes.spines[:].set_visible(False)
        close(figure)  # so that it shows once, as the cell's value
        return figure


def heatmap(
    values: Any,
    rows: Iterable | None = None,
    columns: Iterable | None = None,
    *,
    title: str = "",
    alt: str | None = None,
    pads: Any = None,
    texts: Any = None,
    marked: Iterable[Sequence[int]] = (),
    faint: Iterable[int] = (),
    focus: bool = False,
    vmax: float | None = None,
) -> Heatmap:
    """Draws a matrix: rows are requests, columns are positions, steps or keys.

    values: (R, C) tensor, array or nested lists. bool: a mask, True (may attend, real) light and
    False dark. int or str: tokens, ids or positions, as filled cells with their text. float:
    numbers on a scale from 0 to the largest absolute value, or to `vmax`, which pictures that are
    compared should share; NaN and -inf are written out, the latter on a dark cell.
    rows, columns: R and C labels (default: 0, 1, 2, ...). pads: (R, C) bool, True = this cell is a
    pad (hatched). texts: (R, C) words that stand in the cells in place of their values, such as why
    a pair is masked. alt: one sentence for readers who cannot see it (default: the title and the
    size). marked: cells (row, column) to outline. faint: rows to draw pale, for orientation. focus:
    the rows of a mask can be hovered, touched or reached by keyboard, and the page outlines what
    such a row may see and underlines those columns (at most 12 columns; other forms show only the
    cells).

    Raises ValueError for anything that is not a matrix, and for the wrong number of labels.
    """
    values = _matrix(values, "values")
    height = len(values)
    width = len(values[0])
    rows = _labels(rows, height, "rows")
    columns = _labels(columns, width, "columns")
    pads = [[False] * width] * height if pads is None else _beside(values, pads, "pads")
    largest = 0
    if any(isinstance(value, float) for value in chain.from_iterable(values)):
        values = [list(map(float, row)) for row in values]
        finite = filter(math.isfinite, chain.from_iterable(values))
        largest = max(map(abs, finite), default=0) if vmax is None else vmax
    cells = []
    for row, pad_row in zip(values, pads, strict=True):
        cells.append([_cell(v, pad, largest) for v, pad in zip(row, pad_row, strict=True)])
    if texts is not None:
        for row, words in zip(cells, _beside(values, texts, "texts"), strict=True):
            row[:] = [replace(cell, text=text) for cell, text in zip(row, words, strict=True)]
    alt = alt or f"{title or 'Heatmap'}: {height} rows, {width} columns."
    return Heatmap(cells, rows, columns, title, alt, set(map(tuple, marked)), focus, faint)


def _cell(value: Any, pad: bool, largest: float) -> Cell:
    if isinstance(value, float):
        if math.isnan(value):
            return Cell("NaN", "n")  # even at a pad: NaN must be seen
        if value == -math.inf:
            return Cell("-inf", "p" if pad else "m")
        share = min(1.0, abs(value) / largest) if largest else 0.0
        level = 100 if value == math.inf else round(100 * share)
        return Cell(_number(value), "p" if pad else "g" if value < 0 else "v", level)
    if isinstance(value, bool):
        return Cell(str(int(value)), "p" if pad else "a" if value else "m")
    return Cell(token_text(str(value)), "p" if pad else "t")


def _number(value: float) -> str:
    if value == 0 or value == math.inf:
        return "0" if value == 0 else "inf"
    if abs(value) < 0.01:
        return f"{value:.1e}"
    return f"{value:.2f}" if abs(value) < 100 else f"{value:.4g}"


def token_text(text: str) -> str:
    """A token's text with newlines and leading spaces made visible."""
    text = text.replace("\n", "⏎").replace("\t", "⇥")
    return "␣" * (len(text) - len(text.lstrip(" "))) + text.lstrip(" ")


def _plain_math(text: str) -> str:
    return text.replace("$", r"\$")


def _matrix(values: Any, name: str) -> list[list]:
    """Tensor, array or nested lists -> lists of Python values, all of one length."""
    shape = getattr(values, "shape", None)
    if shape is not None and len(shape) != 2:
        raise ValueError(
            f"heatmap: {name} must be a matrix, got shape {tuple(shape)}; "
            "pick one, as in mask[0, 0]"
        )
    values = list(map(_listed, _listed(values)))
    if not values or not values[0]:
        raise ValueError(f"heatmap: {name} is empty: there is nothing to draw")
    for i, row in enumerate(values):
        if len(row) != len(values[0]):
            raise ValueError(
                f"heatmap: row {i} of {name} has {len(row)} cells, row 0 has {len(values[0])}"
            )
    return values


def _beside(values: list[list], others: Any, name: str) -> list[list]:
    """A matrix that has an entry for each of the values."""
    others = _matrix(others, name)
    height, width = len(values), len(values[0])
    if (len(others), len(others[0])) != (height, width):
        raise ValueError(
            f"heatmap: {name} is {len(others)} x {len(others[0])}, values are {height} x {width}"
        )
    return others


def _listed(values: Any) -> list:
    return values.tolist() if hasattr(values, "tolist") else list(values)


def _labels(labels: Iterable | None, count: int, name: str) -> list[str]:
    labels = list(map(str, range(count) if labels is None else labels))
    if len(labels) != count:
        raise ValueError(
            f"heatmap: {len(labels)} labels in {name}, but the matrix has {count} {name}"
        )
    return list(map(token_text, labels))
