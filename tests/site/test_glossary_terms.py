"""Terms of the glossary in the site: linked once a page, in prose only, with their definition."""

import re
import subprocess
import sys

import nbformat
import pytest
from browser import DESK, TELEPHONE, open_page
from site_files import ROOT, elements

GLOSSARY = """---
forms:
  decode: [decoding]
only_on:
  memory: [own]
---
# Glossary

```{glossary}
padding
  Filler tokens, as long as it takes. A second sentence.

left padding
  Padding in front, which is a longer term with a shorter one inside.

padding side
  Left or right.

decode
  One token, e.g. an id, for each row.

query
  What a position asks with.

memory
  A table.
```
"""
PAGE = """# About decode and padding

**Decode in bold.** See [the query](https://example.org) and `decode`, then ungraded, decoded-twice
and re-decode.

```python
decode = "padding"
```

| decode | padding |
|---|---|
| query | memory |

*First decoding*, then decode. The padding side is left. Left
padding comes before padding, and left-padding again. Memory, the QUERIES and the query.
"""
CONF = f"""
extensions = ["myst_nb", "qwenlab.teach.glossary_terms"]
nb_execution_mode = "off"
html_theme = "sphinx_book_theme"
html_context = {{"default_mode": "auto"}}
html_static_path = [{str(ROOT / "_static")!r}]
html_css_files = ["custom.css"]
html_js_files = ["terms.js"]
"""


def build(folder):
    command = [sys.executable, "-m", "sphinx", "-W", "-n", "-q", str(folder), str(folder / "html")]
    return subprocess.run(command, capture_output=True, text=True, timeout=1800, encoding="utf-8")


def write_book(folder, glossary=GLOSSARY):
    """A glossary, a page of prose, a page where "memory" is a term, and a notebook."""
    (folder / "conf.py").write_text(CONF, encoding="utf-8")
    (folder / "glossary.md").write_text(glossary, encoding="utf-8")
    (folder / "page.md").write_text(PAGE, encoding="utf-8")
    (folder / "own.md").write_text("# Own\n\nA memory, and memories.\n", encoding="utf-8")
    (folder / "index.md").write_text(
        "# Book\n\n```{toctree}\npage\nown\ncells\nglossary\n```\n", encoding="utf-8"
    )
    cell = nbformat.v4.new_code_cell("print('decode')")
    cell.outputs = [
        nbformat.v4.new_output("stream", text="decode\n"),
        nbformat.v4.new_output("display_data", {"text/markdown": "decode", "text/plain": "x"}),
    ]
    cells = [nbformat.v4.new_markdown_cell("# Cells"), cell]
    cells.append(nbformat.v4.new_markdown_cell("> A query in a box."))
    language = {"name": "python", "pygments_lexer": "ipython3"}
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"language_info": language})
    nbformat.write(notebook, folder / "cells.ipynb")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("terms")
    write_book(folder)
    run = build(folder)
    assert run.returncode == 0, run.stderr
    return folder / "html"


def terms(page):
    """(word, address, definition) of each linked term of a built page, in order."""
    words = re.findall(r"<a [^>]*qwl-term[^>]*>([^<]*)</a>", page.read_text(encoding="utf-8"))
    links = [a for _, a in elements(page) if "qwl-term" in (a.get("class") or "")]
    return [
        (" ".join(word.split()), link["href"], link["aria-description"])
        for word, link in zip(words, links, strict=True)
    ]


def test_the_first_occurrence_in_prose_is_linked_and_no_other(site):
    assert terms(site / "page.html") == [
        ("decoding", "glossary.html#term-decode", "One token, e.g. an id, for each row."),
        ("padding side", "glossary.html#term-padding-side", "Left or right."),
        (
            "Left padding",
            "glossary.html#term-left-padding",
            "Padding in front, which is a longer term with a shorter one inside.",
        ),
        ("padding", "glossary.html#term-padding", "Filler tokens, as long as it takes."),
        ("QUERIES", "glossary.html#term-query", "What a position asks with."),
    ]
    before = (site / "page.html").read_text(encoding="utf-8").partition("qwl-term")[0]
    assert "First" in before and "<table" in before  # nothing above the last paragraph is linked


def test_cells_and_the_glossary_itself_have_no_linked_terms(site):
    assert [word for word, *_ in terms(site / "cells.html")] == ["query"]
    assert terms(site / "glossary.html") == []


def test_an_everyday_word_is_linked_on_its_own_pages_only(site):
    assert [word for word, *_ in terms(site / "own.html")] == ["memory"]


def test_every_link_leads_to_an_entry(site):
    entries = {attributes.get("id") for _, attributes in elements(site / "glossary.html")}
    for page in site.glob("*.html"):
        for _, address, _ in terms(page):
            assert address.removeprefix("glossary.html#") in entries


def test_definitions_are_no_text_of_the_page(site):
    """Else the search would find every definition on every page."""
    page = (site / "page.html").read_text(encoding="utf-8")
    assert "as long as it takes" not in re.sub("<[^>]*>", "", page)


def test_a_name_that_is_no_term_fails_the_build(tmp_path):
    write_book(tmp_path, GLOSSARY.replace("  memory: [own]", "  memories: [own]"))
    run = build(tmp_path)
    assert run.returncode != 0 and "'memories', which is no term" in run.stderr


@pytest.mark.parametrize("width", (TELEPHONE, DESK))
@pytest.mark.parametrize("theme", ("light", "dark"))
def test_the_definition_is_shown_on_focus_within_the_window(chromium, site, width, theme):
    page, complaints = open_page(
        chromium,
        (site / "page.html").as_uri(),
        viewport={"width": width, "height": 800},
        color_scheme=theme,
    )
    shown = """(term) => {
        const style = getComputedStyle(term, "::after");
        return style.content === "none" ? "" : style.content;
    }"""
    term = page.locator(".qwl-term", has_text="Left")
    assert term.evaluate(shown) == ""
    page.keyboard.press("Tab")  # from now on focus comes from the keyboard
    term.focus()
    assert "Padding in front" in term.evaluate(shown)
    across = page.evaluate("document.documentElement.scrollWidth")
    assert across <= width
    page.keyboard.press("Escape")
    assert term.evaluate(shown) == ""
    assert complaints == []
    page.close()


def test_a_first_tap_shows_the_definition_and_a_second_follows_the_link(chromium, site):
    page, _ = open_page(
        chromium,
        (site / "page.html").as_uri(),
        viewport={"width": TELEPHONE, "height": 800},
        has_touch=True,
        is_mobile=True,
    )
    term = page.locator(".qwl-term").first
    term.tap()
    assert page.url.endswith("page.html") and term.evaluate("t => t.matches('.qwl-term-open')")
    term.tap()
    page.wait_for_url("**/glossary.html#term-decode")
    page.close()
