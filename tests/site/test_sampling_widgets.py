"""The widgets of sampling show what the library computes: answers that share their prompt, and the
next token's distribution. In Chromium, from a page opened as a file, without a network."""

import itertools
import json
import random
import re

import pytest
import torch
from browser import DESK, TELEPHONE, Watch, open_page, write_widget_page

import qwenlab
from qwenlab.engine.prefix import share
from qwenlab.engine.prompts import make_requests
from qwenlab.engine.request import Request, SamplingParams
from qwenlab.engine.sampling import most_probable, penalise, scale

pytestmark = pytest.mark.browser

PROMPT = "48+13+27+36=?"
MOST = 60  # new tokens in the widgets
OPTIONS = {
    "answers": {"prompt": PROMPT, "n": 8, "height": (463, 664)},
    "sampling": {"prompt": PROMPT, "height": (630, 760)},
}


@pytest.fixture(scope="module")
def tiny():
    return qwenlab.load("tiny", dtype="float32", device="cpu", fast=False)


@pytest.fixture(scope="module")
def addresses(tmp_path_factory):
    return {
        name: write_widget_page(tmp_path_factory.mktemp(name), name, **options)
        for name, options in OPTIONS.items()
    }


@pytest.fixture
def open_widget(chromium, addresses):
    """Opens a widget's page in a tab of its own, which must stay silent and ask nobody."""
    tabs = []

    def open_one(name, width=DESK):
        size = {"width": width, "height": 900}
        page, complaints = open_page(chromium, addresses[name], viewport=size)
        tabs.append((page, complaints))
        page.wait_for_selector("[data-state=ready]")
        return page

    yield open_one
    for page, complaints in tabs:
        assert complaints == []
        page.close()


def prompt_ids(tokenizer, text):
    """A chat whose answer has begun with a thought."""
    chat = tokenizer.chat([{"role": "user", "content": text}])
    return [*chat, tokenizer.control["<think>"], *tokenizer.encode("\n")]


def press(page, name, times=1):
    """Presses a button, which may be disabled by then."""
    page.evaluate(
        """([name, times]) => {
          const buttons = [...document.querySelectorAll(".qwl-stage button")];
          const button = buttons.find((one) => one.textContent === name);
          Array.from({length: times}, () => button.click());
        }""",
        [name, times],
    )


def to_the_end(page):
    press(page, "Step ▶", MOST + 3)


def choose(page, value):
    page.evaluate("(value) => document.querySelector(`input[value=${value}]`).click()", value)


def slide(page, label, value):
    page.get_by_label(label).fill(str(value))


def said(page):
    return page.locator(".qwl-sentence").inner_text()


def legend(page):
    text = page.locator(".qwl-legend").inner_text()
    return {kind: int(number) for kind, number in re.findall(r"(\w+): (\d+)", text)}


def rows(page):
    """For each slot the kinds of its cells, and the texts of those that were sampled."""
    found = page.evaluate(
        """() => [...document.querySelectorAll(".qwl-grid.qwl-tight tbody tr")].map((row) =>
          [...row.querySelectorAll("td")].map((cell) => [cell.className, cell.textContent]))"""
    )
    kinds = [[kind for kind, _ in row] for row in found]
    return kinds, [[text for kind, text in row if kind.startswith("d")] for row in found]


def shown(tiny, ids):
    """Tokens as cells show them."""
    model, tokenizer = tiny
    texts = [tokenizer.decode([token_id]).replace("\n", "⏎") for token_id in ids]
    texts = ["■" if one in model.stop_ids else text for one, text in zip(ids, texts, strict=True)]
    return [re.sub("^ +", lambda spaces: "␣" * len(spaces[0]), text) for text in texts]


def with_stop(request):
    return [*request.token_ids, *([] if request.stop_id is None else [request.stop_id])]


# --- Answers that share their prompt -------------------------------------------------------------


def reading(tiny, text, n, shared):
    """The library's engine, step by step: how many tokens each slot has read, and been copied."""
    model, tokenizer = tiny
    requests = make_requests(model, [prompt_ids(tokenizer, text)], n, max_new_tokens=MOST)
    if shared:
        share(requests, n)
    engine = qwenlab.Engine(model, n)
    for request in requests:
        engine.add_request(request)
    read = [0] * n
    copied = [0] * n
    while engine.has_unfinished():
        engine.step()
        plan = engine.stats.plans[-1]
        reader = {row.slot: row.request.index for row in plan.prefill}
        for row in plan.prefill:
            read[row.request.index] += row.end - row.start
        for copy in plan.copies:
            copied[reader[copy.slot]] += copy.prefix.length
        yield list(read), list(copied), [with_stop(request) for request in requests]


@pytest.mark.parametrize(("n", "text"), [(8, PROMPT), (3, "2+2?"), (1, "What is 7*8?")])
def test_each_slot_reads_or_copies_what_the_library_s_slot_does(open_widget, tiny, n, text):
    page = open_widget("answers")
    page.get_by_label("Prompt", exact=True).fill(text)
    slide(page, "temperature", 0)  # so that the page samples what the library samples
    length = len(prompt_ids(tiny[1], text))
    for way, shared in (("once", True), ("each", False)):
        choose(page, way)
        slide(page, "answers", n)
        assert set(itertools.chain(*rows(page)[0])) == {"i", "o"}
        steps = list(reading(tiny, text, n, shared))
        for step, (read, copied, answers) in enumerate(steps):
            press(page, "Step ▶")
            if 3 < step < len(steps) - 1:
                continue  # nobody reads
            assert legend(page)["read"] == sum(read) and legend(page)["copied"] == sum(copied)
            kinds, texts = rows(page)
            assert texts == [shown(tiny, ids) for ids in answers]
            for slot in range(n):
                prompt = kinds[slot][: kinds[slot].index("o")]
                assert ("f" in prompt) == (read[slot] > 0)
                assert ("a" in prompt) == (copied[slot] > 0)
                assert ("i" in prompt) == (read[slot] + copied[slot] < length)
        assert legend(page)["sampled"] == sum(map(len, answers))
        assert page.locator(".x").count() == 0
    once = length - 1 + n if n > 1 else length
    counts = page.locator(".qwl-counts").inner_text()
    assert f"{once} · n times: {n} × {length} = {n * length}" in counts


def test_how_many_tokens_are_read_is_shown_once_somebody_has_read(open_widget):
    page = open_widget("answers")
    counts = page.locator(".qwl-counts")
    assert counts.inner_text() == "read once: ? · n times: ?"
    press(page, "Step ▶")
    assert re.fullmatch(r"read once: [\d +=]+ · n times: \?", counts.inner_text())
    choose(page, "each")
    press(page, "Step ▶")
    assert "?" not in counts.inner_text()
    slide(page, "answers", 3)
    assert counts.inner_text() == "read once: ? · n times: ?"


def test_the_tokens_of_the_prompt_are_equally_wide(open_widget):
    cells = open_widget("answers").locator("tbody tr:first-child td")
    widths = cells.evaluate_all("cells => cells.map((cell) => cell.clientWidth)")
    assert max(widths) < 2 * min(widths)


def test_sampled_answers_are_the_same_ids_read_once_or_n_times(open_widget, tiny):
    page = open_widget("answers")
    found = {}
    for way in ("once", "each"):
        choose(page, way)
        to_the_end(page)
        found[way] = rows(page)[1]
        assert "every answer equals the one with" in said(page) and "id for id" in said(page)
        assert page.locator(".qwl-sentence").get_attribute("data-kind") == "good"
    assert found["once"] == found["each"] and len({tuple(row) for row in found["once"]}) > 1
    ids = page.evaluate(
        """async ([text, most]) => {
          const [model, tokenizer] = await qwenlab.bring("tiny");
          const chat = tokenizer.chat([{role: "user", content: text}]);
          const begun = [tokenizer.control.get("<think>"), ...tokenizer.encode("\\n")];
          const options = {n: 8, max_new_tokens: most, temperature: 1, shared_prefix: false};
          const {outputs} = qwenlab.generate(model, [[...chat, ...begun]], options);
          return outputs.map(({token_ids, stop_id}) => [...token_ids, stop_id ?? []].flat());
        }""",
        [PROMPT, MOST],
    )
    assert [shown(tiny, row) for row in ids] == found["once"]
    boxed = [re.findall(r"\\boxed\{([^{}]*)\}", tiny[1].decode(row))[-1:] for row in ids]
    values = ["".join(found) or "no box" for found in boxed]
    tally = page.locator(".qwl-stage > span").inner_text().split(": ")[1].split(", ")
    assert sorted(tally) == sorted(f"{value} ({values.count(value)})" for value in set(values))


LOSE = {
    "the copies": "prepare.call(this, {...plan, copies: []})",
    "who gets them": (
        "prepare.call(this, {...plan, copies: plan.copies.map(({prefix}) => ({prefix, slot: 0}))})"
    ),
}


@pytest.mark.parametrize("lost", LOSE)
def test_a_copy_that_gets_lost_is_outlined_and_said(open_widget, lost):
    page = open_widget("answers")
    page.evaluate(f"""() => {{
      const {{prepare}} = qwenlab.Runner.prototype;
      qwenlab.Runner.prototype.prepare = function (plan) {{ {LOSE[lost]}; }};
    }}""")
    to_the_end(page)
    assert page.locator("td.d.x").count() > 0
    assert re.search(r"but slots? [\d, and to]+ did not get the ids .* without sharing", said(page))
    assert page.locator(".qwl-sentence").get_attribute("data-kind") == "bad"


def test_the_sentences_say_who_reads_and_who_waits(open_widget, tiny):
    page = open_widget("answers")
    length = len(prompt_ids(tiny[1], PROMPT))
    assert said(page) == f"8 answers to one prompt of {length} tokens, read once: press Play."
    heard = []
    for _ in range(2):
        press(page, "Step ▶")
        heard.append(said(page))
    assert heard[0] == (
        f"Slot 0 reads {length - 1} tokens, all but the last of the prompt; "
        "slots 1 to 7 wait for a copy."
    )
    assert f"{length - 1} tokens, is copied into slots 1 to 7. Every slot reads" in heard[1]
    press(page, "◀ Step back")
    assert said(page) == heard[0]
    to_the_end(page)
    once = length + 7
    assert f"{once} tokens were read instead of 8 × {length} = {8 * length}" in said(page)
    choose(page, "each")  # it plays at once, since the reader has seen the other way
    assert "Pause" in page.locator(".qwl-stage button").first.inner_text()
    press(page, "◀ Step back", MOST + 3)
    press(page, "Step ▶")
    assert f"All 8 slots read the same {length} tokens and compute the same numbers" in said(page)


def test_answers_obey_the_keyboard(open_widget):
    page = open_widget("answers")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_function("document.querySelectorAll('td.f').length > 0")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.textContent") == "▶ Play"
    page.get_by_label("answers").focus()
    page.keyboard.press("ArrowLeft")
    assert page.locator(".qwl-grid.qwl-tight tbody tr").count() == 7
    assert said(page).startswith("7 answers to one prompt")


# --- The next token's distribution ---------------------------------------------------------------


def ask(page, function, argument):
    through = f"(text) => JSON.stringify(({function})(JSON.parse(text)))"
    return json.loads(page.evaluate(through, json.dumps(argument)))


CHANCES = """([rows, seen, params]) => rows.map((row, i) => {
  const own = {params: params[i], prompt: seen[i], token_ids: []};
  const {before, kept, after} = qwenlab.chances(Float32Array.from(row), own);
  return [[...before], kept, [...after]];
})"""


def cases(seed):
    """Logits of many rows, some of them equal, with settings; ids seen."""
    draw = random.Random(seed)
    logits = torch.randn(24, 300, generator=torch.Generator().manual_seed(seed)) * 3
    logits[::3] = logits[::3].round()  # ties
    seen = [[draw.randrange(300) for _ in range(draw.randint(1, 20))] for _ in logits]
    params = [
        {
            "temperature": draw.choice([0.3, 0.7, 1.0, 1.5, 2.0]),
            "top_k": draw.choice([0, 1, 5, 20]),
            "top_p": draw.choice([1.0, 0.95, 0.5, 0.05]),
            "repetition_penalty": draw.choice([1.0, 1.2, 2.0]),
        }
        for _ in logits
    ]
    return logits, seen, params


def library_chances(logits, seen, params):
    """Probabilities before top-k and top-p, what these keep, and probabilities after them."""
    requests = []
    for ids, own in zip(seen, params, strict=True):
        own = SamplingParams(**own)
        requests.append(Request(0, ids, params=own, max_tokens=1, stop_ids=frozenset()))
    scaled = scale(penalise(logits, requests), requests)
    kept = most_probable(scaled, requests)
    return scaled.softmax(-1), kept, scaled.masked_fill(~kept, -torch.inf).softmax(-1)


def furthest(page, logits, seen, params):
    """Largest difference of a probability from the library's."""
    found = ask(page, CHANCES, [logits.tolist(), seen, params])
    before, kept, after = library_chances(logits, seen, params)
    pairs = [(before, [row[0] for row in found]), (after, [row[2] for row in found])]
    gaps = [(a - torch.tensor(b)).abs().max().item() for a, b in pairs]
    same = torch.equal(kept, torch.tensor([row[1] for row in found]))
    return max(gaps) if same else 1.0


def test_the_chances_are_the_library_s(open_widget):
    page = open_widget("sampling")
    assert furthest(page, *cases(seed=0)) < 1e-6


WRONG = {
    "top-p before top-k": """const {most_probable} = qwenlab;
      qwenlab.most_probable = (scaled, k, p) => {
        const within_p = most_probable(scaled, 0, p);
        return most_probable(scaled, k, 1).map((yes, id) => yes && within_p[id]);
      };""",
    "temperature forgotten": "qwenlab.scale = (logits) => logits.map((value) => value);",
    "penalty forgotten": "qwenlab.penalise = (logits) => logits;",
    "penalty makes negative logits likelier": """qwenlab.penalise = (rows, requests) =>
      rows.map((row, r) => row.map((value, id) =>
        requests[r].prompt.includes(id) ? value / requests[r].params.repetition_penalty : value));""",
    "one token too many": """const {most_probable} = qwenlab;
      qwenlab.most_probable = (scaled, k, p) => most_probable(scaled, k && k + 1, p);""",
}


def test_another_order_or_rule_is_caught(open_widget):
    page = open_widget("sampling")
    page.evaluate("() => { globalThis.right = {...qwenlab}; }")
    for wrong, script in WRONG.items():
        page.evaluate(f"() => {{ Object.assign(qwenlab, right); {script} }}")
        assert furthest(page, *cases(seed=0)) > 1e-5, wrong


def bars(page):
    """(token, percentage, note, classes) of each line."""
    lines = page.evaluate(
        """() => [...document.querySelectorAll(".qwl-bars li")].map((line) =>
          [...[...line.children].map((part) => part.textContent), line.className])"""
    )
    return [(token, percent, note, kind) for token, _, percent, note, kind in lines]


SLIDERS = ("temperature", "top-k", "top-p", "repetition penalty")
SETTINGS = [(1, 0, 1, 1), (1.6, 5, 1, 1), (0.6, 0, 0.8, 1), (2, 6, 0.7, 1.3)]


def test_bars_show_the_model_s_own_distribution(open_widget, tiny):
    text = "Tom has 14 apples and buys 23 more. How many are there?"
    page = open_widget("sampling")
    page.get_by_label("Prompt", exact=True).fill(text)
    for settings in SETTINGS:
        params = {}
        for label, value in zip(SLIDERS, settings, strict=True):
            slide(page, label, value)
            params[label.replace("-", "_").replace(" ", "_")] = value
        check_bars(page, tiny, prompt_ids(tiny[1], text), params)


def check_bars(page, tiny, ids, params):
    logits = tiny[0](torch.tensor([ids]), last_only=True)
    (before,), (kept,), (after,) = library_chances(logits, [ids], [params])
    (within_k,) = library_chances(logits, [ids], [{**params, "top_p": 1}])[1]
    *lines, rest = bars(page)
    values, likely = before.sort(descending=True, stable=True)
    assert len(lines) == 12
    assert [line[0] for line in lines if line[1] != "< 1%"] == [
        shown(tiny, [one])[0]
        for one, (_, percent, *_) in zip(likely.tolist(), lines, strict=False)
        if percent != "< 1%"
    ]
    for one, value, (_, percent, note, kind) in zip(
        likely.tolist(), values.tolist(), lines, strict=False
    ):
        if kept[one]:
            value = after[one].item()
            assert kind == "" and note.startswith("drawn ")
        else:
            assert kind == "gone" and note == ("top-p" if within_k[one] else "top-k")
        number = float(re.search(r"\d+", percent)[0])
        assert abs(number - 100 * value) < (1 if "<" in percent else 0.51)
    others = likely[12:]
    assert rest[0] == f"{len(others)} others"
    assert ("gone" in rest[3]) == (not kept[others].any().item())
    drawn = sum(int(number) for *_, note, _ in bars(page) for number in re.findall(r"\d+", note))
    assert drawn == 100
    left = int(kept.sum())
    assert (f"{left} tokens" if left > 1 else "One token is left.") in said(page)


def test_a_hundred_draws_are_those_of_the_library_in_the_page(open_widget, tiny):
    page = open_widget("sampling")
    slide(page, "temperature", 1.5)
    slide(page, "top-k", 6)
    firsts = page.evaluate(
        """async (text) => {
          const [model, tokenizer] = await qwenlab.bring("tiny");
          const chat = tokenizer.chat([{role: "user", content: text}]);
          const begun = [tokenizer.control.get("<think>"), ...tokenizer.encode("\\n")];
          const options = {temperature: 1.5, top_k: 6, n: 100, max_new_tokens: 1, stop: []};
          const {outputs} = qwenlab.generate(model, [[...chat, ...begun]], options);
          return outputs.map(({token_ids}) => token_ids[0]);
        }""",
        PROMPT,
    )
    texts = [shown(tiny, [one])[0] for one in firsts]
    tally = {token: int(note[6:-1]) for token, _, note, kind in bars(page) if kind == ""}
    assert {token: times for token, times in tally.items() if times} == {
        token: texts.count(token) for token in set(texts)
    }


def test_draws_make_the_answer_of_generate_and_can_be_taken_back(open_widget, tiny):
    page = open_widget("sampling")
    slide(page, "temperature", 1.3)
    slide(page, "repetition penalty", 1.1)
    press(page, "New seed")
    settings = {"temperature": 1.3, "repetition_penalty": 1.1, "seed": 1}
    ids, stop_id = page.evaluate(
        """async ([text, options]) => {
          const [model, tokenizer] = await qwenlab.bring("tiny");
          const chat = tokenizer.chat([{role: "user", content: text}]);
          const begun = [tokenizer.control.get("<think>"), ...tokenizer.encode("\\n")];
          const {outputs} = qwenlab.generate(model, [[...chat, ...begun]], options);
          return [outputs[0].token_ids, outputs[0].stop_id];
        }""",
        [PROMPT, {**settings, "max_new_tokens": MOST}],
    )
    expected = shown(tiny, ids if stop_id is None else [*ids, stop_id])
    begun = page.locator(".qwl-grid.qwl-tight td").count()
    answer = lambda: page.locator(".qwl-grid.qwl-tight td").all_text_contents()[begun:]  # noqa: E731
    for place, token in enumerate(expected[:5]):
        press(page, "Draw")
        assert answer()[place] == token and f"fell to “{token}”" in said(page)
    press(page, "Take back", 3)
    assert answer() == expected[:2]
    press(page, "Draw", MOST + 3)
    assert answer() == expected
    if stop_id is not None:
        assert "It is a stop id" in said(page) and bars(page)[0][0] == ""


def test_temperature_0_always_takes_the_most_probable_token(open_widget, tiny):
    page = open_widget("sampling")
    slide(page, "temperature", 0)
    (best, _, note, _), *others = bars(page)
    assert note == "drawn 100×" and {other[2] for other in others} == {"temperature 0"}
    assert said(page) == f"Temperature 0 always takes the most probable token, “{best}”."
    greedy = qwenlab.generate(tiny[0], [prompt_ids(tiny[1], PROMPT)], max_new_tokens=3)
    press(page, "Draw", 3)
    shown_answer = page.locator(".qwl-grid.qwl-tight td").all_text_contents()
    assert shown_answer[-3:] == shown(tiny, greedy[0].token_ids)


# --- Room, and readers without scripts -----------------------------------------------------------


@pytest.mark.parametrize("width", [DESK, TELEPHONE])
@pytest.mark.parametrize("name", OPTIONS)
def test_nothing_jumps_while_it_is_used(open_widget, name, width):
    page = open_widget(name, width)
    box = page.locator(".qwl-page")
    heights = {box.bounding_box()["height"]}
    if name == "answers":
        slide(page, "answers", 3)
        heights.add(box.bounding_box()["height"])
        to_the_end(page)
    else:
        for label, value in zip(SLIDERS, SETTINGS[3], strict=True):
            slide(page, label, value)
        heights.add(box.bounding_box()["height"])
        press(page, "Draw", 30)
    heights.add(box.bounding_box()["height"])
    assert max(heights) - min(heights) <= 1
    kept = OPTIONS[name]["height"][0 if width == DESK else 1]
    assert kept - 40 <= max(heights) <= kept + 1
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("name", ["05-batched-generation", "08-shared-prefix"])
def test_the_lesson_has_its_widget_where_it_belongs(chromium, address, name):
    """The answers on the first screen; the next token where sampling is explained."""
    widget = "answers" if name.startswith("08") else "sampling"
    with Watch(chromium, address) as watch:
        page = watch.open(f"notebooks/{name}.html")
        found = page.locator(f"[data-widget={widget}]")
        if widget == "answers":
            box = found.bounding_box()
            assert box["y"] + box["height"] <= 800 and box["x"] + box["width"] <= DESK
        found.scroll_into_view_if_needed()
        page.wait_for_selector(f"[data-widget={widget}][data-state=ready]")
        watch.look(TELEPHONE, "dark")
        assert page.evaluate("document.documentElement.scrollWidth") <= TELEPHONE
        assert watch.errors == [] and watch.outside == []
    with Watch(chromium, address, scripts=False) as watch:
        page = watch.open(f"notebooks/{name}.html")
        still = page.locator(f"[data-widget={widget}] .qwl-still table").first
        assert still.locator("td").count() > 10
