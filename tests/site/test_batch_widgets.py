"""The widgets of batches show what the library computes of the same requests: in Chromium, from a
page opened as a file, without a network."""

import random
import re

import pytest
import torch
from browser import DESK, TELEPHONE, Watch, open_page, write_widget_page
from bs4 import BeautifulSoup
from helpers import count

import qwenlab
from qwenlab.teach import fixed_slots, timeline

pytestmark = pytest.mark.browser

POOL = ["Multiply 3 by 14.", "2+2?", "What is 7*8?", "6*12?", "8+1?", "9+9+9?", "44-33=?", "34+17?"]
INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."
BATCH = [f"Anna has 30 eggs. She sells 12. How many are left? {INSTRUCTION}", "34+17?", "44-33=?"]
STRATEGIES = ["static", "early-stop", "continuous"]
MOST = 48  # new tokens in the widgets
LESSONS = ("05-batched-generation", "06-early-stop", "07-continuous-batching")


@pytest.fixture(scope="module")
def tiny():
    return qwenlab.load("tiny", dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A page for each widget, in a folder of its own."""
    options = {
        "queue": {"prompts": POOL[:5], "slots": 3, "strategies": STRATEGIES},
        "steps": {"prompts": BATCH},
    }
    made = {}
    for name, own in options.items():
        made[name] = tmp_path_factory.mktemp(name)
        write_widget_page(made[name], name, **own)
    return made


@pytest.fixture
def open_widget(chromium, folders):
    """Opens a widget's page in a tab of its own, which must stay silent and ask nobody."""
    tabs = []

    def open_one(name):
        size = {"width": DESK, "height": 900}
        page, complaints = open_page(
            chromium, (folders[name] / "page.html").as_uri(), viewport=size
        )
        tabs.append((page, complaints))
        page.wait_for_selector("[data-state=ready]")
        return page

    yield open_one
    for page, complaints in tabs:
        assert complaints == []
        page.close()


# Presses a button of the widget `times` times, or until the sentence matches `until`.
PRESS = """([name, times, until]) => {
  const buttons = [...document.querySelectorAll(".qwl-stage button")];
  const button = buttons.find((one) => [one.textContent, one.title].includes(name));
  for (let i = 0; i < times; i++) {
    button.click();
    if (until && document.querySelector(".qwl-sentence").textContent.match(until)) {
      return;
    }
  }
}"""
DONE = "(The answer is|All answers are) here"


def press(page, name, times=1, until=None):
    page.evaluate(PRESS, [name, times, until])


def choose(page, value):
    page.evaluate(
        """(value) => document.querySelector(`.qwl-stage input[value="${value}"]`).click()""", value
    )


def said(page):
    return page.locator(".qwl-sentence").inner_text()


def grid(page):
    """The texts of the cells, row by row."""
    rows = page.locator(".qwl-figure tbody tr").all()
    return [row.locator("td").all_inner_texts() for row in rows]


def legend(page):
    text = page.locator(".qwl-legend").inner_text()
    return {kind: int(number) for kind, number in re.findall(r"(\w+): (\d+)", text)}


def answers(page):
    """What stands in each line: where the request is, and its answer."""
    lines = page.locator(".qwl-requests li").all()
    return [line.locator("> span").all_text_contents() for line in lines]


def in_one_line(text):
    """An answer as the widgets show it."""
    thought, *boxed = re.sub("</?think>", "", text).split("\\boxed")
    ending = "".join(f"→ {number.strip('{}')}" for number in boxed)
    return re.sub("\n+", " ⏎ ", thought.strip()) + ending


def chat(tokenizer, text):
    return tokenizer.chat([{"role": "user", "content": text}])


def drawn(events, names):
    """The texts of the cells of a timeline."""
    table = BeautifulSoup(timeline(events, names=names)._repr_html_(), "html.parser").table
    return [[td.text for td in tr.find_all("td")] for tr in table.tbody.find_all("tr")]


# --- The queue -----------------------------------------------------------------------------------


def serve(tiny, sent, slots, strategy):
    """An engine that has answered requests, each sent before a step: [(text, step), ...]."""
    model, tokenizer = tiny
    engine = qwenlab.Engine(model, slots, strategy=strategy)
    requests = []
    step = 0
    coming = list(sent)
    while coming or engine.has_unfinished():
        while coming and (coming[0][1] <= step or not engine.has_unfinished()):
            prompt = chat(tokenizer, coming.pop(0)[0])
            requests.append(engine.submit(prompt, max_new_tokens=MOST))
        engine.step()
        step += 1
    return engine, requests


def passes(events):
    """How often the model is called: a step that decodes and prefills is two calls."""
    call_of = {"prefill": "prefill", "decode": "decode", "wasted": "decode"}
    return len({(step, call_of[kind]) for step, _, _, kind in events if kind in call_of})


@pytest.mark.parametrize("seed", range(count(1, 8)))
def test_the_queue_shows_what_the_engine_does_with_the_same_requests(open_widget, tiny, seed):
    draw = random.Random(seed)
    page = open_widget("queue")
    sent = [(text, 0) for text in draw.choices(POOL, k=5)]
    fields = page.locator(".qwl-requests input")
    for i, (text, _) in enumerate(sent):
        fields.nth(i).fill(text)
    more = (draw.choice(POOL), draw.randint(1, 20))
    slots = draw.choice([2, 3])
    choose(page, str(slots))
    for strategy in STRATEGIES:
        choose(page, strategy)
        press(page, "Start again")
        if len(sent) == 5:  # the first strategy: one more is sent while it runs
            press(page, "Step ▶", more[1])
            page.get_by_label("Your own").fill(more[0])
            press(page, "Send")
            sent.append(more)
        press(page, "Step ▶", 300, DONE)
        engine, requests = serve(tiny, sent, slots, strategy)
        events = fixed_slots(engine)
        assert grid(page) == drawn(events, "ABCDEF")
        kinds = [kind for *_, kind in events]
        assert legend(page) == {kind: kinds.count(kind) for kind in legend(page)}
        begun = {}
        ended = {}
        for step, _, request, kind in events:
            begun.setdefault(request, step)
            if kind in ("prefill", "decode"):
                ended[request] = step
        for i, (request, shown) in enumerate(zip(requests, answers(page), strict=True)):
            text = tiny[1].decode(request.token_ids)
            assert shown == [f"steps {begun[i]}–{ended[i]}", in_one_line(text)]
        assert f"{strategy} {engine.stats.step_count}" in page.locator(".qwl-took").inner_text()
        assert said(page).endswith(
            f"All answers are here after {engine.stats.step_count} steps, {passes(events)} passes "
            f"of the model. Of {len(events)} row-steps {kinds.count('wasted')} were wasted and "
            f"{kinds.count('idle')} idle."
        )


HEAR = """(steps) => {
  const button = [...document.querySelectorAll(".qwl-stage button")].find(
    (one) => one.textContent === "Step ▶",
  );
  return Array.from({ length: steps }, () => {
    button.click();
    return document.querySelector(".qwl-sentence").textContent;
  });
}"""


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_sentence_says_who_comes_and_who_stops(open_widget, tiny, strategy):
    page = open_widget("queue")
    choose(page, strategy)
    engine, _ = serve(tiny, [(text, 0) for text in POOL[:5]], 3, strategy)
    events = fixed_slots(engine)
    heard = page.evaluate(HEAR, engine.stats.step_count)
    assert heard[0].startswith("A, B and C take slots 0, 1 and 2, their prompts are read")
    assert "All answers are here" in heard[-1] and "All answers" not in heard[-2]
    last = {}  # step of each request's last token
    for step, _, request, kind in events:
        if kind in ("prefill", "decode"):
            last[request] = step
    for request, step in last.items():
        (stopping,) = re.findall(r"([A-E](?:[A-E, ]| and )*) stops?\.", heard[step])
        assert "ABCDE"[request] in stopping
    holder = {}  # of each slot
    for step, slot, request, kind in events:
        name = None if request is None else "ABCDE"[request]
        if step > 0 and kind == "prefill" and strategy == "continuous":
            takes = f"{holder[slot]} stopped, so {name} takes slot {slot} in this step."
            assert takes in heard[step]
        if kind == "wasted" and step not in last.values() and "take" not in heard[step]:
            assert f"{name}" in re.findall(r"; (.+) (?:is|are) computed in vain", heard[step])[0]
        holder[slot] = name


def test_the_queue_obeys_the_keyboard(open_widget):
    page = open_widget("queue")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "▶ Play"
    page.keyboard.press("Enter")
    page.wait_for_function("document.querySelectorAll('.qwl-figure tbody td').length > 6")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.textContent") == "▶ Play"
    stands = grid(page)
    page.wait_for_timeout(300)
    assert grid(page) == stands
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    assert len(grid(page)[0]) == len(stands[0]) + 1
    for _ in range(2):  # start again, then the strategies
        page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.value") == "early-stop"
    assert grid(page) == [[], [], []]
    page.get_by_label("Your own").focus()
    page.keyboard.type("17+25+3?")
    page.keyboard.press("Enter")
    assert said(page) == "F joins the queue before step 0."
    assert page.get_by_label("Prompt of request F").input_value() == "17+25+3?"


# --- A batch step by step ------------------------------------------------------------------------


def until_stop(ids, stop_ids):
    """Stop id included."""
    for place, token_id in enumerate(ids):
        if token_id in stop_ids:
            return ids[: place + 1]
    return ids


def rectangle(tiny, prompts, pads):
    """The answers of a loop that computes the whole rectangle at every step."""
    model, tokenizer = tiny
    input_ids, real = qwenlab.left_pad(prompts, tokenizer.pad_id)
    width = input_ids.shape[1]
    if pads == "right":
        for row, ids in enumerate(prompts):
            padded = ids + [tokenizer.pad_id] * (width - len(ids))
            input_ids[row] = torch.tensor(padded)
            real[row] = torch.arange(width) < len(ids)
    answers = [[] for _ in prompts]
    while not all(set(ids) & model.stop_ids for ids in answers):
        mask = qwenlab.combined_mask(real)
        total = input_ids.shape[1]
        if pads == "dropped":
            mask[:, :, width:] = qwenlab.causal_mask(total, total)[width:]
        logits = model(input_ids, mask, position_ids=qwenlab.position_ids(real))[:, -1]
        new = logits.argmax(-1, keepdim=True)
        input_ids = torch.cat([input_ids, new], dim=1)
        real = torch.cat([real, torch.ones_like(new, dtype=torch.bool)], dim=1)
        answers = input_ids[:, width:].tolist()
        assert len(answers[0]) <= MOST
    return [until_stop(ids, model.stop_ids) for ids in answers]


def shown_tokens(tiny, ids):
    model, tokenizer = tiny
    texts = [tokenizer.decode([token_id]).replace("\n", "⏎") for token_id in ids]
    return ["stop" if one in model.stop_ids else text for one, text in zip(ids, texts, strict=True)]


def test_a_batch_shows_each_token_and_outlines_what_differs_from_alone(open_widget, tiny):
    tokenizer = tiny[1]
    prompts = [chat(tokenizer, text) for text in BATCH]
    _, requests = serve(tiny, [(text, 0) for text in BATCH], 1, "sequential")
    alone = [[*request.token_ids, request.stop_id] for request in requests]
    page = open_widget("steps")
    differ = {}
    for pads in ("hidden", "dropped", "right"):
        choose(page, pads)
        expected = alone if pads == "hidden" else rectangle(tiny, prompts, pads)
        steps = max(map(len, expected))
        press(page, "Step ▶", steps)
        lines = grid(page)
        rows = page.locator(".qwl-figure tbody tr").all()
        for b, (ids, line) in enumerate(zip(expected, lines, strict=True)):
            width = max(map(len, prompts)) - len(prompts[b])
            rect = [f"{len(prompts[b])} tokens", f"{width} pads" if width else ""]
            assert line[:2] == (rect if pads == "right" else rect[::-1])
            tokens = shown_tokens(tiny, ids)
            tokens[0] = "▸" + tokens[0]
            assert line[2:] == tokens + ["×" + "ABCD"[b]] * (steps - len(ids))
            padded = alone[b] + [None] * len(ids)
            marks = [token != padded[i] for i, token in enumerate(ids)]
            outlined = (
                rows[b]
                .locator("td")
                .evaluate_all(
                    "(cells) => cells.slice(2).map((cell) => cell.classList.contains('x'))"
                )
            )
            assert outlined == marks + [False] * (steps - len(ids))
            verdict, answer = answers(page)[b]
            assert verdict == ("≠ alone" if any(marks) else "as alone")
            assert answer == in_one_line(tokenizer.decode(ids[:-1]))
            differ.setdefault(pads, []).append(any(marks))
        total = sum(map(len, alone))
        if pads == "hidden":
            assert said(page).endswith(f"in {steps} steps instead of {total}.")
    assert not any(differ["hidden"])
    for longest, *others in (differ["dropped"], differ["right"]):
        assert not longest and any(others)  # the longest row has no pads


def test_a_batch_goes_back_and_plays_by_keyboard(open_widget):
    page = open_widget("steps")
    seen = [(grid(page), said(page))]
    for _ in range(3):
        press(page, "Step ▶")
        seen.append((grid(page), said(page)))
    assert [len(cells[0]) for cells, _ in seen] == [3, 4, 5, 6]
    for earlier in reversed(seen[:-1]):
        press(page, "◀ Step back")
        assert (grid(page), said(page)) == earlier
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_function("document.querySelectorAll('.qwl-figure tbody td').length > 20")
    page.keyboard.press("Space")
    assert page.evaluate("document.activeElement.textContent") == "▶ Play"
    page.get_by_label("Prompt of row B").fill("2+2?")
    assert [len(line) for line in grid(page)] == [3, 3, 3]
    press(page, "Step ▶", 60)
    assert answers(page)[1] == ["as alone", "2+2=4→ 4"]


# --- In the lessons ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_begins_with_its_widget(chromium, address, name):
    """All of it can be seen at once on a desk, and fits the width of a telephone."""
    with Watch(chromium, address) as watch:
        page = watch.open(f"notebooks/{name}.html")
        page.wait_for_selector("[data-state=ready]")
        box = page.locator(".qwl-page").first.bounding_box()
        assert box["y"] + box["height"] <= 800 and box["x"] + box["width"] <= DESK
        before = page.locator(".qwl-page").first.bounding_box()
        press(page, "Step ▶", 40)
        assert page.locator(".qwl-page").first.bounding_box() == before, "it has moved"
        watch.look(TELEPHONE, "dark")
        assert page.evaluate("document.documentElement.scrollWidth") <= TELEPHONE
        assert watch.errors == [] and watch.outside == []
