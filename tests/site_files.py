"""Where the built site and the browser are, and what happens to their tests where they are
missing."""

import os
import shutil
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "_build" / "html"
REQUIRED = (
    os.environ.get("QWENLAB_SITE_REQUIRED") == "1"
)  # .ci/run: a missing site or browser is a failure
CHROMIUM = os.environ.get("QWENLAB_CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


def missing(reason):
    if REQUIRED:
        pytest.fail(reason)
    pytest.skip(reason)


def built_pages():
    """All pages of the site, or a skip that says what to do."""
    if not (SITE / "index.html").is_file():
        missing("no built site: run `make book` first")
    return sorted(
        path for path in SITE.rglob("*.html") if "_static" not in path.relative_to(SITE).parts
    )


@cache
def elements(path: Path) -> list[tuple[str, dict]]:
    """Every element of a built page, as (tag, attributes), in order."""
    parser = Elements()
    parser.feed(path.read_text(encoding="utf-8"))
    return parser.found


class Elements(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
