"""teach.timeline: rows over steps, four kinds told apart without colour, as HTML, as text and as a
figure."""

import random

import pytest
from bs4 import BeautifulSoup
from helpers import random_model

from qwenlab import Engine, generate
from qwenlab.engine.results import Event
from qwenlab.engine.scheduler import POLICIES
from qwenlab.teach import explore, fixed_slots, image, palette, timeline

EVENTS = [
    (0, 0, 0, "prefill"),
    (0, 1, 1, "prefill"),
    (1, 0, 0, "decode"),
    (1, 1, 1, "decode"),
    (2, 0, 0, "decode"),
    (2, 1, 1, "wasted"),
    (3, 0, 2, "prefill"),
    (3, 1, None, "idle"),
]
CLASSES = {"prefill": "f", "decode": "d", "wasted": "u", "idle": "i"}


def grid(picture):
    """[[(text, class), ...], ...] of the first table, and its row labels."""
    table = BeautifulSoup(picture._repr_html_(), "html.parser").table
    lines = table.tbody.find_all("tr")
    return [[(td.text, td["class"][0]) for td in tr.find_all("td")] for tr in lines], [
        tr.th.text for tr in lines
    ]


def test_slots_over_steps():
    cells, labels = grid(timeline(EVENTS, names="ABC", title="static"))
    assert labels == ["slot 0", "slot 1"]
    assert cells == [
        [("▸A", "f"), ("A", "d"), ("A", "d"), ("▸C", "f")],
        [("▸B", "f"), ("B", "d"), ("×B", "u"), ("·", "i")],
    ]


def test_requests_over_steps_with_what_they_sampled():
    tokens = [["x", "\n", " z"], ["u", "v"], ["w"]]
    cells, labels = grid(timeline(EVENTS, by="request", names="ABC", sampled=tokens))
    assert labels == ["request A", "request B", "request C"]
    assert cells == [
        [("▸x", "f"), ("⏎", "d"), ("␣z", "d"), ("", "o")],
        [("▸u", "f"), ("v", "d"), ("×B", "u"), ("", "o")],
        [("", "o"), ("", "o"), ("", "o"), ("▸w", "f")],
    ]


@pytest.mark.parametrize("strategy", POLICIES)
def test_fixed_slots_keep_each_request_where_it_began_and_change_nothing_else(strategy):
    draw = random.Random(strategy)
    model = random_model()
    for _ in range(5):
        caps = [draw.randint(1, 9) for _ in range(draw.randint(1, 8))]
        run = generate(
            model,
            [[1]] * len(caps),
            max_new_tokens=caps,
            stop=(),
            slots=draw.randint(1, 4),
            strategy=strategy,
        )
        fixed = fixed_slots(run)
        slots_of = {}
        for request in range(len(caps)):
            slots_of[request] = {slot for _, slot, who, _ in fixed if who == request}
        assert all(len(slots) == 1 for slots in slots_of.values())
        assert sorted((step, str(who), kind) for step, _, who, kind in fixed) == sorted(
            (event.step, str(event.request), event.kind) for event in run.stats.events
        )


def test_fixed_slots_take_the_lowest_free_slot():
    moved = [
        (0, 0, 0, "prefill"),
        (0, 1, 1, "prefill"),
        (0, 2, 2, "prefill"),
        (1, 0, 2, "decode"),  # 0 and 1 have left
        (1, 1, 3, "prefill"),
        (1, 2, None, "idle"),
    ]
    assert fixed_slots(moved)[3:] == [
        (1, 0, 3, "prefill"),
        (1, 1, None, "idle"),
        (1, 2, 2, "decode"),
    ]


def test_it_takes_a_result_its_stats_or_a_part_of_its_events():
    model = random_model()
    result = generate(
        model,
        [[1, 2], [3, 4, 5], [6]],
        max_new_tokens=[4, 1, 2],
        stop=(),
        strategy="static",
        slots=2,
    )
    events = result.stats.events
    assert timeline(result).body == timeline(result.stats).body == timeline(events).body
    cells, _ = grid(timeline(result))
    for event in events:  # plain loop: every event is in its place
        text, kind = cells[event.slot][event.step]
        assert kind == CLASSES[event.kind]
        assert text == {"prefill": "▸", "decode": "", "wasted": "×", "idle": "·"}[event.kind] + (
            "" if event.request is None else str(event.request)
        )
    assert sum(map(len, cells)) == len(events)
    part = [event for event in events if event.step >= 4]
    assert BeautifulSoup(timeline(part).body, "html.parser").find_all("th")[0].text == "4"


def test_the_legend_counts_each_kind_and_the_alt_text_says_it():
    picture = timeline(EVENTS, title="static")
    soup = BeautifulSoup(picture._repr_html_(), "html.parser")
    legend = soup.find_all("table")[1]
    assert [th.text for th in legend.find_all("th")] == [
        "prefill: 3",
        "decode: 3",
        "wasted: 1",
        "idle: 1",
    ]
    assert [td["class"] for td in legend.find_all("td")] == [["f"], ["d"], ["u"], ["i"]]
    words = "▸ prefill: 3, decode: 3, × wasted: 1, · idle: 1"
    assert picture.alt == f"static: 2 slots over 4 steps; {words}." and words in repr(picture)
    assert soup.find(attrs={"role": "group"})["aria-label"] == picture.alt
    assert timeline(EVENTS, alt="mine").alt == "mine"


def test_without_colour_the_four_kinds_differ():
    """By text everywhere; in print by hatch, border and darkness too."""
    figure = timeline(EVENTS).figure()
    looks = {}
    for patch, text in zip(figure.axes[0].patches, figure.axes[0].texts, strict=True):
        grey = (
            round(palette.luminance(palette.LIGHT["prefill"]), 2)
            if text.get_text()[0] == "▸"
            else None
        )
        looks[text.get_text().rstrip("012") or "plain"] = (
            patch.get_hatch(),
            patch.get_linestyle(),
            grey,
        )
    assert set(looks) == {"▸", "plain", "×", "·"} and len(set(looks.values())) == 4
    assert (
        palette.luminance(palette.LIGHT["token"]) - palette.luminance(palette.LIGHT["prefill"])
        > 0.4
    )
    style = timeline(EVENTS)._repr_html_()
    assert (
        "td.u{background:repeating-linear-gradient(45deg" in style
        and "td.i{border-style:dashed" in style
    )


def test_the_figure_is_small_and_carries_the_legend():
    figure = timeline(EVENTS, by="request").figure()
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == [
        "request 0",
        "request 1",
        "request 2",
    ]
    assert "× wasted: 1" in figure.axes[0].get_xlabel()
    assert len(image(figure, "who runs when")._repr_html_()) < 40_000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (dict(run=[]), "there are no events"),
        (
            dict(run=[(0, 1, 2, "sleep")]),
            "step 0, slot 1 is 'sleep', expected one of prefill, decode, wasted, idle",
        ),
        (dict(run=EVENTS, by="row"), "by is 'row'"),
        (dict(run=EVENTS, names="AB"), "names has 2 entries, none for number 2"),
        (
            dict(run=EVENTS, sampled=[["x"], [], []]),
            r"sampled\[1\] has 0 entries, none for number 0",
        ),
    ],
)
def test_bad_input_gets_one_line(arguments, words):
    with pytest.raises(ValueError, match=words):
        timeline(**arguments)


def test_a_prompt_that_is_read_in_parts_speaks_once():
    """And one whose slot was taken away, so that it read everything again, goes on where it was."""
    events = [(step, 0, 7, "prefill") for step in range(3)] + [
        (3, 0, 7, "decode"),
        (4, 0, 8, "prefill"),
    ]
    events += [(5, 0, 7, "prefill"), (6, 0, 7, "prefill"), (7, 0, 7, "decode"), (3, 1, 9, "idle")]
    tokens = {7: ["a", "b", "c", "d"], 8: ["x"]}
    tokens = [tokens.get(i, []) for i in range(10)]
    cells, _ = grid(timeline(events, sampled=tokens))
    assert [text for text, _ in cells[0]] == ["▸7", "▸7", "▸a", "b", "▸x", "▸7", "▸c", "d"]
    assert cells[1][3] == ("·9", "i")  # it waits in its slot


@pytest.mark.parametrize("strategy", POLICIES)
def test_every_strategy_can_be_drawn(strategy):
    model = random_model()
    prompts, caps = [[1, 2], [3, 4, 5], [6], [7]], [4, 1, 2, 5]
    result = generate(
        model, prompts, n=2, max_new_tokens=[*caps], stop=(), strategy=strategy, slots=3
    )
    tokens = [
        [f"<{i}.{k}>" for k in range(len(request.token_ids))] for i, request in enumerate(result)
    ]
    for by in ("slot", "request"):
        cells, labels = grid(timeline(result, by=by, sampled=tokens))
        shown = sorted(text.lstrip("▸") for line in cells for text, _ in line if "<" in text)
        assert shown == sorted(text for texts in tokens for text in texts), "every token once"
        assert len(labels) == (8 if by == "request" else 1 if strategy == "sequential" else 3)


def test_chunks_and_preemptions_can_be_drawn():
    engine = Engine(random_model(), slots=2, token_budget=24, chunk=3)
    asked = [engine.submit([1] * length, max_new_tokens=12, stop=()) for length in (8, 7)]
    engine.run()
    assert engine.stats.preempted == 1
    tokens = [[f"<{i}.{k}>" for k in range(12)] for i in range(2)]
    cells, _ = grid(timeline(engine, by="request", sampled=tokens))
    for i, request in enumerate(asked):
        assert len(request.token_ids) == 12
        assert [text.lstrip("▸") for text, _ in cells[i] if "<" in text] == tokens[i]


def test_order_does_not_matter_and_events_may_be_named():
    shuffled = [Event(*event) for event in EVENTS]
    random.Random(0).shuffle(shuffled)
    assert timeline(shuffled).body == timeline(EVENTS).body


def test_inside_explore_a_state_is_light(monkeypatch):
    monkeypatch.setenv("QWENLAB_PAGE", "1")
    html = explore(
        lambda step: timeline([e for e in EVENTS if e[0] <= step]), step=range(4)
    )._repr_html_()
    assert html.count("<template>") == 3
    assert len(timeline(EVENTS).body) < 2000
