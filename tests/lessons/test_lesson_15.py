"""Lesson 15: what its text says is what happens, and its widget shows the right numbers."""

import itertools
import re

import numpy as np
import pytest
import torch
import widget_budget
from lesson_cells import asked, code_cells, hero_pictures, numbers, say, shown
from widget_numbers import wrong_cells

from qwenlab.bench import DEVICES, SHAPES, memory_plan
from qwenlab.engine.prompts import make_requests
from qwenlab.evaluation import answering
from qwenlab.exercises.lesson_15 import batch_bytes
from qwenlab.teach import check

NAME = "15-throughput-and-memory"
CELLS = ["load", "takes", "published", "bend", "auto"]
CONTEXTS = [200, 2200, 16000]


@pytest.fixture(scope="module")
def lesson():
    """The source of each cell by id, and the names that these cells define."""
    sources = code_cells(NAME)
    names = {}
    for cell in CELLS:
        exec(sources[cell], names)
    return sources, names


# --- The two lines ---


@pytest.fixture(scope="module")
def states():
    """What the page's widget holds: {state: (picture, tables)}."""
    found = {}
    order = itertools.product([*SHAPES, "tiny"], DEVICES, CONTEXTS)
    for (model, device, context), state in zip(order, hero_pictures(NAME), strict=True):
        found[model, device, str(context)] = state
    return found


def test_every_state_of_the_widget_is_right(states):
    for key, (picture, tables) in states.items():
        state = dict(zip(("model", "device", "context"), key, strict=True))
        assert wrong_cells(tables, widget_budget.budget(state)) == [], state
        assert picture.find("figcaption").text == widget_budget.title(state), state


def test_the_gain_bends_first_with_a_short_context_and_the_memory_ends_first_with_a_long_one():
    def ends(device, context):
        """What takes longest when the memory is full."""
        state = {"model": "Qwen3-0.6B", "device": device, "context": context}
        return widget_budget.longest(state)

    on_a_laptop = [ends("laptop, 32 GB", context) for context in CONTEXTS]
    assert on_a_laptop == ["arithmetic", "reading", "reading"]
    assert ends("H100, 80 GB", 200) == "reading"


# --- Memory ---


def test_the_same_three_terms_reach_both_published_totals():
    totals = re.findall(r"([\d.]+) GB in all, ([\d.]+) GB published", shown(NAME, "published"))
    assert len(totals) == 2 and all(ours == theirs for ours, theirs in totals)


def test_tokens_are_nearly_all_of_the_difference(lesson):
    token = lesson[1]["token"]
    assert token == 114_688
    assert 63 * lesson[1]["WIDEST"] * token > 0.9 * (23.4e9 - 1.8e9)


def test_the_rows_of_a_hybrid_and_a_dense_model_meet_where_the_text_says():
    (meet,) = numbers(r"from (\d+) tokens on", shown(NAME, "hybrid"))
    dense, hybrid = (
        memory_plan(SHAPES[name], 10**12, 4000, "bfloat16", grows=False)
        for name in ("Qwen3-0.6B", "Qwen3.5-0.8B")
    )

    def row(plan, tokens):
        return plan.recurrent + tokens * plan.kv_bytes_per_token

    assert row(dense, meet - 1) < row(hybrid, meet - 1)
    assert row(dense, meet + 1) > row(hybrid, meet + 1)


def test_what_the_profiler_counts_was_planned():
    said = shown(NAME, "count-bytes")
    planned = numbers(r"planned ([\d,]+) bytes", said)
    counted = numbers(r"counted ([\d,]+) ", said)
    assert len(planned) == 4
    assert all(abs(a - b) <= 0.05 * b for a, b in zip(planned, counted, strict=True))
    assert "USDT" not in said


def test_a_batch_makes_more_tokens_and_each_user_waits_longer():
    said = shown(NAME, "measure")
    assert "all users together: " in said and "each user alone:    " in said


@pytest.mark.parametrize("gigabytes", [0.01, 2, 30])
def test_auto_is_the_command_s(lesson, monkeypatch, gigabytes):
    model = lesson[1]["model"]
    free = int(gigabytes * 1e9)
    prompts = [[1] * 30, *[[2] * 500] * 300]
    requests = make_requests(model, prompts, 100, max_new_tokens=3000)
    monkeypatch.setattr(answering, "free_memory", lambda device: free)
    theirs = answering.rows_that_fit(model, requests)
    assert lesson[1]["batch_size_auto"](model.config, "float32", prompts, 3000, free) == theirs


def test_each_remedy_does_what_the_cell_prints():
    found = dict(re.findall(r"^(.+?) +(\d+) rows$", shown(NAME, "remedies"), re.M))
    rows = {name: int(count) for name, count in found.items()}
    assert len(rows) == 7 and all(count >= rows["as it is"] for count in rows.values())
    assert rows["a hybrid"] == max(rows.values())


# --- Exercises ---


def by_trying(device, weights, token, fixed, moment, context):
    rows = 0
    while weights + (rows + 1) * (fixed + context * token + moment) <= device:
        rows += 1
    return np.int64(rows)


def in_one_line(weights, config, rows, context, size):
    numbers = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]
    return torch.tensor(weights + rows * context * numbers * size)


def by_dividing(once, own, each, patience, fits):
    if once + own > patience or each > patience:
        return 0
    by_reading = (patience - once) / own if own else fits
    return min(fits, int(by_reading), int(patience / each))


@pytest.mark.parametrize(
    ("name", "answer"),
    [("rows-that-fit", by_trying), ("batch-bytes", in_one_line), ("rows-in-budget", by_dividing)],
)
def test_other_styles_are_right_too(name, answer):
    assert check(name, answer).ok


def test_the_colleague_s_planner_is_as_wrong_as_the_text_says():
    planner = asked(NAME, "bug")["batch_bytes"]
    shapes = {}
    for name in ("Qwen3-0.6B", "Qwen3-4B"):
        shapes[name] = vars(SHAPES[name])
    shapes["no groups"] = {**shapes["Qwen3-0.6B"], "num_key_value_heads": 16}
    off = []
    for shape in shapes.values():
        off.append(planner(0, shape, 3, 5, 2) / batch_bytes(0, shape, 3, 5, 2))
    assert off == [1, 2, 0.5]


# --- The cell to break ---

QUERY_HEADS = [("num_key_value_heads", "num_attention_heads")]
ONE_ROW = [("rows * tokens", "tokens")]
GROWS = [("model.new_state(rows, tokens)", "model.new_state(rows)")]
DOUBLED = [
    (
        "state = model.new_state(rows, tokens)  # 3",
        "state = model.new_state(rows)\nstate.make_room(60)\nstate.make_room(100)",
    )
]


@pytest.mark.parametrize(
    ("changes", "ratio"), [([], 1), (QUERY_HEADS, 2), (ONE_ROW, 1 / 8), (DOUBLED, 100 / 120)]
)
def test_breaking_shows_what_the_text_says(lesson, capsys, changes, ratio):
    said = say(lesson, "break-me", capsys, *changes)
    planned, held = numbers(r"(?:planned|held) ([\d,]+)", said)
    assert planned / held == pytest.approx(ratio)
    assert ("right" in said) == (ratio == 1)


def test_a_state_without_a_capacity_holds_nothing_yet(lesson, capsys):
    assert "held 0\nWRONG" in say(lesson, "break-me", capsys, *GROWS)
