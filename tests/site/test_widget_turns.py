"""The widget of lesson 10 shows what the lesson's plain code computes: in Chromium, from a page
opened as a file, without a network."""

import re

import pytest
import torch
from browser import DESK, TELEPHONE, open_page, write_widget_page
from lesson_cells import code_cells
from site_files import SITE, built_pages

from qwenlab.teach.in_page import page_scripts

pytestmark = pytest.mark.browser

LESSON = "10-hiding-padding"
# What each mode of the widget is called in the lesson's own code.
CURES = {
    "zeroed": {"keys", "positions", "zero inputs"},
    "unmasked": {"keys", "positions"},
    "exact": {"keys", "positions", "window", "decay", "beta"},
}
OTHERS = [("What is 40-15+8?", "Now subtract 4."), ("7*8?", "What do you get if you add 9?")]
MOST = 48  # new tokens
SIZES = {DESK: (DESK, 800), TELEPHONE: (TELEPHONE, 844)}


@pytest.fixture(scope="module")
def names():
    """What the lesson's first cells and its plain code define, and the widget's options."""
    recorded = {}
    found = {"record": lambda name, **options: recorded.update(options)}
    wanted = ("load", "hero", "plain-parts", "plain-linear", "plain-attention", "plain-model")
    for cell in wanted:
        source = code_cells(LESSON)[cell]
        exec(source.replace('page_model("tiny-hybrid").widget(', "record("), found)
    return found | {"options": recorded}


@pytest.fixture(scope="module")
def address(names, tmp_path_factory):
    folder = tmp_path_factory.mktemp("turns")
    return write_widget_page(folder, "turns", "tiny-hybrid", **names["options"])


def open_widget(chromium, address, width=DESK, **options):
    size = dict(zip(("width", "height"), SIZES[width], strict=True))
    page, complaints = open_page(chromium, address, viewport=size, **options)
    page.wait_for_selector("[data-widget][data-state=ready]")
    return page, complaints


@pytest.fixture(scope="module")
def page(chromium, address):
    page, complaints = open_widget(chromium, address, reduced_motion="reduce")
    yield page
    assert complaints == []
    page.close()


# --- The lesson's plain code ---------------------------------------------------------------------


class Talks:
    """Talks that the lesson's `forward` reads, in a batch and alone."""

    def __init__(self, names: dict, talks, mode: str):
        self.names = names
        self.mode = mode
        self.turns = list(zip(*[names["two_turns_of"](*talk) for talk in talks], strict=True))
        self.logits, self.kept, self.here = self.read(range(len(talks)))
        self.alone = [self.read([row]) for row in range(len(talks))]

    def read(self, rows):
        """The last logits, what is kept, and the memories after turn 1 and after each column of
        turn 2."""
        forward, pad_id = self.names["forward"], self.names["pad_id"]
        pad = self.names["qwenlab"].left_pad
        first, second = [pad([turn[row] for row in rows], pad_id) for turn in self.turns]
        kept = self.names["fresh"](len(rows))
        forward(*first, kept, CURES[self.mode])
        memories = [self.memories(kept)]
        for column in range(second[0].shape[1]):
            one = [part[:, column : column + 1] for part in second]
            logits = forward(*one, kept, CURES[self.mode])
            memories.append(self.memories(kept))
        return logits, kept, memories

    def memories(self, kept) -> torch.Tensor:
        """(layers, rows, numbers)"""
        own = [kept[n]["recurrent_state"].flatten(1) for n in self.names["LINEAR"]]
        return torch.stack(own).clone()

    def distances(self, row: int) -> torch.Tensor:
        """(columns of turn 2 and one, layers) against the row alone, beside its size."""
        columns = len(self.here) - 1
        pads = columns - len(self.turns[1][row])
        alone = self.alone[row][2]
        found = []
        for column, memories in enumerate(self.here):
            truth = alone[max(0, column - pads)][:, 0]
            found.append((memories[:, row] - truth).norm(dim=1) / truth.norm(dim=1))
        return torch.stack(found)

    def answers(self) -> list[tuple[str, str]]:
        """What each row generates, here and alone."""
        here = self.go_on(self.logits, self.kept)
        alone = [self.go_on(logits, kept)[0] for logits, kept, _ in self.alone]
        return list(zip(here, alone, strict=True))

    def go_on(self, logits, kept) -> list[str]:
        model, tokenizer = self.names["model"], self.names["tokenizer"]
        new = [[] for _ in logits]
        for _ in range(MOST):
            best = logits[:, -1].argmax(-1)
            for ids, token_id in zip(new, best.tolist(), strict=True):
                ids.append(token_id)
            real = torch.ones(len(new), 1, dtype=torch.bool)
            logits = self.names["forward"](best[:, None], real, kept, CURES[self.mode])
        texts = []
        for ids in new:
            stops = [place for place, token_id in enumerate(ids) if token_id in model.stop_ids]
            texts.append(tokenizer.decode(ids[: min(stops, default=MOST)]))
        return texts


# --- The widget ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain_code(names):
    """The Talks of some talks and mode, made once."""
    known = {}

    def read(talks, mode: str) -> Talks:
        key = (str(talks), mode)
        known[key] = known.get(key) or Talks(names, talks, mode)
        return known[key]

    return read


def set_case(page, talks, mode: str) -> None:
    for row, (question, then) in enumerate(talks):
        name = "AB"[row]
        page.get_by_label(f"Turn 1 of row {name}").fill(question)
        page.get_by_label(f"Turn 2 of row {name}").fill(then)
    page.locator(".qwl-stage:not([data-busy])").wait_for()
    page.locator(f"input[value={mode}]").check()


def go_to_end(page) -> None:
    page.evaluate(
        """() => {
          const buttons = [...document.querySelectorAll(".qwl-stage button")];
          const step = buttons.find((button) => button.textContent === "Step ▶");
          while (step.getAttribute("aria-disabled") !== "true") step.click();
        }"""
    )


def table(page) -> list[list[str]]:
    return page.evaluate(
        "[...document.querySelector('.qwl-stage table').tBodies[0].rows].map((row) => "
        "[...row.querySelectorAll('td')].map((cell) => cell.textContent))"
    )


def sentence(page) -> str:
    return page.locator(".qwl-sentence").inner_text()


def in_one_line(text: str) -> str:
    """An answer as the widgets show it."""
    thought, *boxed = re.sub("</?think>", "", text).split("\\boxed")
    ending = "".join(f"→ {number.strip('{}')}" for number in boxed)
    return re.sub("\n+", " ⏎ ", thought.strip()) + ending


@pytest.mark.parametrize("mode", CURES)
@pytest.mark.parametrize("which", ["the lesson's", pytest.param("others", marks=pytest.mark.full)])
def test_memories_and_answers_are_those_of_the_plain_code(page, names, plain_code, which, mode):
    talks = OTHERS if which == "others" else names["TALKS"]
    truth = plain_code(talks, mode)
    set_case(page, talks, mode)
    go_to_end(page)
    shown = table(page)
    layers = len(names["LINEAR"][:3])
    moved = 0
    for row in range(len(talks)):
        own = shown[row * (1 + layers) : (row + 1) * (1 + layers)]
        assert own[0].count("pad") == len(own[0]) - 2 - len(truth.turns[1][row])
        for layer, cells in enumerate(own[1:]):
            expected = truth.distances(row)[:, layer].tolist()
            for text, value in zip(cells[1:], expected, strict=True):
                if text == "0":
                    assert value < 1e-5
                else:
                    assert mode != "exact"
                    assert abs(float(text) - value) < max(0.0051, 0.51 * min(value, 0.095))
                    moved += 1
    assert (moved > 0) == (mode != "exact")
    lines = page.locator(".qwl-said").all()
    said = sentence(page)
    for row, (here, alone) in enumerate(truth.answers()):
        verdict, answer = lines[row].locator("> *").all_text_contents()
        assert verdict == ("as alone" if here == alone else "≠ alone")
        assert answer == in_one_line(here)
        assert ("AB"[row] + " answers" in said or "AB"[row] + " comes to" in said) == (
            here != alone
        )
    assert ("bit for bit" in said) == (mode == "exact")


def test_the_lesson_opens_on_a_wrong_answer_which_exact_pads_cure(names, plain_code):
    """Whatever the shipped model generates: the first screen must show a failure."""
    (here, alone), _ = plain_code(names["TALKS"], "zeroed").answers()
    assert here != alone
    assert all(here == alone for here, alone in plain_code(names["TALKS"], "exact").answers())


DISTANCES = """(talks) => {
  const [model, tokenizer] = qwenlab.load("tiny-hybrid");
  const run = new qwenlab.TurnsRun(model, tokenizer, talks, "exact");
  return run.frames.flatMap(({ distances }) => distances.flat());
}"""
MUTATIONS = {
    "decay left at pads": ("hide_pads(g, batch, this.value_heads);", ""),
    "beta left at pads": ("hide_pads(beta, batch, this.value_heads);", ""),
    "window ends at pads": (
        "const first = this.num_new_tokens[b];",
        "const first = this.width;",
    ),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_pad_that_is_not_hidden_in_the_script_moves_memories(page, names, mutation):
    """What "exact" is worth: its zeros are computed, by the masking of model.js."""
    script = page_scripts()["model.js"]
    assert max(page.evaluate(DISTANCES, names["TALKS"])) == 0
    before, after = MUTATIONS[mutation]
    assert script.count(before) == 1
    page.evaluate(script.replace(before, after))
    try:
        assert max(page.evaluate(DISTANCES, names["TALKS"])) > 1e-3
    finally:
        page.evaluate(script)


def test_by_keyboard_one_column_at_a_time_and_back(page, names):
    set_case(page, names["TALKS"], "zeroed")
    assert "is that of its row alone" in sentence(page)
    before = table(page)
    page.get_by_role("button", name="Step ▶", exact=True).focus()
    page.keyboard.press("Enter")
    assert sentence(page).startswith("A meets a pad. The input is zero, but A’s memories fade")
    read = [row[2] for row in table(page)]
    assert read[0] == "pad" and "" not in read and all(row[3] == "" for row in table(page)[1:4])
    page.get_by_role("button", name="Step back").focus()
    page.keyboard.press("Enter")
    assert table(page) == before
    page.locator("input[value=zeroed]").focus()
    page.keyboard.press("ArrowLeft")  # round to the last choice
    assert page.locator("input[value=exact]").is_checked()


def test_it_plays_and_pauses(page, names):
    set_case(page, names["TALKS"], "exact")
    page.get_by_role("button", name="▶ Play").click()
    page.wait_for_function("document.querySelector('.qwl-place').textContent.includes('step 2')")
    page.get_by_role("button", name="Pause").click()
    assert page.get_by_role("button", name="▶ Play").count() == 1


def test_without_pads_it_says_so(page):
    set_case(page, [("2+2?", "Then plus 3?"), ("2+2?", "Then plus 3?")], "zeroed")
    assert "none has pads" in sentence(page)
    go_to_end(page)
    assert "bit for bit" in sentence(page)
    cells = [text for row in table(page) for text in row if text not in ("", "⋯")]
    assert "pad" not in cells


# --- How it stands on the page -------------------------------------------------------------------


@pytest.mark.parametrize("width", [DESK, TELEPHONE])
def test_it_takes_the_room_kept_for_it_and_nothing_jumps(chromium, address, width):
    page, complaints = open_widget(chromium, address, width, has_touch=width == TELEPHONE)
    box = page.locator("[data-widget]")
    kept = re.search(r"--qwl-wide:(\d+)px;--qwl-narrow:(\d+)", box.get_attribute("style"))
    places = []
    for mode in CURES:
        choice = page.locator(".qwl-stage label", has_text=re.compile(f"^{mode}$"))
        choice.tap() if width == TELEPHONE else choice.click()
        for _ in range(2):
            places.append((box.bounding_box()["height"], page.locator("ol").bounding_box()["y"]))
            go_to_end(page)
        places.append((box.bounding_box()["height"], page.locator("ol").bounding_box()["y"]))
    assert len(set(places)) == 1, places
    assert abs(places[0][0] - int(kept[1 if width == DESK else 2])) <= 1
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert complaints == []
    page.close()


def test_without_scripts_the_still_shows_how_far_memories_move(
    chromium, address, names, plain_code
):
    page, _ = open_page(chromium, address, java_script_enabled=False)
    shown = page.locator(".qwl-still tbody tr").all_inner_texts()
    expected = plain_code(names["TALKS"], "zeroed").distances(0)[1:].T
    for line, values in zip(shown, expected.tolist(), strict=True):
        numbers = [float(text) for text in line.split("\t")[1:]]
        assert numbers == pytest.approx(values, abs=0.0051)
    page.close()


def test_the_lesson_opens_on_it(chromium):
    built_pages()
    at = (SITE / "notebooks" / f"{LESSON}.html").as_uri()
    page, complaints = open_widget(chromium, at)
    box = page.locator("[data-widget]").first.bounding_box()
    assert box["y"] + box["height"] <= 800 and complaints == []
    page.close()
