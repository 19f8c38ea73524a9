"""The first screen of each lesson: its hero is whole in a small desktop window, the
visible cell is directly below, and nothing scrolls sideways on a telephone."""

import contract
import nbformat
import pytest
from browser import DESK, TELEPHONE, Watch
from executed import NOTEBOOKS
from lesson_table import HEROES
from site_files import ROOT, SITE, missing

pytestmark = pytest.mark.browser

LOWEST = 800  # pixels: a window 1280 wide and 800 high shows no more
WELCOME = "book/welcome"
PAGES = [WELCOME, *(f"notebooks/{path.stem}" for path in NOTEBOOKS)]


@pytest.fixture(scope="module")
def tab(chromium, address):
    with Watch(chromium, address) as watch:
        yield watch


@pytest.fixture(scope="module", params=PAGES)
def first_screen(request, tab):
    """A page's name, and the tab that shows it."""
    if not (SITE / f"{request.param}.html").is_file():
        missing(f"the built site has no {request.param}: run `make book`")
    tab.look(DESK, "light")
    tab.open(f"{request.param}.html")
    return request.param, tab


def test_the_hero_is_whole_on_the_first_screen(first_screen):
    name, watch = first_screen
    watch.look(DESK, "light")
    hero = watch.page.locator(HEROES).first
    assert hero.is_visible(), name
    if hero.get_attribute("data-widget"):
        watch.page.wait_for_selector("[data-widget][data-state=ready]")
    box = hero.bounding_box()
    assert box["y"] + box["height"] < LOWEST, f"{name}: its hero ends at {box}"


def test_the_cell_below_the_hero_is_visible_and_draws(first_screen):
    name, watch = first_screen
    if name == WELCOME:
        pytest.skip("Welcome is prose: nobody edits its cells")
    notebook = nbformat.read(ROOT / f"{name}.ipynb", as_version=4)
    below = watch.page.locator("div.cell:has(.qwl-page, .qwl-explore) + div.cell").first
    code = below.locator(":scope > .cell_input pre")
    source = contract.by_id(notebook, "hero-python").source
    assert code.is_visible() and code.inner_text().strip() == source.strip()
    picture = below.locator(":scope > .cell_output .qwl").first
    assert picture.is_visible(), f"{name}: nothing is drawn below the visible cell"


def test_nothing_scrolls_sideways_on_a_telephone(first_screen):
    name, watch = first_screen
    watch.look(TELEPHONE, "light")
    wide = watch.page.evaluate("document.documentElement.scrollWidth")
    assert wide <= TELEPHONE, f"{name} is {wide} pixels wide"
    watch.look(DESK, "light")


def test_a_quiz_answers_on_the_page(first_screen):
    """And its code, which holds the answers, is not shown."""
    name, watch = first_screen
    if name == WELCOME:
        pytest.skip("Welcome has no quiz")
    questions = watch.page.locator(".qwl-quiz").all()
    assert len(questions) == 3, name
    for question in questions:
        said = []
        for choice in question.locator("summary").all():
            choice.click()
            said.append(question.locator("details[open] p").inner_text())
        assert sum(text.startswith("✓ Right.") for text in said) == 1
        assert sum(text.startswith("✗ Not this one.") for text in said) == len(said) - 1
    cells = watch.page.locator("div.cell:has(.qwl-quiz) > details.hide")
    assert not any(cell.is_visible() for cell in cells.all())
