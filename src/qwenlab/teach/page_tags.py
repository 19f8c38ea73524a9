"""Sphinx extension for the book: what a page tells search engines and those who share its address,
and the page that a server shows for a wrong address.

- A page's first paragraph is its description. In a lesson that is the claim.
- The picture of a preview needs a complete address, so there is one only if `make repository` has
  set the site's own (`html_baseurl`).
- 404.html is shown at addresses of any depth, so its links begin with the path of the site's own
  address, or with / if none is set.
"""

import shutil
from html import escape
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from docutils import nodes

if TYPE_CHECKING:
    from sphinx.application import Sphinx

LONGEST = 200  # characters of a description
PICTURE = "book/images/lesson.png"  # of the README too; see scripts/readme_picture.py
PICTURE_TEXT = "A page of the lesson on left padding: a small model runs in it."
ASIDE = (nodes.Admonition, nodes.container, nodes.table, nodes.list_item)
NOT_FOUND = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex">
<title>No such page: {title}</title>
<link rel="icon" href="data:,">
<style>
:root {{ color-scheme: light dark; }}
html {{ background: light-dark(#ffffff, #14181e); color: light-dark(#1c2127, #e8ebee); }}
body {{ font: 1.1rem/1.6 system-ui, sans-serif; margin: auto; max-width: 42rem; padding: 1rem; }}
a {{ color: light-dark(#0a5f99, #7cc4f5); }}
li {{ margin: 0.2rem 0; }}
</style>
<script>
// The theme that the reader chose on the site's other pages.
const theme = localStorage.getItem("theme");
if (theme === "light" || theme === "dark") document.documentElement.style.colorScheme = theme;
</script>
</head>
<body>
<h1>There is no page at this address</h1>
<p>It may have moved. <a href="{root}{first}">The first page</a> shows the way through the course,
and you can <a href="{root}search.html">search</a> it.</p>
<ol>
{pages}
</ol>
</body>
</html>
"""


def setup(app: "Sphinx") -> dict[str, bool]:
    app.connect("html-page-context", add_tags)
    app.connect("build-finished", copy_picture)
    app.connect("build-finished", write_not_found)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def description(doctree: nodes.document) -> str:
    """The first paragraph that belongs to the page's own text."""
    for paragraph in doctree.findall(nodes.paragraph):
        above = paragraph.parent
        while above is not None and not isinstance(above, ASIDE):
            above = above.parent
        if above is None:
            return shorten(paragraph.astext(), LONGEST, placeholder=" …")
    return ""


def add_tags(
    app: "Sphinx", page: str, _template: str, context: dict, doctree: nodes.document | None
) -> None:
    """Adds the tags of a page that has been written by hand, so not those of the search."""
    if doctree is None:
        return
    text = description(doctree)
    course = app.config.html_title
    title = app.env.titles[page].astext()
    tags = [("property", "og:type", "website"), ("property", "og:site_name", course)]
    tags += [("property", "og:title", title), ("property", "og:description", text)]
    if app.config.html_baseurl:
        base = app.config.html_baseurl.removesuffix("/")
        address = app.builder.get_target_uri(page)
        tags += [("property", "og:url", f"{base}/{address}")]
        tags += [("property", "og:image", f"{base}/_static/{Path(PICTURE).name}")]
        tags += [("property", "og:image:alt", PICTURE_TEXT)]
        tags += [("name", "twitter:card", "summary_large_image")]
    tags = [("name", "description", text), *tags]
    lines = [f'<meta {kind}="{name}" content="{escape(value)}">' for kind, name, value in tags]
    context["metatags"] = "\n".join([context.get("metatags", ""), *lines, ""])


def copy_picture(app: "Sphinx", error: Exception | None) -> None:
    picture = Path(app.srcdir) / PICTURE
    if error is None and app.builder.format == "html" and picture.is_file():
        shutil.copy(picture, Path(app.outdir) / "_static")


def write_not_found(app: "Sphinx", error: Exception | None) -> None:
    """Writes 404.html, with a link to each lesson."""
    if error is not None or app.builder.format != "html":
        return
    root = urlsplit(app.config.html_baseurl).path.removesuffix("/") + "/"
    pages = []
    for page in sorted(name for name in app.env.found_docs if name.startswith("notebooks/")):
        address = f"{root}{app.builder.get_target_uri(page)}"
        title = app.env.titles[page].astext()
        pages.append(f'<li><a href="{escape(address)}">{escape(title)}</a></li>')
    text = NOT_FOUND.format(
        title=escape(app.config.html_title),
        root=escape(root),
        first=app.builder.get_target_uri(app.config.root_doc),
        pages="\n".join(pages),
    )
    (Path(app.outdir) / "404.html").write_text(text, encoding="utf-8")
