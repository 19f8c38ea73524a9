"""Lesson 09: what its text says is what happens, and its widgets show the right numbers."""

import itertools
import re

import pytest
import torch
from helpers import count
from lesson_cells import Lesson, asked, numbers
from widget_numbers import every_state_is_right

from qwenlab.exercises.lesson_09 import delta_step, state_bytes
from qwenlab.model import deltanet
from qwenlab.teach import check

LESSON = "09-linear-attention"
ANN = re.compile(r"Ann +(.+)")


@pytest.fixture(scope="module")
def lesson():
    return Lesson(LESSON, until="in-the-model")


def test_the_newest_thing_told_is_exact_and_an_overlapping_key_moves(lesson):
    """The story at the top: Cy moves Ann's colour, and telling Ann anew moves Cy's."""
    keys, values = lesson.names["KEYS"], lesson.names["VALUES"]
    S = torch.zeros(3, 3)
    for token, (name, colour) in enumerate(lesson.names["STORY"], start=1):
        S, read = lesson.names["delta_rule"](S, keys[name], keys[name], values[colour], 1.0, 1.0)
        assert torch.allclose(read, values[colour], atol=1e-6)
        ann = S.T @ keys["Ann"]
        if token == 3:
            assert not torch.allclose(ann, values["red"], atol=0.1)
        if token == 4:
            assert torch.allclose(ann, values["green"], atol=1e-6)
            assert not torch.allclose(S.T @ keys["Cy"], values["blue"], atol=0.1)


@pytest.mark.parametrize("seed", range(count(3, 30)))
def test_the_rule_is_the_paper_s_with_its_table_transposed(lesson, seed):
    """S_t = S_{t-1} (alpha (I - beta k k^T)) + beta v k^T, arXiv:2412.06464."""
    draw = torch.Generator().manual_seed(seed)
    S = torch.randn(4, 6, generator=draw)
    q, k = torch.randn(2, 4, generator=draw)
    v = torch.randn(6, generator=draw)
    alpha, beta = torch.rand(2, generator=draw)
    new, read = lesson.names["delta_rule"](S, q, k, v, alpha, beta)
    paper = S.T @ (alpha * (torch.eye(4) - beta * torch.outer(k, k))) + beta * torch.outer(v, k)
    assert torch.allclose(new, paper.T, atol=1e-5) and torch.allclose(read, paper @ q, atol=1e-5)


def test_a_cache_grows_and_a_table_does_not(lesson):
    told = lesson.shown("growing")
    cache = numbers(r"tokens: +([\d,]+) bytes", told)
    hybrid = numbers(r"in the hybrid ([\d,]+)", told)
    assert [(b - 8) / (a - 8) for a, b in itertools.pairwise(cache)] == [16, 4, 4, 4]
    assert hybrid[0] > cache[0] and hybrid[-1] < cache[-1]
    for tokens in (1, 500):
        layers = lesson.names["state_after"](lesson.names["model"], tokens).layers
        assert [n for n, layer in enumerate(layers) if "recurrent_state" in layer] == [0, 1, 2]
        assert layers[0]["recurrent_state"].numel() == 4 * 32 * 32
        assert layers[3]["keys"].shape[2] == tokens


def test_published_sizes_are_those_of_the_model_cards(lesson):
    told = lesson.shown("published")
    assert numbers(r"token more: ([\d,]+)", told) == [114_688, 12_288]
    counts = [lesson.names["parameters"](config) for config in lesson.names["PUBLISHED"].values()]
    assert counts == [596_049_920, 752_393_024]


def test_the_plain_layer_and_the_plain_rule_are_the_library_s(lesson):
    gaps = numbers(r"(\d\.\de-\d+)", lesson.shown("same-layer") + lesson.shown("library"))
    assert len(gaps) == 9 + 6 and max(gaps) < 1e-5
    assert deltanet.delta_chunks.__module__ == "qwenlab.model.deltanet"


def test_a_reader_s_rule_is_called_at_every_token_of_prefill_and_decode(lesson):
    model = lesson.names["model"]
    state = model.new_state(1)
    seen = []

    def rule(*given):
        seen.append(given)
        return lesson.names["delta_rule"](*given)

    tables = [layer["recurrent_state"][0] for layer in state.layers if "recurrent_state" in layer]
    heads = sum(map(len, tables))
    with lesson.names["remembering"](rule), torch.inference_mode():
        model(torch.tensor([[1, 2, 3]]), state=state)
        assert len(seen) == 3 * heads
        model(torch.tensor([[4]]), state=state)
    assert len(seen) == 4 * heads


# --- where it wins, and where it loses ---


def test_told_twice_the_table_has_the_newer_value_and_the_cache_the_mean(lesson):
    remembered = lesson.names["remembered"]
    keys = torch.eye(4).repeat(2, 1)
    values = torch.randn(8, 5, generator=torch.Generator().manual_seed(0))
    old, new = values.chunk(2)
    for way, right in (("cache", (old + new) / 2), ("adding", old + new), ("delta rule", new)):
        assert torch.allclose(remembered(way, keys, values)[4:], right, atol=1e-5), way
    recall = lesson.names["recall"]
    for size in (16, 32):
        again = {way: recall(way, size, 8, times=2) for way in lesson.names["WAYS"]}
        assert again["delta rule"] > 0.75 > 0.5 > max(again["cache"], again["adding"])


def test_a_full_table_loses_what_a_cache_keeps(lesson):
    recall, told = lesson.names["recall"], lesson.names["TOLD"]
    assert all(recall("cache", 16, n) > 0.99 for n in told)
    for size in (16, 32):
        shares = [recall("delta rule", size, n) for n in told]
        assert shares == sorted(shares, reverse=True) and shares[0] > 0.9
        if 4 * size in told:
            assert shares[told.index(4 * size)] < 0.25


def test_short_rows_and_many_rows_lose(lesson):
    told = lesson.shown("break-even")
    assert numbers(r"less from (\d+) tokens", told) == [62, 191]
    assert numbers(r"as much at (\d+) rows", told)[1] == 40
    total, pairs = lesson.names["total"], lesson.names["PAIRS"]
    dense, hybrid, dtype = pairs["published"]
    assert total(dense, 20, dtype) < total(hybrid, 20, dtype)  # the third question


def test_chunks_do_more_arithmetic(lesson):
    products = lesson.names["products"]
    assert products(1) < products(16) < products(64) < products(256)


# --- the cell to break ---


@pytest.mark.parametrize(
    ("change", "other", "ann"),
    [
        ((), False, ["0", "0.90", "0"]),
        ((("alpha * S  # 1, 2", "0 * S"),), True, ["0", "0", "0"]),
        ((("alpha * S  # 1, 2", "S"),), True, ["0", "1.00", "0"]),
        ((("v - stored)", "v)"),), True, ["0.66", "0.90", "0.49"]),
        ((("S.T @ q  # 4", "S.T @ k"),), True, ["0", "0.90", "0"]),
    ],
)
def test_breaking_shows_what_the_text_says(lesson, capsys, monkeypatch, change, other, ann):
    source = lesson.sources["break-me"]
    shows = source.replace("\nheatmap(", "\nsmall_table = heatmap(") + "\nprint(small_table)"
    monkeypatch.setitem(lesson.sources, "break-me", shows)
    told = lesson.say("break-me", capsys, *change)
    assert (numbers(r"differ by (\S+)", told)[0] > 1e-4) == other == ("OTHER" in told)
    assert ANN.search(told)[1].split() == ann


# --- the exercises ---


def test_the_colleague_s_rule_passes_with_a_decay_of_1_only():
    names = asked(LESSON, "delta-step", torch=torch)
    draw = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 3, 4, generator=draw)
    v = torch.randn(3, 5, generator=draw)
    memory = torch.randn(3, 4, 5, generator=draw)
    beta = torch.rand(3, generator=draw)
    for decay, passes in ((1.0, True), (0.5, False)):
        given = (q, k, v, torch.full((3,), decay), beta, memory)
        pairs = zip(names["delta_step"](*given), delta_step(*given), strict=True)
        assert [torch.allclose(a, b, atol=1e-5) for a, b in pairs] == [passes] * 2
    told = repr(check("delta-step", lambda *given: names["delta_step"](*given)))
    assert "Fade first, then ask" in told


def test_predicted_bytes_are_measured(lesson, capsys):
    names = lesson.names
    before = names["my_state_bytes"] = names["state_bytes_solution"]
    told = lesson.say("measure-state-bytes", capsys)
    pairs = re.findall(r"predict ([\d,]+), the state holds ([\d,]+)", told)
    assert len(pairs) == 2 and all(predicted == held for predicted, held in pairs)
    assert before(vars(names["model"].config), 7, 4) == state_bytes(
        vars(names["model"].config), 7, 4
    )


def one_head_at_a_time(q, k, v, decay, beta, memory):
    tables = []
    outputs = []
    for h in range(len(q)):
        S = decay[h] * memory[h]
        S = S + beta[h] * torch.outer(k[h], v[h] - S.T @ k[h])
        tables.append(S)
        outputs.append(S.T @ q[h])
    return torch.stack(tables), torch.stack(outputs)


def with_matrices(q, k, v, decay, beta, memory):
    memory = memory * decay.view(-1, 1, 1)
    gap = v[:, None] - k[:, None] @ memory
    memory = memory + beta.view(-1, 1, 1) * (k[..., None] @ gap)
    return memory, (q[:, None] @ memory).squeeze(1)


def layer_by_layer(config, tokens, size):
    total = 0
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    values = config["linear_num_value_heads"] * config["linear_value_head_dim"]
    for kind in config["layer_types"]:
        if kind == "full_attention":
            total += 2 * size * tokens * config["num_key_value_heads"] * config["head_dim"]
        else:
            total += size * (config["linear_conv_kernel_dim"] - 1) * (2 * keys + values)
            total += 4 * values * config["linear_key_head_dim"]
    return total


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("delta-step", one_head_at_a_time),
        ("delta-step", with_matrices),
        ("state-bytes", layer_by_layer),
    ],
)
def test_an_answer_in_another_style_is_right(name, answer):
    assert check(name, answer).ok


# --- the widgets ---


def test_every_state_of_the_widgets_shows_the_right_numbers_and_no_two_are_alike():
    every_state_is_right(LESSON, until="explore-memory", fewest=8)
