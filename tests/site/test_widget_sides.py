"""The widget of lesson 02 shows the next tokens that the library computes, from a page opened as a
file."""

import re

import pytest
import torch
from browser import DESK, TELEPHONE, open_page, write_widget_page
from site_files import SITE, built_pages

import qwenlab

pytestmark = pytest.mark.browser

PROMPTS = [["2+2?", "2+2="], ["What is 31+12-5?", "31+12="]]
OTHERS = [["7*8?", "7*8=5"], ["Compute 40-15+8.", "40-15="]]


@pytest.fixture(scope="module")
def loaded():
    return qwenlab.load("tiny", device="cpu", fast=False)


@pytest.fixture(scope="module")
def page(chromium, tmp_path_factory):
    address = write_widget_page(tmp_path_factory.mktemp("sides"), "sides", prompts=PROMPTS)
    page, complaints = open_page(chromium, address, reduced_motion="reduce")
    page.wait_for_selector(".qwl-page[data-state=ready]")
    yield page
    assert complaints == []
    page.close()


def next_tokens(model, tokenizer, prompts, side, more) -> list[list[tuple[str, float]]]:
    """The three most probable next tokens of each row, read off the last column."""
    chats = []
    for question, begun in prompts:
        chat = tokenizer.chat([{"role": "user", "content": question}])
        chats.append([*chat, tokenizer.control["<think>"], *tokenizer.encode("\n" + begun)])
    width = max(map(len, chats)) + more
    rows, real = [], []
    for ids in chats:
        pads = width - len(ids)
        left, right = (pads, 0) if side == "left" else (0, pads)
        rows.append([tokenizer.pad_id] * left + ids + [tokenizer.pad_id] * right)
        real.append([False] * left + [True] * len(ids) + [False] * right)
    real = torch.tensor(real)
    mask = qwenlab.combined_mask(real)
    with torch.inference_mode():
        logits = model(torch.tensor(rows), mask, position_ids=qwenlab.position_ids(real))[:, -1]
    found = []
    for row in logits.softmax(-1):
        best = row.topk(3)
        texts = [tokenizer.decode([token_id]).replace("\n", "⏎") for token_id in best.indices]
        found.append(list(zip(texts, best.values.tolist(), strict=True)))
    return found


def shown_bars(page) -> list[list[tuple[str, str]]]:
    lists = """() => [...document.querySelectorAll(".qwl-bars")].map((list) =>
      [...list.children].map((line) =>
        [line.firstChild.textContent, line.querySelector(".qwl-percent").textContent]))"""
    return page.evaluate(lists)


def set_case(page, prompts, side, more) -> None:
    for row, (question, begun) in enumerate(prompts):
        page.get_by_label(f"Question {row + 1}").fill(question)
        page.get_by_label(f"Start of answer {row + 1}").fill(begun)
    page.get_by_label("extra pads").fill(str(more))
    page.locator(f"input[value={side}]").check()


@pytest.mark.parametrize("prompts", [PROMPTS, OTHERS], ids=["default", "others"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("more", [0, 5])
def test_the_next_tokens_are_those_of_the_library(page, loaded, prompts, side, more):
    set_case(page, prompts, side, more)
    for shown, row in zip(shown_bars(page), next_tokens(*loaded, prompts, side, more), strict=True):
        assert [text for text, _ in shown] == [text for text, _ in row]
        for (_, percent), (_, probability) in zip(shown, row, strict=True):
            given = float(re.search(r"[\d.]+", percent)[0])
            assert abs(given - 100 * probability) < 1.001


def test_the_wrong_row_is_named_and_the_left_side_cures_it(page):
    set_case(page, PROMPTS, "right", 0)
    sentence = page.locator(".qwl-sentence")
    assert sentence.inner_text().startswith("Row 1 goes on with 2; alone, with 4.")
    page.locator("input[value=right]").focus()
    page.keyboard.press("ArrowRight")
    assert sentence.inner_text().startswith("Both rows go on as alone")
    assert page.locator(".qwl-grid td.x.t").count() == 2  # two real tokens are outlined


@pytest.mark.parametrize("width", [DESK, TELEPHONE])
def test_lesson_02_opens_on_it_and_nothing_jumps(chromium, width):
    built_pages()
    address = (SITE / "notebooks" / "02-left-padding.html").as_uri()
    size = {"width": width, "height": 800}
    page, complaints = open_page(chromium, address, viewport=size)
    widget = page.locator(".qwl-page")
    before = widget.bounding_box()
    assert width == TELEPHONE or before["y"] + before["height"] <= size["height"]
    widget.scroll_into_view_if_needed()
    page.wait_for_selector(".qwl-page[data-state=ready]")
    heights = {before["height"], widget.bounding_box()["height"]}
    page.locator("input[value=left]").check()
    page.get_by_label("extra pads").fill("12")
    heights.add(widget.bounding_box()["height"])
    assert len(heights) == 1, heights
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert complaints == []
    page.close()
