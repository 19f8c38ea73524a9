"""How anything that a lesson shows becomes HTML: pictures of ours, matplotlib figures with alt
text, plain strings."""

import base64
import io
import sys
from html import escape

from qwenlab.teach.palette import STYLE


class Html:
    """A piece of HTML that shows itself; `text` is what a terminal sees."""

    def __init__(self, body, text):
        self.body = body
        self.text = text

    def _repr_html_(self):
        return STYLE + self.body

    def __repr__(self):
        return self.text


def image(figure, alt):
    """A matplotlib figure as a small PNG that carries its alt text. The figure is closed, so none
    pile up."""
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=90, bbox_inches="tight", facecolor="white")
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close(figure)
    data = base64.b64encode(png.getvalue()).decode()
    return Html(
        f'<div class="qwl"><img alt="{escape(alt)}" src="data:image/png;base64,{data}"></div>', alt
    )


def side_by_side(*pictures):
    """Several pictures next to each other; they wrap on a narrow screen."""
    body = "".join(f"<div>{bare_html(picture)}</div>" for picture in pictures)
    return Html(f'<div class="qwl qwl-side">{body}</div>', "\n\n".join(map(repr, pictures)))


def bare_html(shown):
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


def _alt(figure):
    """What a figure's own titles and axis labels say; better: `image(figure, alt)`."""
    words = [figure.get_suptitle()] if hasattr(figure, "get_suptitle") else []
    for axes in figure.axes:
        words += [axes.get_title(), axes.get_ylabel(), axes.get_xlabel()]
    return "Figure: " + ", ".join(word for word in words if word)
