"""What lessons 09 and 10 say must be what happens, and every state of their widgets shows the right numbers."""

import itertools
import re

import pytest
import torch
from lesson_cells import Lesson, pictures
from widget_numbers import EXPECTED, wrong_cells

from qwenlab.model import deltanet
from qwenlab.teach import exploring

CURES = ["keys", "window", "decay", "beta", "positions"]


@pytest.fixture(scope="module")
def memory():
    return Lesson("09-linear-attention", until="words")


@pytest.fixture(scope="module")
def hiding():
    return Lesson("10-hiding-padding", until="mended")


def numbers(pattern, text):
    return [float(found.replace(",", "")) for found in re.findall(pattern, text)]


def test_09_a_cache_grows_and_a_table_does_not(memory, capsys):
    said = memory.say("growing", capsys)
    held = numbers(r"tokens: +([\d,]+) bytes", said)
    assert [(b - 8) / (a - 8) for a, b in itertools.pairwise(held)] == [16, 4, 4, 4]  # 8 bytes are its length
    for tokens in (1, 500):
        layers = memory.names["state_after"](memory.names["model"], tokens).layers
        assert [n for n, layer in enumerate(layers) if "recurrent_state" in layer] == [0, 1, 2]
        assert all(layers[0][name].shape == layers[2][name].shape for name in ("conv_state", "recurrent_state"))
    assert layers[0]["recurrent_state"].numel() == 4 * 32 * 32 and layers[3]["keys"].shape[2] == 500


def test_09_published_sizes_are_those_of_the_model_cards(memory, capsys):
    said = memory.say("published", capsys)
    assert numbers(r"token more: ([\d,]+)", said) == [114_688, 12_288]
    counts = [memory.names["parameters"](config) for config in memory.names["PUBLISHED"].values()]
    assert counts == [596_049_920, 752_393_024]


def test_09_the_plain_layer_and_the_plain_rule_are_the_library_s(memory, capsys):
    gaps = numbers(r"(\d\.\de-\d+)", memory.say("same-layer", capsys) + memory.say("library", capsys))
    assert len(gaps) == 9 + 6 and max(gaps) < 1e-5
    said = memory.say("words", capsys)
    assert said.count("same words") == 2 and numbers(r"difference (\S+)", said)[0] < 1e-5
    assert deltanet.delta_chunks.__module__ == "qwenlab.model.deltanet"


def test_09_a_reader_s_rule_is_called_at_every_token_of_prefill_and_decode(memory):
    one_token, model, state = memory.names["one_token"], memory.names["model"], memory.names["model"].new_state(1)
    seen = []

    def rule(*given):
        seen.append(given)
        return one_token(*given)

    heads = sum(len(layer["recurrent_state"][0]) for layer in state.layers if "recurrent_state" in layer)
    with memory.names["remembering"](rule), torch.inference_mode():
        model(torch.tensor([[1, 2, 3]]), state=state)
        assert len(seen) == 3 * heads
        model(torch.tensor([[4]]), state=state)
    assert len(seen) == 4 * heads


def test_09_where_the_table_loses(memory, capsys):
    for cell in ("recall", "time-prefill"):
        source = memory.sources[cell]
        exec(source[: source.index("\nfor name")] if cell == "recall" else source, memory.names)
    capsys.readouterr()
    recall, told = memory.names["recall"], memory.names["TOLD"]
    for size in (16, 32):
        shares = [recall(size, n) for n in told]
        assert shares == sorted(shares, reverse=True) and shares[told.index(size)] > 0.6 and shares[-1] < 0.25
        assert all(recall(size, n, delta=False) >= recall(size, n) for n in told)  # told once, adding keeps more
        assert recall(size, 8, times=2) > 0.75 > recall(size, 8, delta=False, times=2)
    products = memory.names["products"]
    assert products(1) < products(16) < products(64) < products(256)
    assert numbers(r"from (\d+) tokens", memory.say("break-even", capsys)) == [62, 191]
    assert numbers(r"at (\d+) rows", memory.say("traffic", capsys))[1] == 40


@pytest.mark.parametrize(
    ("change", "gap", "ann"),
    [
        ((), False, ["0", "0.90", "0"]),
        ((("decay * S  # 1, 2", "0 * S"),), True, ["0", "0", "0"]),
        ((("decay * S  # 1, 2", "S"),), True, ["0", "1.00", "0"]),
        ((("v - said)", "v)"),), True, ["0.66", "0.90", "0.49"]),
        ((("q @ S  # 4", "k @ S"),), True, ["0", "0.90", "0"]),
    ],
)
def test_09_breaking_shows_what_the_text_says(memory, capsys, change, gap, ann):
    sources = dict(memory.sources)
    try:
        memory.sources["break-me"] = sources["break-me"].replace("\nheatmap(", "\nshown = heatmap(") + "\nprint(shown)"
        said = memory.say("break-me", capsys, *change)
    finally:
        memory.sources = sources
    assert (numbers(r"difference (\S+)", said)[0] > 1e-4) == gap == ("OTHER WORDS" in said)
    assert re.search(r"Ann +(.+)", said)[1].split() == ann


def gaps(text):
    """{(turn, row): (logits, window, memory)} of a report."""
    found = re.findall(r"turn (\d), row (\d): .*logits (\S+), window (\S+), memory (\S+)", text)
    return {(int(turn), int(row)): [float(x) for x in rest] for turn, row, *rest in found}


def test_10_zeroing_is_right_for_one_turn_and_wrong_for_two(hiding, capsys):
    found = gaps(hiding.say("naive", capsys))
    wrong = found.pop((2, 0))
    assert min(wrong) > 1e-3 and max(max(rest) for rest in found.values()) < 1e-5 and len(found) == 3


def test_10_the_words_after_the_sum_are_lost(hiding, capsys):
    """What stood in the second turn is known, what stood in the first is not; alone and mended, both are."""
    said = hiding.say("naive-words", capsys)
    assert re.findall("same words|OTHER WORDS", said) == ["OTHER WORDS", "same words"]
    assert re.findall(r"(\d+)⏎", said)[0] == "44" and said.count("boxed{25}") == said.count("boxed{51}") == 1


def test_10_a_zeroed_pad_fades_writes_and_fills_the_window(hiding):
    decay, beta, value, left = hiding.names["inside"](6)
    assert (decay < 1).all() and (beta == 0.5).all() and (value[:3] > 0).all() and (value[3:] == 0).all()
    assert left[-1] < left[0] and left[-1] < 1


def test_10_with_all_cures_each_row_is_as_alone(hiding, capsys):
    said = hiding.say("mended", capsys)
    assert max(max(rest) for rest in gaps(said).values()) < 1e-5 and said.count("same words") == 2


def test_10_each_cure_is_needed(hiding, capsys):
    said = hiding.say("leave-one-out", capsys)
    found = dict(re.findall(r"without (\w+) .*logits (\S+),", said))
    assert float(found.pop("nothing")) < 1e-5 and list(found) == CURES
    assert all(float(gap) > 1e-4 for gap in found.values())
    said = hiding.say("positions", capsys)
    assert [gap < 1e-5 for gap in numbers(r"logits (\S+)", said)] == [True, True, False, True]
    columns, own = (numbers(pattern, said) for pattern in (r"column (\d+)", r"position (\d+)"))
    assert [a > b for a, b in zip(columns, own, strict=True)] == [False, True, True, True]


def test_10_the_library_takes_three_ragged_turns_and_moves_no_bit(hiding, capsys):
    exec(hiding.sources["library"], hiding.names)
    said = capsys.readouterr().out
    assert len(numbers(r"at most (\S+) from alone", said)) == 3
    for side in ("left", "right", "inner"):
        rows = [[1, 2], [3, 4, 5, 6, 7]]
        ids, real = hiding.names["scattered"](rows, side, seed=3)
        assert [ids[row][real[row]].tolist() for row in range(2)] == rows
    assert hiding.say("bits", capsys).count("every bit as before") == 2


@pytest.mark.parametrize("cure", ["decay", "beta", "window"])
def test_10_breaking_shows_what_the_text_says(hiding, capsys, cure):
    without = (
        '"decay", "beta", "window"}',
        ", ".join(f'"{c}"' for c in ("decay", "beta", "window") if c != cure) + "}",
    )
    found = gaps(hiding.say("break-me", capsys, without))
    assert min(found[2, 0]) > 1e-4 and (max(found[2, 1]) < 1e-5) == (cure == "decay")
    zeroed = (without[0], without[1].replace("}", ', "zero inputs"}'))
    found = gaps(hiding.say("break-me", capsys, zeroed))
    wrong = found.pop((2, 0))
    assert max(wrong) > 1e-4 and max(max(rest) for rest in found.values()) < 1e-5


def test_10_as_it_stands_nothing_is_broken(hiding, capsys):
    assert max(max(rest) for rest in gaps(hiding.say("break-me", capsys)).values()) < 1e-5


@pytest.mark.parametrize(
    ("name", "last"), [("09-linear-attention", "explore-table"), ("10-hiding-padding", "explore-pads")]
)
def test_every_state_of_the_widgets_shows_the_right_numbers_and_no_two_are_alike(name, last, monkeypatch):
    monkeypatch.setenv("QWENLAB_PAGE", "1")
    monkeypatch.setattr(exploring, "_spent", 0)
    lesson = Lesson(name, until=last)
    assert len(lesson.widgets) == len(EXPECTED[name])
    for (widget, controls), expected in zip(lesson.widgets, EXPECTED[name], strict=True):
        shown = pictures(widget._repr_html_())
        labels = [label.replace("_", " ") for label in controls]
        states = [dict(zip(labels, map(str, state), strict=True)) for state in itertools.product(*controls.values())]
        assert len(shown) == len(states) > 7  # equal pictures would be stored once
        for state, (_, tables) in zip(states, shown, strict=True):
            assert wrong_cells(tables, expected(state)) == [], state
    assert exploring._spent < 300_000
