"""Sphinx extension for the book: what a page says to screen readers, and no script that it doesn't
need.

- The bar of a folded cell is announced by its title. myst-nb gives all of them the label "Toggle
  hidden content", which hides the title from a screen reader.
- A page with a widget begins with a link to it, seen when the keyboard reaches it, past the terms
  and folded cells in front.
- A displayed formula can scroll on a narrow screen, so the keyboard reaches it.
- MathJax is loaded by pages with a formula only. Sphinx also counts the formulas in forms of an
  output that the page doesn't show.
"""

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

SAME_FOR_ALL = ' aria-label="Toggle hidden content"'
FORMULA = 'class="math'
WIDGET = re.compile(r'<div class="qwl qwl-(page|explore)"')
SKIP = '<a class="qwl-skip" href="#first-widget">Skip to the first picture with controls</a>'
TARGET = '<span id="first-widget" tabindex="-1"></span>'
DISPLAYED = '<div class="math notranslate nohighlight"'


def setup(app: "Sphinx") -> dict[str, bool]:
    app.connect("html-page-context", repair)
    app.connect("html-page-context", drop_mathjax, priority=900)  # after it was added
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def repair(_app: "Sphinx", _page: str, _template: str, context: dict, *_: object) -> None:
    if "body" in context:
        body = context["body"].replace(SAME_FOR_ALL, "")
        body = body.replace(DISPLAYED, f'{DISPLAYED} tabindex="0"')
        first = WIDGET.search(body)
        if first:
            place = first.start()
            body = f"{SKIP}{body[:place]}{TARGET}{body[place:]}"
        context["body"] = body


def drop_mathjax(_app: "Sphinx", _page: str, _template: str, context: dict, *_: object) -> None:
    if FORMULA in context.get("body", ""):
        return
    scripts = context["script_files"]
    scripts[:] = [script for script in scripts if not loads_mathjax(script)]


def loads_mathjax(script: object) -> bool:
    """Whether a script is MathJax, or sets it up."""
    attributes = getattr(script, "attributes", {})
    text = f"{getattr(script, 'filename', '')} {attributes.get('body', '')}"
    return "mathjax" in text.lower()
