"""What people who don't see the page, or use no mouse, get: axe finds nothing in our own elements,
a lesson's first control is near, and what is printed is complete."""

from pathlib import Path

import pytest
from browser import DESK, TELEPHONE, open_page
from site_files import SITE, built_pages

pytestmark = pytest.mark.browser

AXE = Path(__file__).parents[1] / "vendor" / "axe-core" / "axe.min.js"
# One page of each kind: prose, a widget whose cells are picked, a timeline, stored states, formulas.
PAGES = (
    "book/setup.html",
    "notebooks/03-combined-mask.html",
    "notebooks/06-early-stop.html",
    "notebooks/12-self-consistency.html",
    "notebooks/13-grpo.html",
)
# The page itself without the book theme's bars around it. Levels A and AA.
CHECK = """() => axe.run("article.bd-article", {
  runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"],
  resultTypes: ["violations"],
}).then((found) => found.violations.flatMap((rule) => rule.nodes.map(
  (node) => `${rule.id}: ${node.html.slice(0, 120)} (${node.failureSummary.slice(0, 160)})`)))"""
FOCUSED_IN_A_PICTURE = "document.activeElement.closest('.qwl') !== null"
MOST_PRESSES = 10


def lessons():
    return [path for path in built_pages() if path.parent.name == "notebooks" and is_read(path)]


def is_read(path):
    return "location.replace(" not in path.read_text(encoding="utf-8")


def faults(page):
    page.evaluate(AXE.read_text(encoding="utf-8"))
    return page.evaluate(CHECK)


@pytest.fixture(scope="module")
def site():
    built_pages()
    return SITE


@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing(chromium, site, name):
    page, _ = open_page(chromium, (site / name).as_uri(), viewport={"width": DESK, "height": 800})
    assert faults(page) == []
    page.close()


@pytest.mark.full
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [DESK, TELEPHONE])
def test_axe_finds_nothing_on_any_page(chromium, site, width, theme):
    found = {}
    for path in filter(is_read, built_pages()):
        page, _ = open_page(
            chromium, path.as_uri(), viewport={"width": width, "height": 800}, color_scheme=theme
        )
        if page.locator("article.bd-article").count() and (wrong := faults(page)):
            found[path.relative_to(site).as_posix()] = wrong
        page.close()
    assert found == {}


def test_a_lesson_s_first_control_is_ten_presses_of_tab_away(chromium, site):
    """By the theme's link past the sidebar, and ours past what stands in front of the widget."""
    far = {}
    for path in lessons():
        page, _ = open_page(chromium, path.as_uri(), viewport={"width": DESK, "height": 800})
        page.keyboard.press("Tab")
        assert "Skip to main content" in page.evaluate("document.activeElement.textContent")
        page.keyboard.press("Enter")
        for _ in range(MOST_PRESSES - 1):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.className") == "qwl-skip":
                page.keyboard.press("Enter")
            if page.evaluate(FOCUSED_IN_A_PICTURE):
                break
        if not page.evaluate(FOCUSED_IN_A_PICTURE):
            far[path.name] = page.evaluate("document.activeElement.outerHTML.slice(0, 100)")
        page.close()
    assert far == {}


def test_a_folded_cell_is_announced_by_its_title(site):
    for path in lessons():
        text = path.read_text(encoding="utf-8")
        assert "<summary>" in text and "Toggle hidden content" not in text, path.name


def test_mathjax_is_loaded_where_there_are_formulas(site):
    for path in filter(is_read, built_pages()):
        text = path.read_text(encoding="utf-8")
        assert ("tex-mml-chtml.js" in text) == ('class="math' in text), path.name


def test_solutions_are_printed_on_request(chromium, site):
    lesson = (site / "notebooks/03-combined-mask.html").as_uri()
    for address, printed in ((lesson, False), (f"{lesson}?solutions", True)):
        page, _ = open_page(chromium, address, viewport={"width": DESK, "height": 800})
        page.emulate_media(media="print")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        for part in ("details:has(> summary:text-is('Hint'))", ".qwl-quiz details > p"):
            assert (
                page.locator(part).first.evaluate(
                    "(part) => (part.open ?? true) && part.checkVisibility()"
                )
                == printed
            ), part
        colours = "getComputedStyle(document.querySelector('.qwl')).printColorAdjust"
        assert page.evaluate(colours) == "exact"
        page.close()
