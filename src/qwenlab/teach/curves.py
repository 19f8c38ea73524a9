"""`curve`: medians with their spread, on log axes, the values at the points, and the numbers folded
beneath."""

import io
import math
import re
from html import escape

import numpy as np

from qwenlab.teach import palette
from qwenlab.teach.pictures import Html

# one pair a series, so that colour is never the only signal
MARKERS = "os^D"
LINES = ("-", "--", ":", "-.")


class Curve(Html):
    """What `curve` returns: shows itself as SVG and a table, prints the table, `.figure()` is the
    matplotlib form."""

    def __init__(self, series, x, y, title, alt, log, labels):
        self.series = series
        self.x = x
        self.y = y
        self.title = title
        self.alt = alt
        self.log = log
        self.labels = labels
        super().__init__(self._body(), "\n".join(map("  ".join, self.table())))

    def table(self):
        """The numbers as lines of text, the header first: one line an x, one column a series."""
        at = []
        for points in self.series.values():
            at.append({x: point for x, *point in points})
        lines = [[self.x or "x", *self.series]]
        for x in sorted(set().union(*at)):
            lines.append([number(x), *(_cell(points.get(x)) for points in at)])
        return lines

    def figure(self):
        """The picture as a matplotlib figure (light palette), for slides and print."""
        from matplotlib.pyplot import close, subplots
        from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

        highest = max(
            self.series, key=lambda name: max(point[1] for point in self.series[name])
        )  # labelled above
        figure, axes = subplots(figsize=(5.6, 3.3), layout="constrained")
        quiet = {"color": palette.LIGHT["muted"], "fontsize": 9}
        plain = FuncFormatter(lambda value, _: number(value))
        for i, (name, points) in enumerate(self.series.items()):
            xs, medians, lows, highs = np.array(points).T
            spread = [medians - lows, highs - medians] if (lows < highs).any() else None
            colour = palette.LIGHT[f"curve-{i}"]
            style = {
                "color": colour,
                "marker": MARKERS[i],
                "linestyle": LINES[i],
                "markersize": 5,
                "capsize": 3,
            }
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
                axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                axis.set_minor_locator(NullLocator())
            axis.set_major_formatter(plain)
        xs = sorted({point[0] for points in self.series.values() for point in points})
        if len(xs) <= 10 and "x" in self.log:
            axes.xaxis.set_major_locator(FixedLocator(xs))
        axes.margins(0.07, 0.18)
        axes.set_xlabel(self.x, **quiet)
        axes.set_ylabel(self.y, **quiet)
        axes.tick_params(colors=palette.LIGHT["muted"], labelsize=9)
        axes.grid(color=palette.LIGHT["line"], linewidth=0.5)
        axes.spines[:].set_visible(False)
        ink = {"labelcolor": palette.LIGHT["ink"], "fontsize": 9, "frameon": False}
        figure.legend(loc="outside upper left", ncols=2, handlelength=3.5, **ink)
        close(figure)
        return figure

    def _body(self):
        head, *lines = self.table()
        head = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
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


def curve(series, *, x="", y="", title="", alt=None, log="xy", labels=True):
    """Draw medians over x with their spread as bars.

    series: {name: points}, at most 4, told apart by marker and line style. A point is (x, median,
    low, high), or
        (x, value) without a spread, or (x, spread) where spread has .median, .low and .high, as
    bench measures them. x, y: what the axes hold, with units. log: the axes that are logarithmic,
    "xy", "x", "y" or "". labels: write each median at its point; a list of names: only for those
    series. alt: for readers who do not see
        it (default: first and last point of each). Raises ValueError for no points, a spread that
    does not hold its median, numbers that are not finite, and on a log axis anything not above 0.
    """
    if not 1 <= len(series) <= len(MARKERS):
        raise ValueError(f"curve: {len(series)} series, expected 1 to {len(MARKERS)}")
    checked = {}
    for name, points in series.items():
        checked[name] = sorted(_point(point, name, log) for point in points)
    series = checked
    if empty := [name for name, points in series.items() if not points]:
        raise ValueError(f"curve: {empty[0]!r} has no points")
    ends = [(name, *points[0][:2], *points[-1][:2]) for name, points in series.items()]
    ends = [
        f"{name} goes from {number(b)} at {number(a)} to {number(d)} at {number(c)}"
        for name, a, b, c, d in ends
    ]
    alt = alt or f"{title or 'Curve'}: {y or 'value'} over {x or 'x'}. {'; '.join(ends)}."
    return Curve(series, x, y, title, alt, log, labels)


def _point(point, name, log):
    x, value, *spread = point
    if hasattr(value, "median"):
        value, *spread = value.median, value.low, value.high
    low, high = spread or (value, value)
    x, value, low, high = numbers = tuple(float(n) for n in (x, value, low, high))
    if not all(map(math.isfinite, numbers)) or not low <= value <= high:
        raise ValueError(
            f"curve: {name!r} has {numbers}, expected finite x, median, low, "
            "high with the median between"
        )
    if ("x" in log and x <= 0) or ("y" in log and low <= 0):
        raise ValueError(f"curve: {name!r} has {numbers}, a log axis holds only what is above 0")
    return numbers


def number(value):
    """12,345 or 12.3 or 0.0123: three digits that count."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def _cell(point):
    """Median, and the spread where there is one."""
    if point is None:
        return ""
    median, low, high = point
    return number(median) + (f" ({number(low)} to {number(high)})" if low < high else "")


def _svg(figure):
    """A figure as light SVG: text stays text, and its colours are the palette's CSS variables,
    light or dark."""
    from matplotlib import rc_context

    file = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "qwenlab"}):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    svg = re.sub(r"\s*\n\s*", " ", file.getvalue())
    # what a page does not need, or must not have: rules for every element, ids that repeat
    dropped = (
        "^.*?(?=<svg)", "(?<=<svg ).*?(?=viewBox)", "<metadata>.*?</metadata>",
        "<style.*?</style>", "<!--.*?-->", r'(?<=<g) id="[\w.]+"', ' clip-path="[^"]*"',
        '(?<=[\\d"]) style="fill: (?!none)[^"]*"(?=/>)', "font-family: [^;]*; ?",
        r' transform="rotate\(-0 [^"]*"', r"(?<=\.\d\d)\d+(?![^<>]*</text>)",
    )  # fmt: skip
    svg = re.sub("|".join(dropped), "", svg)
    svg = re.sub(
        r'(<path id="m[^>]*style=")stroke: ([^;"]+)', r"\1fill: \2; stroke: \2", svg
    )  # for every <use>
    for name, colour in palette.LIGHT.items():
        svg = (
            svg.replace(colour, f"var(--qwl-{name})")
            if name.startswith(("curve", "muted", "ink", "line"))
            else svg
        )
    return svg
