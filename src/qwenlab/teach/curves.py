"""`curve`: medians with their spread on log axes, labelled at the points, above a folded table of
the numbers."""

import io
import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from itertools import chain, pairwise
from typing import TYPE_CHECKING

import numpy as np

from qwenlab.teach import palette
from qwenlab.teach.pictures import Html

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Point = tuple[float, float, float, float]  # x, median, low, high

# One pair per series, so that colour is never the only signal.
MARKERS = "os^D"
LINES = ("-", "--", ":", "-.")


class Curve(Html):
    """What `curve` returns: shows itself as SVG with a table, prints as the table, and `.figure()`
    is its matplotlib form."""

    def __init__(
        self,
        series: dict[str, list[Point]],
        x: str,
        y: str,
        title: str,
        alt: str,
        log: str,
        labels: bool | Sequence[str],
        y_range: tuple[float, float] | None,
    ) -> None:
        self.series = series
        self.x = x
        self.y = y
        self.title = title
        self.alt = alt
        self.log = log
        self.labels = labels
        self.y_range = y_range
        super().__init__(self._body(), "\n".join(map("  ".join, self.table())))

    def table(self) -> list[list[str]]:
        """The numbers as text, the header first: one line per x, one column per series."""
        texts = {x: [""] * len(self.series) for x in self._xs()}
        for column, points in enumerate(self.series.values()):
            for x, *spread in points:
                texts[x][column] = _cell(*spread)
        lines = [[self.x or "x", *self.series]]
        for x, cells in texts.items():
            lines.append([number(x), *cells])
        return lines

    def _xs(self) -> list[float]:
        return sorted({x for x, *_ in chain.from_iterable(self.series.values())})

    def figure(self) -> "Figure":
        """The picture as a matplotlib figure (light palette), for slides and print."""
        from matplotlib.pyplot import close, subplots
        from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

        # The series with the highest median has its labels above the points.
        highest = max(self.series, key=lambda name: np.array(self.series[name])[:, 1].max())
        figure, axes = subplots(figsize=(5.6, 3.3), layout="constrained")
        quiet = {"color": palette.LIGHT["muted"], "fontsize": 9}
        lowest = min(point[2] for point in chain.from_iterable(self.series.values()))
        # What is never negative has no negative ticks.
        plain = FuncFormatter(lambda value, _: "" if value < 0 <= lowest else number(value))
        for i, (name, points) in enumerate(self.series.items()):
            xs, medians, lows, highs = np.array(points).T
            spread = [medians - lows, highs - medians] if (lows < highs).any() else None
            colour = palette.LIGHT[f"curve-{i}"]
            style = {"color": colour, "marker": MARKERS[i], "linestyle": LINES[i]}
            style |= {"markersize": 5, "capsize": 3}
            axes.errorbar(xs, medians, spread, label=name, clip_on=False, **style)
            offset, side, ends = (5, "bottom", highs) if name == highest else (-5, "top", lows)
            shown = self.labels is True or (self.labels and name in self.labels)
            for x, median, end in zip(xs, medians, ends, strict=True) if shown else ():
                axes.annotate(
                    number(median), (x, end), (0, offset), textcoords="offset points",
                    ha="center", va=side, fontsize=8, color=colour,
                )  # fmt: skip
        for letter, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
            if letter in self.log:
                getattr(axes, f"set_{letter}scale")("log")
                ends = self.y_range if letter == "y" else None
                low, high = ends or axis.get_data_interval()
                wide = high >= 1000 * low  # labels between powers of ten would be too many
                axis.set_major_locator(LogLocator(subs=(1,) if wide else (1, 2, 5)))
                axis.set_minor_locator(NullLocator())
            axis.set_major_formatter(plain)
        xs = self._xs()
        have_room = all(right > 1.3 * left for left, right in pairwise(xs))
        if len(xs) <= 10 and "x" in self.log and have_room:
            axes.xaxis.set_major_locator(FixedLocator(xs))
        axes.margins(0.07, 0.18)
        if self.y_range:
            axes.set_ylim(*self.y_range)
        axes.set_xlabel(self.x, **quiet)
        axes.set_ylabel(self.y, **quiet)
        axes.tick_params(colors=palette.LIGHT["muted"], labelsize=9)
        axes.grid(color=palette.LIGHT["line"], linewidth=0.5)
        axes.spines[:].set_visible(False)
        ink = {"labelcolor": palette.LIGHT["ink"], "fontsize": 9, "frameon": False}
        figure.legend(loc="outside upper left", ncols=2, handlelength=3.5, **ink)
        close(figure)
        return figure

    def _body(self) -> str:
        names, *lines = self.table()
        head = ""
        for name in names:
            head += f'<th scope="col">{escape(name)}</th>'
        rows = []
        for line in lines:
            rows.append("".join(f'<td class="o">{escape(text)}</td>' for text in line))
        return (
            f'<figure class="qwl"><figcaption>{escape(self.title)}</figcaption>'
            '<div class="qwl-box" tabindex="0" role="img" '
            f'aria-label="{escape(self.alt)}">{_svg(self.figure())}</div>'
            '<details><summary>The numbers</summary><div class="qwl-box" tabindex="0" '
            f'role="group" aria-label="{escape(self.title or "The numbers")}"><table '
            f'class="qwl-grid"><thead><tr>{head}</tr></thead>'
            f"<tbody><tr>{'</tr><tr>'.join(rows)}</tr></tbody></table></div></details></figure>"
        )


def curve(
    series: Mapping[str, Sequence[tuple]],
    *,
    x: str = "",
    y: str = "",
    title: str = "",
    alt: str | None = None,
    log: str = "xy",
    labels: bool | Sequence[str] = True,
    y_range: tuple[float, float] | None = None,
) -> Curve:
    """Draws medians over x with their spread as bars.

    series: {name: points}, at most 4, which differ by marker and line style. A point is (x, median,
    low, high), or (x, value) without a spread, or (x, spread) where spread has .median, .low and
    .high, as bench measures them. x, y: what the axes show, with units. log: the axes that are
    logarithmic, "xy", "x", "y" or "". labels: write each median at its point; a list of names: only
    for those series. y_range: the ends of the y axis, for pictures that are to be compared
    (default: what the points need). alt: for readers who cannot see it (default: first and last
    point of each).

    Raises ValueError for no points, a spread that does not contain its median, numbers that are not
    finite or outside y_range and, on a log axis, numbers that are not above 0.
    """
    if not 1 <= len(series) <= len(MARKERS):
        raise ValueError(f"curve: {len(series)} series, expected 1 to {len(MARKERS)}")
    checked = {}
    for name, points in series.items():
        checked[name] = sorted(_point(point, name, log) for point in points)
    ends = []
    for name, points in checked.items():
        if not points:
            raise ValueError(f"curve: {name!r} has no points")
        first_x, first, *_ = points[0]
        last_x, last, *_ = points[-1]
        start = f"{number(first)} at {number(first_x)}"
        ends.append(f"{name} goes from {start} to {number(last)} at {number(last_x)}")
    alt = alt or f"{title or 'Curve'}: {y or 'value'} over {x or 'x'}. {'; '.join(ends)}."
    if y_range:
        refuse_what_is_outside(checked, *y_range)
    return Curve(checked, x, y, title, alt, log, labels, y_range)


def refuse_what_is_outside(series: dict[str, list[Point]], bottom: float, top: float) -> None:
    for name, points in series.items():
        for x, _, low, high in points:
            if not bottom <= low <= high <= top:
                raise ValueError(
                    f"curve: {name!r} goes from {low} to {high} at {x}, expected {bottom} to {top}"
                )


def _point(point: Sequence, name: str, log: str) -> Point:
    x, value, *spread = point
    if hasattr(value, "median"):
        spread = [value.low, value.high]
        value = value.median
    low, high = spread or (value, value)
    x, value, low, high = numbers = tuple(map(float, (x, value, low, high)))
    if not all(map(math.isfinite, numbers)) or not low <= value <= high:
        raise ValueError(
            f"curve: {name!r} has {numbers}, expected finite x, median, low, "
            "high with the median between"
        )
    if ("x" in log and x <= 0) or ("y" in log and low <= 0):
        raise ValueError(
            f"curve: {name!r} has {numbers}, but a log axis shows only numbers above 0"
        )
    return numbers


def number(value: float) -> str:
    """12,345 or 12.3 or 0.0123: three significant digits, all of those before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def _cell(median: float, low: float, high: float) -> str:
    """The median, and the spread where there is one."""
    return number(median) + (f" ({number(low)} to {number(high)})" if low < high else "")


def _svg(figure: "Figure") -> str:
    """A figure as small SVG: text stays text, and its colours are the palette's CSS variables,
    light or dark."""
    from matplotlib import rc_context

    file = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "qwenlab"}):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    svg = re.sub(r"\s*\n\s*", " ", file.getvalue())
    # What a page does not need, or must not have: rules for every element, repeated ids.
    dropped = (
        "^.*?(?=<svg)", "(?<=<svg ).*?(?=viewBox)", "<metadata>.*?</metadata>",
        "<style.*?</style>", "<!--.*?-->", r'(?<=<g) id="[\w.]+"', ' clip-path="[^"]*"',
        '(?<=[\\d"]) style="fill: (?!none)[^"]*"(?=/>)', "font-family: [^;]*; ?",
        r' transform="rotate\(-0 [^"]*"', r"(?<=\.\d\d)\d+(?![^<>]*</text>)",
    )  # fmt: skip
    svg = re.sub("|".join(dropped), "", svg)
    if "<g " not in svg:  # groups that hold nothing in common
        svg = re.sub("</?g> ?", "", svg)
    svg = re.sub(r'<path d="[^"]*" style="fill: none"/> ?', "", svg)  # nothing is drawn
    svg = re.sub(r"<clipPath.*?</clipPath>", "", svg)
    svg = re.sub(r"<defs>\s*</defs> ?", "", svg)
    # Markers are filled as well, for every <use> of them.
    svg = re.sub(r'(<path id="m[^>]*style=")stroke: ([^;"]+)', r"\1fill: \2; stroke: \2", svg)
    for name, colour in palette.LIGHT.items():
        if name.startswith(("curve", "muted", "ink", "line")):
            svg = svg.replace(colour, f"var(--qwl-{name})")
    return re.sub(r"(?<=[:;]) (?=[^<>]*/?>)", "", svg)  # in a style
