"""A quiz in a browser: mouse and keyboard open one choice at a time, without any script."""

import pytest
from browser import DESK, TELEPHONE, open_page
from bs4 import BeautifulSoup
from executed import NOTEBOOKS
from site_files import SITE, built_pages
from test_browser import UNREADABLE

from qwenlab.teach import quiz
from qwenlab.teach.questions import questions_of

pytestmark = pytest.mark.browser

HEAD = '<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width">'


@pytest.fixture
def address(tmp_path):
    """A page with two questions, as a file."""
    wrong = [
        ("On the right, as in `a_name_that_is_longer_than_a_telephone_is_wide`.", "No."),
        ("On both.", "Neither."),
    ]
    body = HEAD
    for question in ("Where do the pads go?", "And where do `they` come from?"):
        shown = quiz(question, right=("On the left.", "Its last column is real."), wrong=wrong)
        body += shown._repr_html_()
    (tmp_path / "quiz.html").write_text(body, encoding="utf-8")
    return (tmp_path / "quiz.html").as_uri()


def open_choices(page):
    """The choices that are open, as the letters in front of them."""
    return [text[0] for text in page.locator("details[open] summary").all_inner_texts()]


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no-scripts"])
def test_mouse_and_keyboard_open_one_choice_of_each_question(chromium, address, scripts):
    page, complaints = open_page(chromium, address, java_script_enabled=scripts)
    first, second = page.locator("fieldset").all()
    first.get_by_text("On the left.").click()
    assert first.locator("details[open]").inner_text().endswith("Its last column is real.")
    assert "✓ Right." in first.locator("details[open]").inner_text()
    second.locator("summary").nth(0).click()
    assert first.locator("details[open]").count() == second.locator("details[open]").count() == 1
    for key in ("Enter", "Space"):
        page.keyboard.press("Tab")
        page.keyboard.press(key)
    assert open_choices(second) == ["C"]
    page.keyboard.press("Enter")
    assert open_choices(second) == [] and len(open_choices(first)) == 1
    assert complaints == []


@pytest.mark.parametrize("width", [DESK, TELEPHONE])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_choice_is_readable_and_fits(chromium, address, width, theme):
    page, _ = open_page(
        chromium, address, color_scheme=theme, viewport={"width": width, "height": 900}
    )
    for choice in page.locator("summary").all():
        choice.click()
        assert page.locator("body").evaluate(UNREADABLE) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_paper_holds_the_choices_without_their_reasons(chromium, address):
    page, _ = open_page(chromium, address)
    page.get_by_text("On the left.").first.click()
    page.emulate_media(media="print")
    assert not page.get_by_text("Its last column is real.").first.is_visible()
    assert all(choice.is_visible() for choice in page.locator("summary").all())


def test_a_screen_reader_hears_the_question_and_what_a_choice_does(chromium, address):
    page, _ = open_page(chromium, address)
    heard = page.locator("body").aria_snapshot()
    assert 'group "Where do the pads go? Open a choice to hear whether it is right."' in heard
    page.get_by_text("On the left.").first.click()
    assert "✓ Right. Its last column is real." in page.locator("body").aria_snapshot()


def test_the_built_page_for_teachers_has_every_answer():
    built_pages()
    html = (SITE / "book" / "teach.html").read_text(encoding="utf-8")
    table = BeautifulSoup(html, "html.parser").find(class_="qwl-answer-key").table
    shown = [[cell.text for cell in row.find_all(["th", "td"])] for row in table.tbody("tr")]
    due = []
    for path in NOTEBOOKS:
        for number, question in enumerate(questions_of(path), start=1):
            letter = "ABCD"[question.right]
            answer = f"{letter}. {' '.join(question.choices[question.right])}"
            row = [f"{path.stem[:2]}.{number}", question.question, answer]
            due.append([text.replace("`", "") for text in row])
    assert shown == due
