"""The widget of four prompts shows what the library computes, from a page opened as a file."""

import re
from html import escape

import pytest
import torch
from browser import DESK, TELEPHONE, open_page, write_widget_page
from site_files import SITE, built_pages

import qwenlab
from qwenlab.evaluation import extract_answer
from qwenlab.teach.in_page import page_model

pytestmark = pytest.mark.browser

PROMPTS = ["2+2?", "100-8?", "3+4+5?", "Compute 31+12-5."]
SIGNS = {"<think>": "‹", "</think>": "›", "\\boxed": "□"}
OTHERS = ["2 friends share 98 coins. How many does each get?", "6+6?", "What is 12*3?", "8?"]
MOST = 60  # new tokens
OVER = "/answers (is|are)/.test(document.querySelector('.qwl-sentence').textContent)"


@pytest.fixture(scope="module")
def loaded():
    return qwenlab.load("tiny", device="cpu", fast=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A page with the widget, as the site has it: scripts and weights lie beside it."""
    folder = tmp_path_factory.mktemp("batch")
    write_widget_page(folder, "batch", prompts=PROMPTS, still="The still.")
    return folder


def open_widget(chromium, folder, **options):
    address = (folder / "page.html").as_uri()
    page, complaints = open_page(chromium, address, reduced_motion="reduce", **options)
    page.wait_for_selector(".qwl-page[data-state=ready]")
    return page, complaints


@pytest.fixture(scope="module")
def page(chromium, folder):
    page, complaints = open_widget(chromium, folder)
    yield page
    assert complaints == []
    page.close()


def choose(page, *values) -> None:
    for value in values:
        page.locator(f".qwl-page input[value={value}]").check()


def run(page) -> str:
    """Presses Run and waits for the sentence that says what has happened."""
    page.locator(".qwl-main").click()
    page.wait_for_function(OVER)
    return page.locator(".qwl-sentence").inner_text()


def shown_tokens(page) -> list[list[str]]:
    """What each row generated: its filled cells behind the arrow."""
    return page.evaluate(
        """() => [...document.querySelectorAll(".qwl-grid tbody tr")].map((row) => {
          const cells = [...row.querySelectorAll("td")];
          const arrow = cells.findIndex((cell) => cell.textContent === "→");
          const real = cells.slice(arrow + 1).filter((cell) => cell.classList.contains("t"));
          return real.map((cell) => cell.textContent);
        })"""
    )


def chats(tokenizer, prompts) -> list[list[int]]:
    return [tokenizer.chat([{"role": "user", "content": text}]) for text in prompts]


def in_a_rectangle(model, tokenizer, prompts, side, hidden) -> list[list[int]]:
    """Greedy ids, stop id included, of the slow loop that runs the whole rectangle each time and
    reads the next token off the last column."""
    input_ids, real = qwenlab.left_pad(chats(tokenizer, prompts), tokenizer.pad_id)
    if side == "right":
        for row, flags in enumerate(real):
            input_ids[row] = input_ids[row].roll(int(flags.sum()))
        real = real.flip(1)
    if not hidden:
        real = torch.ones_like(real)
    width = input_ids.shape[1]
    with torch.inference_mode():
        for _ in range(MOST):
            mask = qwenlab.combined_mask(real)
            logits = model(input_ids, mask, position_ids=qwenlab.position_ids(real))
            new = logits[:, -1].argmax(-1, keepdim=True)
            input_ids = torch.cat([input_ids, new], dim=1)
            real = torch.cat([real, torch.ones_like(new, dtype=torch.bool)], dim=1)
    return [until_stop(model, row) for row in input_ids[:, width:].tolist()]


def until_stop(model, ids) -> list[int]:
    for place, token_id in enumerate(ids):
        if token_id in model.stop_ids:
            return ids[: place + 1]
    return ids


def texts(model, tokenizer, ids) -> list[str]:
    shown = []
    for token_id in ids:
        text = tokenizer.decode([token_id]).replace("\n", "⏎").replace(" ", "␣")
        shown.append("■" if token_id in model.stop_ids else SIGNS.get(text, text))
    return shown


@pytest.mark.parametrize("prompts", [PROMPTS, OTHERS], ids=["default", "others"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("pads", ["hidden", "seen"])
def test_each_way_of_padding_gives_the_tokens_of_the_library(page, loaded, prompts, side, pads):
    for row, text in enumerate(prompts):
        page.get_by_label(f"Prompt {row + 1}").fill(text)
    choose(page, "together", side, pads)
    run(page)
    answers = in_a_rectangle(*loaded, prompts, side, pads == "hidden")
    assert shown_tokens(page) == [texts(*loaded, ids) for ids in answers]
    _, tokenizer = loaded
    verdicts = page.locator(".qwl-verdict").all_inner_texts()
    for ids, verdict in zip(answers, verdicts, strict=True):
        said = extract_answer(tokenizer.decode(ids[:-1])) or "no answer"
        assert verdict.startswith(f"{said} "), verdicts


def test_one_by_one_takes_a_pass_for_each_token(page, loaded):
    model, tokenizer = loaded
    for row, text in enumerate(PROMPTS):
        page.get_by_label(f"Prompt {row + 1}").fill(text)
    choose(page, "alone")
    run(page)
    result = qwenlab.generate(model, chats(tokenizer, PROMPTS), max_new_tokens=MOST)
    tokens = sum(len(answer.logprobs) for answer in result)
    longest = max(len(answer.logprobs) for answer in result)
    counts = page.locator(".qwl-counts").inner_text()
    assert (
        f"{tokens} passes of the model · {tokens} tokens generated · 0 pads in the prompts"
        in counts
    )
    choose(page, "together", "left", "hidden")
    assert f"in {longest} passes of the model instead of {tokens}" in run(page)


def test_right_and_wrong_are_told_and_so_is_the_cure(page):
    for row, text in enumerate(PROMPTS):
        page.get_by_label(f"Prompt {row + 1}").fill(text)
    choose(page, "together", "right", "hidden")
    assert "Now put the pads on the left." in run(page)
    verdicts = page.locator(".qwl-verdict").all_inner_texts()
    wrong = ["✗ (alone: " in text for text in verdicts]
    assert wrong == ["✓ correct" not in text for text in verdicts] == [True, True, False, False]
    outlined = page.locator(".qwl-grid tbody tr:has(td.x)").count()
    choose(page, "left")
    assert "4 of 4 answers are correct" in run(page)
    assert outlined == 2 and page.locator(".qwl-grid td.x").count() == 0


def test_the_same_answer_in_other_words_is_told_from_another_answer(page, loaded):
    prompts = ["2+2?", "7*8?", "45-18?", "12+30+7?"]
    for row, text in enumerate(prompts):
        page.get_by_label(f"Prompt {row + 1}").fill(text)
    choose(page, "together", "right", "hidden")
    said = run(page)
    here = in_a_rectangle(*loaded, prompts, "right", True)
    alone = [in_a_rectangle(*loaded, [text], "left", True)[0] for text in prompts]
    pairs = list(zip(here, alone, strict=True))
    answers = [[extract_answer(loaded[1].decode(ids)) for ids in pair] for pair in pairs]
    other = [str(b + 1) for b, (got, lone) in enumerate(answers) if got != lone]
    (reworded,) = [
        b + 1 for b, (got, lone) in enumerate(answers) if got == lone and here[b] != alone[b]
    ]
    assert f": prompts {' and '.join(other)} get other answers alone; " in said
    assert f"; prompt {reworded} gets the same alone, but in other words." in said


def test_pads_that_are_seen_spoil_an_answer_on_either_side(page):
    for row, text in enumerate(PROMPTS):
        page.get_by_label(f"Prompt {row + 1}").fill(text)
    choose(page, "together", "right", "seen")
    assert "Put them on the left and hide them." in run(page)
    choose(page, "left")
    assert "3 of 4 answers are correct: prompt 2 gets another answer alone." in run(page)


def tried(page) -> list[str]:
    return page.locator(".qwl-tried li").all_inner_texts()[1:]


def test_what_each_setting_gave_is_remembered_until_a_prompt_changes(page):
    texts = PROMPTS[::-1]  # no test before has tried them
    for row, text in enumerate(texts):
        page.get_by_label(f"Prompt {row + 1}").fill(text)
    assert tried(page) == []
    gave = []
    for values in (["together", "right", "hidden"], ["left"], ["alone"], ["together", "right"]):
        choose(page, *values)
        headline = re.match(r"\d of 4", run(page))[0]
        settings = page.locator(".qwl-page input:checked").evaluate_all(
            "(inputs) => inputs.map((input) => input.value)"
        )
        name = "one by one" if "alone" in settings else ", ".join(settings[:2])
        if f"{name}: {headline}" not in gave:
            gave.append(f"{name}: {headline}")
        assert tried(page) == gave
        framed = page.locator(".qwl-tried [aria-current]")
        assert framed.all_inner_texts() == [f"{name}: {headline}"]
    assert len(gave) == 3 and len(set(text[-6:] for text in gave)) == 2
    choose(page, "left")
    assert tried(page) == gave  # another setting, the same prompts
    page.get_by_label("Prompt 1").fill("8?")
    assert tried(page) == []
    run(page)
    assert page.locator(".qwl-tried").inner_text().startswith("As alone so far")
    page.get_by_label("Prompt 1").fill(PROMPTS[0])


def test_once_prompts_have_run_another_setting_runs_them_again(page):
    for row, text in enumerate(PROMPTS):
        page.get_by_label(f"Prompt {row + 1}").fill(text)
    choose(page, "together", "left", "seen", "right", "hidden")
    sentence = page.locator(".qwl-sentence")
    assert sentence.inner_text().endswith("Press Run, or Enter in a prompt.")
    assert run(page).startswith("2 of 4 answers are correct")
    choose(page, "left")
    page.wait_for_function(OVER.replace("answers", "^4 of 4 answers"))
    page.get_by_label("Prompt 1").fill("6+6?")
    choose(page, "right")
    assert sentence.inner_text().endswith("Press Run, or Enter in a prompt.")


def test_a_prompt_that_is_full_says_so(page):
    field = page.get_by_label("Prompt 2")
    height = page.locator(".qwl-page").bounding_box()["height"]
    field.fill("1+" * 99 + "1")
    limit = page.locator(".qwl-limit").nth(1)
    assert limit.inner_text() == ""
    field.press("End")
    page.keyboard.type("234")
    assert limit.inner_text() == "at most 200 characters"
    assert len(field.input_value()) == 200
    assert page.locator(".qwl-page").bounding_box()["height"] == height
    field.fill(PROMPTS[1])
    assert limit.inner_text() == ""


def test_a_screen_reader_hears_words_for_signs_and_pads(page, loaded):
    for row, text in enumerate(PROMPTS):
        page.get_by_label(f"Prompt {row + 1}").fill(text)
    choose(page, "together", "right", "hidden")
    run(page)
    lengths = [len(ids) for ids in chats(loaded[1], PROMPTS)]
    answers = in_a_rectangle(*loaded, PROMPTS, "right", True)
    labels = page.locator(".qwl-grid tbody th").evaluate_all(
        "(heads) => heads.map((head) => head.getAttribute('aria-label'))"
    )
    for b, label in enumerate(labels):
        pads = max(lengths) - lengths[b]
        generated = loaded[1].decode(answers[b][:-1])
        assert label == f"Row {b + 1}: {PROMPTS[b]} with {pads} pads. Generated: {generated}"
    cells = page.locator(".qwl-grid td").evaluate_all(
        """(cells) => cells.map((cell) => [
          cell.classList[0], cell.getAttribute("aria-label") ?? cell.textContent])"""
    )
    assert {name for kind, name in cells if kind == "p"} == {"pad"}
    assert not set("⋯‹›□■⏎␣") & set("".join(name for _, name in cells))


def test_on_a_touch_screen_fields_have_letters_that_are_not_zoomed_into(chromium, folder):
    phone = {"viewport": {"width": TELEPHONE, "height": 844}, "has_touch": True, "is_mobile": True}
    page, complaints = open_widget(chromium, folder, **phone)
    size = "(inputs) => inputs.map((input) => parseFloat(getComputedStyle(input).fontSize))"
    assert min(page.locator(".qwl-field input").evaluate_all(size)) >= 16
    page.locator(".qwl-main").tap()
    page.wait_for_function(OVER)
    assert complaints == []
    page.context.close()


def test_an_empty_prompt_is_named(page):
    page.get_by_label("Prompt 3").fill("  ")
    assert page.locator(".qwl-sentence").inner_text().startswith("Prompt 3 is empty")
    page.get_by_label("Prompt 3").fill(PROMPTS[2])


def test_it_is_worked_by_keyboard_and_says_what_happens(chromium, folder):
    page, complaints = open_widget(chromium, folder)
    for _ in PROMPTS:
        page.keyboard.press("Tab")
    page.keyboard.type("7*8?")  # replaces the last prompt, which Tab has selected
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")  # pads on the left
    for _ in range(3):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_function(OVER)
    assert page.locator(".qwl-verdict").last.inner_text() == "56 ✓ correct"
    assert page.locator("input[value=left]").is_checked()
    live = page.locator("[aria-live=polite][role=status]")
    assert live.count() == 1
    page.get_by_label("Prompt 1").fill("6+6?")
    assert live.count() == 0  # not at every key
    assert "or Enter in a prompt" in page.locator(".qwl-sentence").inner_text()
    page.keyboard.press("Enter")
    page.wait_for_function(OVER)
    assert page.locator(".qwl-verdict").first.inner_text() == "12 ✓ correct"
    assert live.count() == 1
    assert complaints == []
    page.close()


def test_without_scripts_and_in_print_the_still_is_shown(chromium, folder, page):
    still = page.locator(".qwl-still")
    assert not still.is_visible()
    page.emulate_media(media="print")
    assert still.is_visible() and not page.locator(".qwl-stage").is_visible()
    page.emulate_media(media="screen")
    address = (folder / "page.html").as_uri()
    dead, complaints = open_page(chromium, address, java_script_enabled=False)
    assert dead.locator(".qwl-still").inner_text() == "The still." and complaints == []
    dead.close()


def test_a_missing_model_is_one_line_and_the_still_stays(chromium, folder, tmp_path):
    for path in folder.iterdir():
        if path.name != "model-tiny.js":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    page, _ = open_page(chromium, (tmp_path / "page.html").as_uri())
    page.wait_for_selector(".qwl-page[data-state=failed]")
    assert "model-tiny.js can't be loaded" in page.locator(".qwl-sentence").inner_text()
    assert page.locator(".qwl-still").is_visible()
    page.close()


WAIT = """<script>
const bring = qwenlab.bring;
qwenlab.bring = (name) => new Promise((resolve) => (qwenlab.go = resolve)).then(() => bring(name));
</script>"""


def test_nothing_can_be_pressed_before_the_model_is_there(chromium, folder):
    slow = (
        (folder / "page.html")
        .read_text(encoding="utf-8")
        .replace("</script>", "</script>" + WAIT, 1)
    )
    (folder / "slow.html").write_text(slow, encoding="utf-8")
    page, complaints = open_page(chromium, (folder / "slow.html").as_uri())
    page.wait_for_function("typeof qwenlab.go === 'function'")
    page.evaluate("document.querySelector('.qwl-main').focus()")
    assert page.evaluate("document.activeElement.tagName") == "BODY"
    page.evaluate("qwenlab.go()")
    page.wait_for_selector(".qwl-page[data-state=ready]")
    assert complaints == []
    page.close()


@pytest.mark.parametrize("width", [DESK, TELEPHONE])
def test_the_first_page_opens_on_it_and_nothing_jumps(chromium, width):
    built_pages()
    size = {"width": width, "height": 800}
    address = (SITE / "book" / "welcome.html").as_uri()
    page, complaints = open_page(chromium, address, viewport=size, reduced_motion="reduce")
    widget = page.locator(".qwl-page")
    before = widget.bounding_box()
    assert width == TELEPHONE or before["y"] + before["height"] <= size["height"]
    widget.scroll_into_view_if_needed()
    page.wait_for_selector(".qwl-page[data-state=ready]")
    heights = [before["height"], widget.bounding_box()["height"]]
    for side in ("right", "left"):
        choose(page, side)
        run(page)
        heights.append(widget.bounding_box()["height"])
    assert len(set(heights)) == 1, heights
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert complaints == []
    page.close()


def test_live_an_output_brings_all_that_it_needs(chromium, tmp_path, monkeypatch):
    """In a sandboxed frame of its own, as some notebooks show outputs."""
    monkeypatch.delenv("QWENLAB_PAGE", raising=False)
    output = escape(page_model("tiny").widget("batch", prompts=PROMPTS)._repr_html_())
    framed = f'<meta charset="utf-8"><iframe sandbox="allow-scripts" srcdoc="{output}"></iframe>'
    (tmp_path / "output.html").write_text(framed, encoding="utf-8")
    page, complaints = open_page(
        chromium, (tmp_path / "output.html").as_uri(), reduced_motion="reduce"
    )
    frame = page.frames[1]
    frame.wait_for_selector(".qwl-page[data-state=ready]")
    frame.locator(".qwl-main").click()
    frame.wait_for_function(OVER)
    assert frame.locator(".qwl-verdict").last.inner_text() == "38 ✓ correct"
    assert complaints == []
    page.close()


def test_a_widget_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="no widget 'bach', expected one of answers, batch, "):
        page_model("tiny").widget("bach")
