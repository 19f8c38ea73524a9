"""Turns whatever a lesson shows into HTML: our own pictures, matplotlib figures with alt text,
plain strings."""

import base64
import io
import sys
from html import escape
from typing import TYPE_CHECKING, Any

from qwenlab.teach.palette import STYLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Html:
    """A piece of HTML that shows itself; `text` is what a terminal sees."""

    def __init__(self, body: str, text: str) -> None:
        self.body = body
        self.text = text

    def _repr_html_(self) -> str:
        return STYLE + self.body

    def __repr__(self) -> str:
        return self.text


def image(figure: "Figure", alt: str) -> Html:
    """A matplotlib figure as a small PNG with its alt text. The figure is closed, so that figures
    do not pile up."""
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=90, bbox_inches="tight", facecolor="white")
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close(figure)
    width = int.from_bytes(png.getvalue()[16:20], "big")  # in pixels, as every PNG's header has it
    data = base64.b64encode(png.getvalue()).decode()
    shown = f'<img alt="{escape(alt)}" style="--w:{width}" src="data:image/png;base64,{data}">'
    return Html(f'<div class="qwl">{shown}</div>', alt)


def side_by_side(*pictures: Any) -> Html:
    """Several pictures next to each other; they wrap on a narrow screen."""
    body = "".join(f"<div>{bare_html(picture)}</div>" for picture in pictures)
    return Html(f'<div class="qwl qwl-side">{body}</div>', "\n\n".join(map(repr, pictures)))


def bare_html(shown: Any) -> str:
    """The HTML of anything showable, without our style sheet (the caller emits that once).

    Showable: an object with `_repr_html_`, a matplotlib figure, a string (shown as text, line by
    line). Raises TypeError for anything else.
    """
    if isinstance(shown, str):
        return f'<div class="qwl" style="white-space:pre-wrap">{escape(shown)}</div>'
    html = getattr(shown, "_repr_html_", lambda: None)()
    if html is None and hasattr(shown, "savefig"):
        html = image(shown, _alt(shown))._repr_html_()
    if html is None:
        raise TypeError(
            "nothing to show: expected a picture with _repr_html_, a matplotlib figure or a "
            f"string, got {type(shown).__name__}"
        )
    return html.replace(STYLE, "")


def _alt(figure: "Figure") -> str:
    """The figure's titles and axis labels; `image(figure, alt)` gives a better description."""
    words = [figure.get_suptitle()] if hasattr(figure, "get_suptitle") else []
    for axes in figure.axes:
        words += [axes.get_title(), axes.get_ylabel(), axes.get_xlabel()]
    return "Figure: " + ", ".join(filter(None, words))
