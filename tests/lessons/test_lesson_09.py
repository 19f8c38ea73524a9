"""What lesson 09 says must be what happens, and its widgets show the right numbers."""

import itertools
import re

import pytest
import torch
from lesson_cells import Lesson, numbers
from widget_numbers import every_state_is_right

from qwenlab.model import deltanet


@pytest.fixture(scope="module")
def lesson():
    return Lesson("09-linear-attention", until="words")


def test_a_cache_grows_and_a_table_does_not(lesson, capsys):
    said = lesson.say("growing", capsys)
    held = numbers(r"tokens: +([\d,]+) bytes", said)
    assert [(b - 8) / (a - 8) for a, b in itertools.pairwise(held)] == [
        16,
        4,
        4,
        4,
    ]  # 8 bytes are its length
    for tokens in (1, 500):
        layers = lesson.names["state_after"](lesson.names["model"], tokens).layers
        assert [n for n, layer in enumerate(layers) if "recurrent_state" in layer] == [0, 1, 2]
        assert all(
            layers[0][name].shape == layers[2][name].shape
            for name in ("conv_state", "recurrent_state")
        )
    assert layers[0]["recurrent_state"].numel() == 4 * 32 * 32 and layers[3]["keys"].shape[2] == 500


def test_published_sizes_are_those_of_the_model_cards(lesson, capsys):
    said = lesson.say("published", capsys)
    assert numbers(r"token more: ([\d,]+)", said) == [114_688, 12_288]
    counts = [lesson.names["parameters"](config) for config in lesson.names["PUBLISHED"].values()]
    assert counts == [596_049_920, 752_393_024]


def test_the_plain_layer_and_the_plain_rule_are_the_library_s(lesson, capsys):
    gaps = numbers(
        r"(\d\.\de-\d+)", lesson.say("same-layer", capsys) + lesson.say("library", capsys)
    )
    assert len(gaps) == 9 + 6 and max(gaps) < 1e-5
    said = lesson.say("words", capsys)
    assert said.count("same words") == 2 and numbers(r"difference (\S+)", said)[0] < 1e-5
    assert deltanet.delta_chunks.__module__ == "qwenlab.model.deltanet"


def test_a_reader_s_rule_is_called_at_every_token_of_prefill_and_decode(lesson):
    one_token = lesson.names["one_token"]
    model = lesson.names["model"]
    state = lesson.names["model"].new_state(1)
    seen = []

    def rule(*given):
        seen.append(given)
        return one_token(*given)

    heads = sum(
        len(layer["recurrent_state"][0]) for layer in state.layers if "recurrent_state" in layer
    )
    with lesson.names["remembering"](rule), torch.inference_mode():
        model(torch.tensor([[1, 2, 3]]), state=state)
        assert len(seen) == 3 * heads
        model(torch.tensor([[4]]), state=state)
    assert len(seen) == 4 * heads


def test_where_the_table_loses(lesson, capsys):
    for cell in ("recall", "time-prefill"):
        source = lesson.sources[cell]
        exec(source[: source.index("\nfor name")] if cell == "recall" else source, lesson.names)
    capsys.readouterr()
    recall = lesson.names["recall"]
    told = lesson.names["TOLD"]
    for size in (16, 32):
        shares = [recall(size, n) for n in told]
        assert (
            shares == sorted(shares, reverse=True)
            and shares[told.index(size)] > 0.6
            and shares[-1] < 0.25
        )
        assert all(
            recall(size, n, delta=False) >= recall(size, n) for n in told
        )  # told once, adding keeps more
        assert recall(size, 8, times=2) > 0.75 > recall(size, 8, delta=False, times=2)
    products = lesson.names["products"]
    assert products(1) < products(16) < products(64) < products(256)
    assert numbers(r"from (\d+) tokens", lesson.say("break-even", capsys)) == [62, 191]
    assert numbers(r"at (\d+) rows", lesson.say("traffic", capsys))[1] == 40


@pytest.mark.parametrize(
    ("change", "gap", "ann"),
    [
        ((), False, ["0", "0.90", "0"]),
        ((("decay * S  # 1, 2", "0 * S"),), True, ["0", "0", "0"]),
        ((("decay * S  # 1, 2", "S"),), True, ["0", "1.00", "0"]),
        ((("v - stored)", "v)"),), True, ["0.66", "0.90", "0.49"]),
        ((("q @ S  # 4", "k @ S"),), True, ["0", "0.90", "0"]),
    ],
)
def test_breaking_shows_what_the_text_says(lesson, capsys, change, gap, ann):
    sources = dict(lesson.sources)
    try:
        lesson.sources["break-me"] = (
            sources["break-me"].replace("\nheatmap(", "\nshown = heatmap(") + "\nprint(shown)"
        )
        said = lesson.say("break-me", capsys, *change)
    finally:
        lesson.sources = sources
    assert (numbers(r"difference (\S+)", said)[0] > 1e-4) == gap == ("OTHER WORDS" in said)
    assert re.search(r"Ann +(.+)", said)[1].split() == ann


def test_every_state_of_the_widgets_shows_the_right_numbers_and_no_two_are_alike():
    every_state_is_right("09-linear-attention", until="explore-table", fewest=8)
