"""The widgets of lessons 03 and 04, as their first cells make them, show what the library computes:
in Chromium, from a page opened as a file, without a network."""

import random
import re

import pytest
import torch
import torch.nn.functional as F
from browser import DESK, TELEPHONE, open_page, write_widget_page
from helpers import watched
from lesson_cells import code_cells
from site_files import SITE, built_pages

from qwenlab.model.attention import repeat_heads
from qwenlab.model.softmax import VARIANTS, masked_softmax

pytestmark = pytest.mark.browser

LESSONS = {"mask": "03-combined-mask", "nan": "04-nan-rows"}
SIZES = {DESK: (DESK, 800), TELEPHONE: (TELEPHONE, 844)}
MOST = 12  # tokens of an answer


# --- The pages -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def firsts(tmp_path_factory):
    """Each lesson's names after its first cells, and the address of a page with its widget."""
    found = {}
    for widget, lesson in LESSONS.items():
        recorded = {}
        names = {"record": lambda name, kept=recorded, **options: kept.update({name: options})}
        for cell, source in code_cells(lesson).items():
            exec(source.replace('page_model("tiny").widget(', "record("), names)
            if cell == "hero":
                break
        address = write_widget_page(tmp_path_factory.mktemp(widget), widget, **recorded[widget])
        found[widget] = (names, address)
    return found


class Tab:
    """A page with a widget, opened as a file."""

    def __init__(self, chromium, address: str, width: int = DESK, **options):
        size = dict(zip(("width", "height"), SIZES[width], strict=True))
        self.page, self.complaints = open_page(chromium, address, viewport=size, **options)

    def wait(self) -> None:
        """Until the widget is there and has answered."""
        self.page.locator("[data-widget][data-state=ready]").wait_for()
        self.page.locator(".qwl-stage:not([data-busy])").wait_for()

    def tables(self) -> list[list[list[str]]]:
        """The texts of all cells of each table's body."""
        return self.page.evaluate(
            "[...document.querySelectorAll('.qwl-stage table')].map((table) => "
            "[...table.tBodies[0].rows].map((row) => "
            "[...row.querySelectorAll('td')].map((cell) => cell.textContent)))"
        )

    def sentence(self) -> str:
        return self.page.locator(".qwl-sentence").inner_text()

    def choose(self, text: str) -> None:
        self.page.locator(".qwl-stage label", has_text=re.compile(f"^{re.escape(text)}$")).click()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.page.close()


@pytest.mark.parametrize("width", [DESK, TELEPHONE])
@pytest.mark.parametrize("widget", LESSONS)
def test_a_widget_takes_the_room_kept_for_it_and_fits(chromium, firsts, widget, width):
    """So nothing jumps when it comes, nor when the reader uses it."""
    with Tab(chromium, firsts[widget][1], width) as tab:
        box = tab.page.locator("[data-widget]")
        tab.wait()
        before = box.bounding_box()["height"]
        places = [tab.page.locator(".qwl-stage table").last.bounding_box()["y"]]
        for choice in ("later", "nothing", "48-15=") if widget == "mask" else ("finfo.min", "-inf"):
            tab.choose(choice)
            tab.wait()
            for _ in range(4 if widget == "nan" else 0):
                step = tab.page.locator(".qwl-button", has_text=re.compile("^Step ▶"))
                step.evaluate("(button) => button.click()")
                places.append(tab.page.locator(".qwl-stage table").last.bounding_box()["y"])
            places.append(tab.page.locator(".qwl-stage table").last.bounding_box()["y"])
        assert max(places) - min(places) <= 1
        assert abs(box.bounding_box()["height"] - before) <= 1
        kept = int(re.search(r"--qwl-wide:(\d+)px;--qwl-narrow:(\d+)", box.get_attribute("style"))[
            1 if width == DESK else 2
        ])  # fmt: skip
        assert kept - 40 <= before <= kept + 1
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
        assert tab.complaints == []


@pytest.mark.parametrize("widget", LESSONS)
def test_without_scripts_the_still_shows_the_failure(chromium, firsts, widget):
    names, address = firsts[widget]
    with Tab(chromium, address, java_script_enabled=False) as tab:
        shown = tab.page.locator(".qwl-still").inner_text()
    if widget == "mask":
        row = row_of(names, 0)
        answers = [next_token(names, row, row.mask()), next_token(names, row, row.hinted())]
        assert answers[0] != answers[1]
        assert f"{answers[1]} comes next, under the right mask {answers[0]}" in shown
    else:
        found, *_ = under(names, "-inf")
        assert shown.count("NaN") == int((~found[:-1, 0]).sum()) > 0


@pytest.mark.parametrize("widget", LESSONS)
def test_the_widget_stands_on_the_first_screen_of_its_lesson(chromium, widget):
    built_pages()
    address = (SITE / "notebooks" / f"{LESSONS[widget]}.html").as_uri()
    with Tab(chromium, address) as tab:
        tab.wait()
        box = tab.page.locator("[data-widget]").first.bounding_box()
        assert box["y"] + box["height"] <= 800 and tab.complaints == []


# --- The mask ------------------------------------------------------------------------------------

RULES = {"later or pad": (True, True), "later": (True, False), "pad": (False, True)}
RULES["nothing"] = (False, False)


class Row:
    """One row of the batch: a rule and the reader's flips, written out in plain loops."""

    def __init__(self, ids: list[int], real: list[bool], hint: int):
        self.ids = ids
        self.real = real
        self.hint = hint
        self.rule = "later or pad"
        self.flips = set()

    def reason(self, query: int, key: int) -> str:
        causal, padding = RULES[self.rule]
        later = causal and key > query
        pad = padding and not self.real[key]
        return "both" if later and pad else "later" if later else "pad" if pad else ""

    def text(self, query: int, key: int) -> str:
        """What stands in the cell."""
        flipped = (query, key) in self.flips
        if self.reason(query, key):
            return "you" if flipped else self.reason(query, key)
        return "you" if flipped else ""

    def mask(self) -> torch.Tensor:
        """(1, 1, T, T), True = may attend."""
        places = range(len(self.ids))
        rows = []
        for query in places:
            flipped = [(query, key) in self.flips for key in places]
            rows.append([(not self.reason(query, key)) != flipped[key] for key in places])
        return torch.tensor([[rows]])

    def hinted(self) -> torch.Tensor:
        mask = self.mask()
        mask[0, 0, -1, self.hint] = False
        return mask


def row_of(names: dict, number: int) -> Row:
    return Row(
        names["input_ids"][number].tolist(),
        names["real"][number].tolist(),
        names["hints"][number],
    )


def logits_of(names: dict, row: Row, mask: torch.Tensor, more: list[int]) -> torch.Tensor:
    """(V,) after the row and the tokens generated so far."""
    positions = [max(0, place - row.real.count(False)) for place in range(len(row.ids + more))]
    ids = torch.tensor([row.ids + more])
    return names["model"](ids, mask, position_ids=torch.tensor([positions]), last_only=True)[0]


def next_token(names: dict, row: Row, mask: torch.Tensor) -> str:
    return names["tokenizer"].decode([int(logits_of(names, row, mask, []).argmax())])


def answer_of(names: dict, row: Row) -> tuple[torch.Tensor, list[str]]:
    """Probabilities of the next token, and the answer's tokens up to the stop. A token that is
    generated sees what the last query sees, and the tokens generated before it."""
    mask = row.mask()
    new = []
    first = None
    while len(new) < MOST and new[-1:] != ["stop"]:
        logits = logits_of(names, row, mask, new)
        first = logits.softmax(-1) if first is None else first
        new.append(int(logits.argmax()))
        if new[-1] in names["model"].stop_ids:
            new[-1] = "stop"
        mask = F.pad(mask, (0, 1, 0, 1))
        mask[0, 0, -1] = mask[0, 0, -2]
        mask[0, 0, -1, -1] = True
    return first, [id if id == "stop" else shown(names, id) for id in new]


def shown(names: dict, token_id: int) -> str:
    return names["tokenizer"].decode([token_id]).replace("\n", "⏎")


def check_mask(tab: Tab, names: dict, row: Row) -> None:
    """Why each cell is dark, the bars, and the answer."""
    places = range(len(row.ids))
    cells = [line[1:] for line in tab.tables()[0][1:]]
    dark = tab.page.evaluate(
        "[...document.querySelectorAll('.qwl-mask tbody tr')].map((row) => "
        "[...row.cells].map((cell) => cell.classList.contains('a')))"
    )
    probabilities, answer = answer_of(names, row)
    assert [line[1:] for line in dark[1:]] == row.mask()[0, 0].tolist()
    for query in places:
        for key in places:
            assert cells[query][key] == row.text(query, key)
    assert tab.page.locator(".qwl-mask-line").first.locator("span").all_inner_texts() == answer
    bars = tab.page.locator(".qwl-bars li").all_inner_texts()
    token, percent = bars[0].split("\n")[:2]
    assert token == shown(names, int(probabilities.argmax()))
    assert abs(float(percent.rstrip("%")) - 100 * float(probabilities.max())) <= 0.51


@pytest.fixture
def mask_tab(chromium, firsts):
    names, address = firsts["mask"]
    with Tab(chromium, address) as tab:
        tab.wait()
        yield tab, names
        assert tab.complaints == []


def test_the_proposed_flip_by_keyboard_changes_the_answer_as_in_python(mask_tab):
    tab, names = mask_tab
    row = row_of(names, 0)
    check_mask(tab, names, row)
    before = next_token(names, row, row.mask())
    tab.page.locator(".qwl-button", has_text="Undo flips").focus()
    tab.page.keyboard.press("Tab")  # into the grid, to the cell that is proposed
    assert tab.page.evaluate("document.activeElement.classList.contains('hint')")
    tab.page.keyboard.press("Space")
    tab.wait()
    row.flips.add((len(row.ids) - 1, row.hint))
    after = next_token(names, row, row.mask())
    key = shown(names, row.ids[row.hint])
    changed = f"changed the next token from “{before}” to “{after}”."
    assert before != after and tab.sentence() == f"Hiding “{key}” from “=” {changed}"
    check_mask(tab, names, row)
    for arrow in ("ArrowUp", "ArrowLeft"):
        tab.page.keyboard.press(arrow)
    tab.page.keyboard.press("Space")
    tab.wait()
    row.flips.add((len(row.ids) - 2, row.hint - 1))
    check_mask(tab, names, row)
    tab.page.locator(".qwl-button", has_text="Undo flips").click()
    tab.wait()
    row.flips.clear()
    check_mask(tab, names, row)


def test_random_flips_under_each_rule_give_what_python_gives(mask_tab):
    tab, names = mask_tab
    rng = random.Random(0)
    for number, rule in enumerate(RULES):
        chosen = number % len(names["LINES"])
        row = row_of(names, chosen)
        tab.choose(names["LINES"][chosen])
        tab.choose(rule)
        row.rule = rule
        width = len(row.ids)
        row.flips = {(width - 1, rng.randrange(width - 1)) for _ in range(2)}
        row.flips |= {(rng.randrange(width), rng.randrange(width)) for _ in range(6)}
        for query, key in row.flips:
            tab.page.locator(".qwl-mask tbody tr").nth(query + 1).locator("td").nth(key + 1).click()
        tab.wait()
        check_mask(tab, names, row)


def test_a_key_is_hidden_from_all_queries_at_once_and_touch_works(chromium, firsts):
    names, address = firsts["mask"]
    with Tab(chromium, address, TELEPHONE, has_touch=True) as tab:
        tab.wait()
        row = row_of(names, 0)
        place = row.hint
        tab.page.locator(".qwl-mask tbody tr").first.locator("td").nth(place + 1).tap()
        tab.wait()
        row.flips = {(query, place) for query in range(place, len(row.ids))}
        assert "from every query" in tab.sentence()
        new = tab.page.locator(".qwl-mask-line").first.locator("span").all_inner_texts()
        assert new == answer_of(names, row)[1] and tab.complaints == []
        texts = [line[place + 1] for line in tab.tables()[0][1:]]
        assert texts == ["l"] * place + ["y"] * (len(row.ids) - place)  # short, for they are narrow


def test_shades_are_the_attention_weights(mask_tab):
    tab, names = mask_tab
    row = row_of(names, 0)
    found = []

    def attend(q, k, v, mask, scale):
        groups = q.shape[1] // k.shape[1]
        found.append(masked_softmax(q @ repeat_heads(k, groups).mT * scale, mask))
        return found[-1] @ repeat_heads(v, groups)

    names["model"].attention = attend
    next_token(names, row, row.mask())
    names["model"].attention = "sdpa"
    for layer, head in ((0, 0), (len(found) - 1, found[0].shape[1] - 1)):
        tab.page.locator(".qwl-stage select").select_option(f"{layer} {head}")
        cells = [line[1:] for line in tab.tables()[0][1:]]
        for query, key in row.mask()[0, 0].nonzero().tolist():
            weight = float(found[layer][0, head, query, key])
            assert abs(float(cells[query][key]) - weight) <= 0.0051


# --- NaN -----------------------------------------------------------------------------------------


def under(names: dict, cure: str):
    """What is finite (depth, B, T), the first pad's weights (T,), the ids that come next and each
    row's loss, under one variant of the softmax."""
    model = names["model"]
    ids = names["batch_ids"]
    with watched(model, cure) as (weights, finite):
        logits = model(ids, names["batch_mask"], position_ids=names["batch_positions"])
    losses = []
    for row, real in enumerate(names["real"].tolist()):
        first = real.index(True)
        losses.append(F.cross_entropy(logits[row, first:-1], ids[row, first + 1 :]).item())
    return torch.stack(finite), weights[0][0, 0, 0], logits[:, -1], losses


@pytest.mark.parametrize("cure", VARIANTS)
def test_each_cure_shows_what_python_computes_step_by_step(chromium, firsts, cure):
    names, address = firsts["nan"]
    finite, weights, last, losses = under(names, cure)
    depths = len(finite)
    expected = [[["ok" if x else "NaN" for x in row] for row in table] for table in finite.tolist()]
    with Tab(chromium, address) as tab:
        tab.wait()
        tab.choose(cure)
        back = tab.page.locator(".qwl-button", has_text="Step back")
        forward = tab.page.locator(".qwl-button", has_text=re.compile("^Step ▶"))
        back.focus()
        tab.page.keyboard.press("Enter")
        for step in range(depths + 1):
            first, second, out = tab.tables()
            shown_weights = first.pop(2)
            for row, table in enumerate((first, second)):
                so_far = [expected[depth][row] for depth in range(min(step + 1, depths))]
                assert table[1:] == so_far + [[""] * len(weights)] * (depths - len(so_far))
            for text, weight in zip(shown_weights, weights.tolist(), strict=True):
                seen = float(text) if step else None
                assert (text == "") if step == 0 else same(seen, weight, 0.00051)
            if step < depths:
                assert [line[1] for line in out[:2]] == ["", ""]
                forward.focus()
                tab.page.keyboard.press("Enter")
        tokens = ["NaN" if row.isnan().any() else shown(names, int(row.argmax())) for row in last]
        assert [line[1] for line in out[:2]] == tokens
        for line, loss in zip(out, [*losses, sum(losses) / len(losses)], strict=True):
            assert same(float(line[2]), loss, 0.0051)
        assert ("NaN" in tab.sentence()) == (cure == "-inf") and tab.complaints == []


def same(a: float, b: float, most: float) -> bool:
    return (a != a and b != b) or abs(a - b) <= most


def test_playing_walks_to_the_end_and_pauses_there(chromium, firsts):
    with Tab(chromium, firsts["nan"][1]) as tab:
        tab.wait()
        play = tab.page.locator(".qwl-button").first
        play.click()
        assert "Pause" in play.inner_text()
        tab.page.get_by_text("step 4 of 4").wait_for()
        assert "Play" in play.inner_text()
        assert "Row 0 has no next token" in tab.sentence() and tab.complaints == []
