"""A real browser on the built site: no error, no outside request, working widgets, readable in both
themes."""

import itertools
import random
import re
from inspect import signature
from pathlib import Path

import pytest
from browser import DESK, TELEPHONE, Watch
from helpers import FULL, count
from site_files import ROOT, SITE, built_pages
from widget_numbers import EXPECTED, wrong_cells

pytestmark = pytest.mark.browser

THEMES = ("light", "dark")
LESSONS = [f"notebooks/{path.stem}.html" for path in sorted((ROOT / "notebooks").glob("*.ipynb"))]


# Text and what lies behind it, for every visible piece of text: colours are blended down to the
# first opaque layer; a hatched cell counts with the least readable of its stripes. Contrast and
# thresholds as in WCAG 2.1, level AA.
UNREADABLE = """(root) => {
  const parse = (text) => {
    const n = (text.match(/-?[\\d.]+(e-?\\d+)?%?/g) || []).map(parseFloat);
    if (text.startsWith("color(srgb")) return [n[0] * 255, n[1] * 255, n[2] * 255, n[3] ?? 1];
    return [n[0], n[1], n[2], n[3] ?? 1];
  };
  const over = (top, below) => below.map((b, i) => i == 3 ? 1 : top[i] * top[3] + b * (1 - top[3]));
  const light = (c) => [0.2126, 0.7152, 0.0722].reduce((sum, w, i) => {
    const v = c[i] / 255;
    return sum + w * (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  }, 0);
  const contrast = (a, b) => {
    const [x, y] = [light(a), light(b)].sort((p, q) => q - p);
    return (x + 0.05) / (y + 0.05);
  };
  const behind = (element) => {  // every colour that may lie behind this element
    if (!element) return [[255, 255, 255, 1]];
    const style = getComputedStyle(element);
    const stripes = (style.backgroundImage.match(/(rgba?|color)\\([^()]*\\)/g) || []).map(parse);
    if (stripes.length) return stripes.map((c) => over(c, [255, 255, 255, 1]));
    const colour = parse(style.backgroundColor);
    if (colour[3] === 1) return [colour];
    return behind(element.parentElement).map((below) => over(colour, below));
  };
  const found = [];
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim(), element = walker.currentNode.parentElement;
    if (!text || element.closest("script, style, noscript, template, mjx-container, .headerlink, .qwl-words")) continue;
    if (!element.checkVisibility({checkOpacity: true, checkVisibilityCSS: true})) continue;
    const style = getComputedStyle(element), size = parseFloat(style.fontSize);
    const needed = size >= 24 || (size >= 18.66 && style.fontWeight >= 700) ? 3 : 4.5;
    for (const below of behind(element)) {
      const ratio = contrast(over(parse(style.color), below), below);
      if (ratio < needed) {
        found.push(`${ratio.toFixed(2)}: ${text.slice(0, 40)} (${element.tagName} ${element.className})`);
        break;
      }
    }
  }
  return found;
}"""


OPEN_FOLDS = """() => document.querySelectorAll("details:not([open])").forEach((fold) => {
  fold.open = true;
  fold.classList.add("opened-by-test");
})"""
CLOSE_FOLDS = """() => document.querySelectorAll(".opened-by-test").forEach((fold) => {
  fold.open = false;
  fold.classList.remove("opened-by-test");
})"""


def check_look(watch, name, width, theme):
    """The open page asks for nothing else, fits into the window, and all its text can be read."""
    page = watch.page
    assert watch.errors == [] and watch.outside == [], name
    assert page.locator("html").get_attribute("data-theme") in (theme, None)
    wide = page.evaluate(
        "[document.documentElement.scrollWidth, document.body.scrollWidth, innerWidth]"
    )
    assert max(wide[:2]) <= wide[2] == width, f"{name} is {wide[:2]} wide in a window of {wide[2]}"
    page.evaluate(OPEN_FOLDS)
    assert page.locator("body").evaluate(UNREADABLE) == [], f"{name}, {theme}"
    page.evaluate(CLOSE_FOLDS)


def test_every_page_is_quiet_fits_and_is_readable(chromium, address):
    """But for lessons, which have their own test, and what only leads on to one."""
    with Watch(chromium, address) as watch:
        for path in built_pages():
            name = path.relative_to(SITE).as_posix()
            if name in LESSONS or "location.replace(" in path.read_text(encoding="utf-8"):
                continue
            watch.look(DESK, "light")
            watch.open(name)
            check_look(watch, name, DESK, "light")
            watch.look(TELEPHONE, "dark")
            check_look(watch, name, TELEPHONE, "dark")


@pytest.mark.full
@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", [DESK, TELEPHONE])
def test_every_page_opened_at_each_width_in_each_theme_is_readable(chromium, address, width, theme):
    with Watch(chromium, address, width, theme) as watch:
        for path in built_pages():
            name = path.relative_to(SITE).as_posix()
            watch.open(name)
            check_look(watch, name, width, theme)


@pytest.mark.parametrize("scripts", [True, False])
def test_an_old_address_leads_to_the_new_page(chromium, address, scripts):
    """With scripts to the section too."""
    section = "#exercises" if scripts else ""
    with Watch(chromium, address, scripts=scripts) as watch:
        watch.page.goto(f"{address}notebooks/05-linear-attention.html{section}")
        watch.page.wait_for_url(f"{address}notebooks/09-linear-attention.html{section}")
        assert watch.errors == [] and watch.outside == []


def widgets(page):
    found = page.locator(".qwl-explore").all()
    assert found, "the lesson has no widget"
    return found


@pytest.fixture(scope="module")
def tab(chromium, address):
    with Watch(chromium, address) as watch:
        yield watch


@pytest.fixture(scope="module", params=LESSONS, ids=lambda name: Path(name).stem)
def lesson(request, tab):
    """A lesson's name and its page, opened once for all its tests, as from the lesson before."""
    tab.errors.clear()
    tab.outside.clear()
    tab.look(DESK, "light")
    tab.open(request.param)
    return request.param, tab


def test_a_lesson_is_quiet_fits_and_is_readable(lesson):
    name, watch = lesson
    for width, theme in ((DESK, "light"), (TELEPHONE, "dark")):
        watch.look(width, theme)
        check_look(watch, name, width, theme)


def shown(picture):
    """Its HTML, whatever scripts have added to an element and taken away again."""
    return picture.inner_html().replace(' class=""', "")


def move_slider(page, widget, slider):
    picture = widget.locator(".qwl-state")
    slider.focus()
    for key in ("End", "Home"):
        page.keyboard.press(key)
    seen = [shown(picture)]
    for _ in range(5):  # five moves, one picture
        page.keyboard.press("ArrowRight")
        assert picture.count() == 1
    seen.append(shown(picture))
    assert seen[1] != seen[0], "the keyboard does not change the picture"
    page.keyboard.press("Home")
    assert shown(picture) == seen[0], "Home does not lead back to the first picture"
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    page.mouse.click(box["x"] + 0.9 * box["width"], box["y"] + box["height"] / 2)
    assert shown(picture) != seen[0], "the mouse does not change the picture"
    assert slider.evaluate("(slider) => slider.labels.length + slider.ariaLabel?.length") != 0


def choose(page, widget):
    """A widget without a slider: one of several choices."""
    picture = widget.locator(".qwl-state")
    choices = widget.locator("input[type=radio]")
    choices.first.check()
    first = shown(picture)
    choices.first.focus()
    page.keyboard.press("ArrowRight")
    assert shown(picture) != first, "the keyboard does not change the picture"
    page.keyboard.press("ArrowLeft")
    assert shown(picture) == first, "the keyboard does not lead back to the first picture"
    choices.last.check()
    assert shown(picture) != first, "the mouse does not change the picture"
    assert (
        choices.first.evaluate("(choice) => choice.labels.length + choice.ariaLabel?.length") != 0
    )


@pytest.mark.parametrize("theme", THEMES if FULL else THEMES[1:])
def test_the_widget_answers_the_keyboard_and_the_mouse(lesson, theme):
    watch = lesson[1]
    watch.look(DESK, theme)
    page = watch.page
    for widget in widgets(page):
        slider = widget.locator("input[type=range]").first
        if slider.count():
            move_slider(page, widget, slider)
        else:
            choose(page, widget)
        assert widget.evaluate(UNREADABLE) == [], "after moving the widget"
    assert watch.errors == [] and watch.outside == []


# Lessons whose numbers take seconds to be worked out: by plain loops, or from hundreds of answers.
SLOW = ("05-batched-generation", "11-evaluation", "12-self-consistency")
COUNTS = """(widget) => [...widget.querySelectorAll(".qwl-controls > *")].map((control) => {
  const range = control.querySelector("input[type=range]");
  return range ? Number(range.max) + 1 : control.querySelector("input[type=checkbox]") ? 2
    : control.querySelectorAll("input[type=radio], option").length;
})"""
# Moves the controls to a state as a reader would, event by event; what is said and shown then.
SET = """(widget, state) => {
  [...widget.querySelectorAll(".qwl-controls > *")].forEach((control, i) => {
    const radios = control.querySelectorAll("input[type=radio]");
    const one = control.querySelector("select, input[type=checkbox], input[type=range]");
    if (radios.length) { radios[state[i]].click(); return; }
    if (one.type === "checkbox") { if (one.checked != state[i]) one.click(); return; }
    one.value = String(state[i]);
    one.dispatchEvent(new Event("input", {bubbles: true}));
    one.dispatchEvent(new Event("change", {bubbles: true}));
  });
  const picture = widget.querySelector(".qwl-state"), tables = [...picture.querySelectorAll("table")];
  return [widget.querySelector(".qwl-words").textContent, picture.innerHTML, tables.map((table) => [
    ...table.tBodies[0].rows].map((row) => [...row.querySelectorAll("td")].map((cell) => cell.textContent)))];
}"""


def test_every_state_of_every_widget_has_its_own_right_picture(lesson):
    """Own: no two states look alike. Right: as widget_numbers.py works it out, where it does.

    Below full count twelve states a widget, and only what is quickly worked out; the lessons' own
    tests look at the page of every state.
    """
    name, watch = lesson
    stem = Path(name).stem
    expected = EXPECTED.get(stem, []) if FULL or stem not in SLOW else []
    for number, widget in enumerate(widgets(watch.page)):
        seen = {}
        states = list(itertools.product(*map(range, widget.evaluate(COUNTS))))
        for state in random.Random(number).sample(states, min(len(states), count(12, len(states)))):
            said, html, tables = widget.evaluate(SET, list(state))
            assert seen.setdefault(html, said) == said, (
                f"the same picture for {said} and {seen[html]}"
            )
            # Where more than the state is needed, the lesson's own test looks at the numbers.
            if number < len(expected) and len(signature(expected[number]).parameters) == 1:
                right = expected[number](
                    dict(part.split(": ", 1) for part in re.split(r", (?=[\w ]+: )", said))
                )
                assert wrong_cells(tables, right) == [], said
    assert watch.errors == [] and watch.outside == []


def test_without_scripts_a_widget_shows_its_first_picture(chromium, address):
    """All widgets are one, so below full count two lessons do."""
    for name in LESSONS[: count(2, len(LESSONS))]:
        with Watch(chromium, address, scripts=False) as watch:
            for widget in widgets(watch.open(name)):
                assert widget.locator(".qwl-state").inner_text().strip()
                assert not widget.locator(".qwl-controls").is_visible()


def test_the_theme_button_and_the_search_work_offline(chromium, address):
    with Watch(chromium, address) as watch:
        page = watch.open(LESSONS[0])
        button = page.locator(".theme-switch-button:visible").first
        seen = {page.locator("html").get_attribute("data-theme")}
        for _ in range(3):
            button.click()
            seen.add(page.locator("html").get_attribute("data-theme"))
        assert seen == {"light", "dark"}
        watch.open("search.html?q=padding")
        page.locator("#search-results li").first.wait_for()
        assert watch.errors == [] and watch.outside == []


def test_mathematics_is_set_offline(chromium, address, tmp_path):
    """MathJax and its fonts come from the site itself, whether or not a lesson has a formula
    yet."""
    page_with_formula = SITE / "book" / "glossary.html"
    with Watch(chromium, address) as watch:
        page = watch.open(page_with_formula.relative_to(SITE).as_posix())
        page.add_script_tag(url="../_static/mathjax/tex-mml-chtml.js")
        page.evaluate(
            "document.querySelector('article').insertAdjacentHTML('beforeend', '<p>\\\\(x^2\\\\)</p>')"
        )
        page.evaluate("MathJax.typesetPromise()")
        page.locator("mjx-container").first.wait_for()
        page.evaluate("document.fonts.ready")
        assert watch.errors == [] and watch.outside == []


def test_what_a_page_asks_of_others_is_noticed(chromium, address):
    with Watch(chromium, address) as watch:
        page = watch.open(LESSONS[0])
        page.evaluate("fetch('https://example.org/x').catch(() => null)")
        assert watch.outside == ["https://example.org/x"]
