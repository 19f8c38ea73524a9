"""Whatever the course cites has an entry on the page of references, and each paper there is cited."""

import re

import nbformat
import pytest
from site_files import ROOT

PAPER = re.compile(r"arxiv\.org/abs/(\d{4}\.\d{5})|arXiv:(\d{4}\.\d{5})")
# Of these, addresses as well; other links explain something on the spot.
SOURCES = ("doi.org", "jstor.org", "thinkingmachines.ai", "joschu.net", "usenix.org", "nvidia.com")


def cited_in(text):
    papers = {web or named for web, named in PAPER.findall(text)}
    for address in re.findall(r"https?://[^\s)\"'`>\]]+", text):
        if any(source in address for source in SOURCES):
            papers.add(address.rstrip(".,"))
    return papers


@pytest.fixture(scope="module")
def entries():
    return cited_in((ROOT / "book" / "references.md").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def cited():
    """Each source that the lessons, pages and the library name, with one place where they do."""
    found = {}
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for cell in nbformat.read(path, as_version=4).cells:
            found |= dict.fromkeys(cited_in(cell.source), path.name)
    pages = [path for path in (ROOT / "book").glob("*.md") if path.name != "references.md"]
    code = [*(ROOT / "src").rglob("*.py"), *(ROOT / "scripts").glob("*.py")]
    for path in [*pages, *code]:
        found |= dict.fromkeys(cited_in(path.read_text(encoding="utf-8")), path.name)
    return found


def test_every_source_has_an_entry(entries, cited):
    missing = {source: place for source, place in cited.items() if source not in entries}
    assert not missing


def test_every_paper_with_an_entry_is_cited(entries, cited):
    """But for the one that introduces `transformers`, which is cited by its name."""
    papers = {entry for entry in entries if re.fullmatch(r"\d{4}\.\d{5}", entry)}
    assert len(papers) > 30
    assert papers - set(cited) == {"1910.03771"}


def test_entries_name_their_authors_and_years():
    text = (ROOT / "book" / "references.md").read_text(encoding="utf-8")
    papers = [line for line in text.splitlines() if "(https://arxiv.org/" in line]
    assert len(papers) > 30
    for line in papers:
        assert re.search(r"[A-Z]\w+(?:-\w+)?(?: et al\.| and [A-Z]\w+)?,? (?:\[|20)", line), line
        assert re.search(r"\b(?:19|20)\d\d\b", line), line
