"""Sphinx extension for the book: links the first occurrence of each glossary term on a page to its
entry, with a tooltip that shows the first sentence of the definition.

Sources stay plain words, so notebooks read well in JupyterLab and Colab too. Only prose is
searched: no headings, code, bold text, links, captions, tables or outputs of cells, and not the
glossary itself. A longer term wins over a shorter one inside it, case doesn't matter, and plurals
are recognised. The front matter of the glossary's page says the rest:

    forms: # other words for a term
      decode: [decodes, decoding, decoded]
    only_on: # terms that are everyday words too: linked on these pages only
      memory: [notebooks/09-linear-attention]

The definition is an attribute of the link and not text of the page, so that neither the search nor
a copied paragraph contains it. _static/custom.css draws it; _static/terms.js adds touch and Escape.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from docutils import nodes
from sphinx import addnodes
from sphinx.util import logging

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment
    from sphinx.writers.html5 import HTML5Translator

# A cell with its outputs is a container; code blocks, comments and raw HTML are fixed text.
NOT_PROSE = (
    nodes.title,
    nodes.rubric,
    nodes.term,
    nodes.strong,
    nodes.reference,
    nodes.literal,
    nodes.math,
    nodes.caption,
    nodes.table,
    nodes.container,
    nodes.FixedTextElement,
)
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
SPACE = re.compile(r"[\s-]+")


class TermLink(nodes.reference):
    """A link to an entry of the glossary. `definition` is the text of its tooltip."""


@dataclass(frozen=True)
class Entry:
    page: str
    anchor: str
    definition: str  # the first sentence
    only_on: frozenset[str] | None  # the pages that link it; None means all


class Glossary:
    """The terms of the book, and a pattern that finds them."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}  # by each word for it, in lower case
        self.pages: set[str] = set()
        self.pattern = re.compile("(?!)")

    def read(self, _app: "Sphinx", env: "BuildEnvironment") -> None:
        """Collects the entries of all glossaries, once every page has been read."""
        self.entries = {}
        self.pages = {page for page, _ in env.domaindata["std"]["terms"].values()}
        for page in sorted(self.pages):
            settings = {}
            for name in ("forms", "only_on"):
                value = env.metadata[page].get(name, {})
                settings[name] = json.loads(value) if isinstance(value, str) else dict(value)
            self.read_page(page, env.get_doctree(page), **settings)
        self.pattern = pattern_of(self.entries)

    def read_page(
        self,
        page: str,
        doctree: nodes.document,
        forms: dict[str, list[str]],
        only_on: dict[str, list[str]],
    ) -> None:
        terms = set()
        for glossary in doctree.findall(addnodes.glossary):
            for item in glossary.findall(nodes.definition_list_item):
                text = next(item.findall(nodes.definition)).astext().replace("\n", " ")
                for term in item.findall(nodes.term):
                    name = term.astext()
                    terms.add(name)
                    pages = frozenset(only_on[name]) if name in only_on else None
                    entry = Entry(page, term["ids"][0], SENTENCE_END.split(text)[0], pages)
                    for word in (name, *forms.get(name, [])):
                        for form in (word, plural(word)):
                            self.entries.setdefault(SPACE.sub(" ", form).lower(), entry)
        for name in sorted({*forms, *only_on} - terms):
            message = "front matter names %r, which is no term of this glossary"
            logging.getLogger(__name__).warning(message, name, location=page)

    def link(self, app: "Sphinx", doctree: nodes.document, page: str) -> None:
        """Links the first occurrence of each term in the prose of a page."""
        if page in self.pages:
            return
        linked: set[Entry] = set()
        for text in list(prose(doctree)):
            parts: list[nodes.Node] = []
            end = 0
            for match in self.pattern.finditer(text):
                entry = self.entries[SPACE.sub(" ", match[0]).lower()]
                elsewhere = entry.only_on is not None and page not in entry.only_on
                if entry in linked or elsewhere:
                    continue
                linked.add(entry)
                address = f"{app.builder.get_relative_uri(page, entry.page)}#{entry.anchor}"
                link = TermLink("", match[0], refuri=address, definition=entry.definition)
                parts += [nodes.Text(text[end : match.start()]), link]
                end = match.end()
            if parts:
                text.parent.replace(text, [*parts, nodes.Text(text[end:])])


def plural(word: str) -> str:
    """The regular English plural."""
    if re.search(r"[^aeiou]y$", word):
        return f"{word[:-1]}ies"
    return f"{word}es" if re.search(r"(s|x|z|ch|sh)$", word) else f"{word}s"


def pattern_of(words: dict[str, Entry]) -> re.Pattern[str]:
    """Finds the longest of the words that stand by themselves; "(?!)" finds nothing."""
    longest_first = sorted(words, key=lambda word: (-len(word), word))
    spaced = [re.escape(word).replace(r"\ ", r"[\s-]+") for word in longest_first]
    return re.compile(rf"(?<![\w-])(?:{'|'.join(spaced) or '(?!)'})(?![\w-])", re.IGNORECASE)


def prose(node: nodes.Node) -> Iterator[nodes.Text]:
    """The texts of running prose below `node`, in order."""
    if isinstance(node, nodes.Text):
        yield node
    elif not isinstance(node, NOT_PROSE):
        join_texts(node)
        for child in list(node.children):
            yield from prose(child)


def join_texts(node: nodes.Element) -> None:
    """Makes adjacent texts one: a line break in the source stands apart, also inside a term."""
    joined: list[nodes.Node] = []
    for child in node.children:
        if joined and isinstance(child, nodes.Text) and isinstance(joined[-1], nodes.Text):
            joined[-1] = nodes.Text(joined[-1] + child)
        else:
            joined.append(child)
    if len(joined) < len(node.children):
        node.children = []
        node.extend(joined)


def visit_term_link(translator: "HTML5Translator", node: TermLink) -> None:
    attributes = {"href": node["refuri"], "aria-description": node["definition"]}
    classes = "reference internal qwl-term"
    translator.body.append(translator.starttag(node, "a", "", CLASS=classes, **attributes))


def depart_term_link(translator: "HTML5Translator", _node: TermLink) -> None:
    translator.body.append("</a>")


def setup(app: "Sphinx") -> dict[str, bool]:
    glossary = Glossary()
    app.add_node(TermLink, html=(visit_term_link, depart_term_link))
    app.connect("env-updated", glossary.read)
    app.connect("doctree-resolved", glossary.link)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
