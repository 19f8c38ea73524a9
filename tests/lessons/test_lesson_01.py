"""What lesson 01 says must be what happens, and its pictures show what was measured."""

import math

import numpy as np
import pytest
import torch
from lesson_cells import Lesson, numbers, pictures, signs

from qwenlab.bench import decode_bound
from qwenlab.bench.timing import Spread
from qwenlab.exercises.lesson_01 import bend, bytes_per_step
from qwenlab.teach import check, explore

NAME = "01-why-batch"
CONTEXTS = [0, 30, 500, 1000, 4000]


@pytest.fixture(scope="module")
def lesson():
    return Lesson(NAME, until="both-ways")


# --- One by one and together ---


def test_the_same_answers_in_far_fewer_passes(lesson):
    names = lesson.names
    lengths = [len(ids) + 1 for ids in names["alone"]]  # the stop token takes a pass too
    one_by_one, together = numbers(r"(?:one|together).*?(\d+)", lesson.shown("both-ways"))
    assert one_by_one == sum(lengths) and together == max(lengths)
    assert names["together"] == names["alone"]


def test_most_sums_are_right(lesson):
    names = lesson.names
    right = 0
    for question, ids in zip(names["questions"], names["alone"], strict=True):
        truth = sum(map(int, question.rstrip("?").split("+")))
        right += f"\\boxed{{{truth}}}" in names["tokenizer"].decode(ids)
    assert right > 24


def test_the_first_picture_counts_the_passes(lesson):
    said = lesson.shown("hero-python")
    for value in ("4", "56", "27", "49"):
        assert f"\\boxed{{{value}}}" in said
    passes = [len(ids) + 1 for ids in lesson.names["four"].token_ids]
    assert f"{sum(passes)} passes" in said
    assert f"static: {max(passes)} passes" in repr(lesson.names["passes_of"]("static"))


def test_one_row_leaves_the_arithmetic_idle(lesson):
    idle = numbers(r"idle for ([\d.]+)%", lesson.shown("idle"))
    assert len(idle) == 2 and all(50 < share <= 100 for share in idle)


def test_together_is_faster_than_one_by_one(lesson):
    assert "together, against one by one: " in lesson.shown("time")
    assert "times as fast (" in lesson.shown("time")


# --- Pictures ---


def test_the_curve_shows_the_steps_beside_their_roofline(lesson):
    steps = {}
    for name in lesson.names["MODELS"]:
        for rows in (1, 2, 4, 8, 16, 32):
            for context in (16, 128):
                base = (rows + context) * 1e-3
                steps[name, rows, context] = [base, 1.5 * base, 2 * base]
    draw = lesson.names | {"steps": steps, "ROWS": [1, 2, 4, 8, 16, 32], "CONTEXTS": [16, 128]}
    drawn = []
    draw["explore"] = lambda function, **controls: drawn.append((function, controls))
    draw["at_best"] = lesson.names["at_best"]
    exec(lesson.sources["explore-steps"], draw)
    (function, controls), machine = drawn[0], lesson.names["machine"]
    for name in controls["model"]:
        for context in controls["context"]:
            series = function(name, context).series
            for (rows, *shown), (_, roof, *_) in zip(
                series["measured"], series["at best"], strict=True
            ):
                base = (rows + context) * 1e-3
                expected = [rows / (1.5 * base), rows / (2 * base), rows / base]
                assert shown == pytest.approx(expected)
                bound = decode_bound(lesson.names["MODELS"][name], machine, int(rows), context)
                assert roof == pytest.approx(rows / max(bound))


@pytest.fixture(scope="module")
def machines(lesson):
    """The states of the three rooflines: each its table, and the figures of each machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QWENLAB_PAGE", "1")
        shown = []
        scope = lesson.names | {"explore": lambda *given, **more: shown.append((given, more))}
        exec(lesson.sources["machines"], scope)
        exec(lesson.sources["explore-machines"], scope)
        ((draw,), controls) = shown[0]
        assert controls["context"] == CONTEXTS
        html = explore(draw, **controls)._repr_html_()
    return pictures(html), scope["SHEETS"], scope["WHOLE"]


def test_the_table_says_where_the_exercise_s_formula_bends(machines):
    states, sheets, (weights, cached) = machines
    for context, (_, tables) in zip(CONTEXTS, states, strict=True):
        for row, (size, *rates) in zip(tables[-1], sheets.values(), strict=True):
            bends = bend(weights, cached * context, size, *rates)
            expected = f"{max(1, math.ceil(bends - 1e-9)):,} rows" if bends <= 4096 else "never"
            assert row[1] == expected
            outweigh = weights / (cached * context) if context else math.inf
            assert row[2] == (f"{math.ceil(outweigh):,} rows" if context else "never")


def test_the_h100_bends_later_and_loses_its_bend_first(machines):
    bends = []
    for _, tables in machines[0]:
        bends.append([row[1] for row in tables[-1]])
    laptop, h100 = (int(text.split()[0].replace(",", "")) for text in bends[0][1:])
    assert h100 > 10 * laptop
    assert [row[2] for row in bends[2:]] == ["never"] * 3 and "rows" in bends[1][2]
    assert "rows" in bends[2][1] and bends[3][1] == "never"


def test_the_whole_model_is_counted_as_in_the_exercise(machines):
    shape = dict(vocab_size=151_936, hidden_size=1024, intermediate_size=3072)
    shape |= dict(num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8, head_dim=128)
    weights, cached = machines[2]
    assert weights == bytes_per_step(shape, 1, 0, 1)
    assert weights + cached == bytes_per_step(shape, 1, 1, 1)


# --- What a reader waits ---


@pytest.mark.parametrize(("factor", "word"), [(3, "slower: "), (0.2, "5.0 times as fast")])
def test_the_verdict_on_the_wait_is_chosen_by_the_steps(lesson, capsys, factor, word):
    steps = {}
    for name in lesson.names["MODELS"]:
        steps[name, 1, 128] = [0.1, 0.1, 0.1]
        steps[name, 32, 128] = [0.1 * factor] * 3
    capsys.readouterr()
    scope = lesson.names | {"steps": steps, "CONTEXTS": [16, 128], "Spread": Spread}
    exec(lesson.sources["wait"], scope)
    assert capsys.readouterr().out.count(word) == 2


# --- Exercises ---


def by_numpy(config, rows, context, size):
    return np.int64(bytes_per_step(config, rows, context, size))


def as_a_tensor(config, rows, context, size):
    return torch.tensor(float(bytes_per_step(config, rows, context, size)), dtype=torch.float64)


def whole_rows(weights, cached, size, bandwidth, flops):
    gained = 2 * weights / flops - size * cached / bandwidth
    return math.ceil(size * weights / bandwidth / gained) if gained > 0 else math.inf


def by_one_division(weights, cached, size, bandwidth, flops):
    gained = 2 * weights * bandwidth - size * cached * flops
    return np.float64(size * weights * flops / gained) if gained > 0 else np.inf


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("bytes-per-step", by_numpy),
        ("bytes-per-step", as_a_tensor),
        ("batch-where-it-bends", whole_rows),
        ("batch-where-it-bends", by_one_division),
    ],
)
def test_other_styles_are_right_too(name, answer):
    assert check(name, answer).ok


TWICE = [("batch = prompts[:4]", "batch = prompts[:4] * 2")]
FORGETS = [("model(new, state=state, last_only=True)", "model(new, last_only=True)")]
FED = [("    # 3", "    new = new[:1].repeat(len(batch), 1)")]
RAGGED = [("batch = prompts[:4]", 'batch = [prompts[0], ask(tokenizer, "7*8?")]')]


@pytest.mark.parametrize(
    ("changes", "seen"), [([], "===="), (TWICE, "========"), (FORGETS, "----"), (FED, "=---")]
)
def test_breaking_shows_what_the_text_says(lesson, capsys, changes, seen):
    said = lesson.say("break-me", capsys, *changes)
    assert signs(said) == seen
    if changes in ([], TWICE):
        longest = max(len(ids) for ids in lesson.names["alone"][:4]) + 1
        assert f"{longest} passes" in said


def test_prompts_of_unequal_length_are_no_rectangle(lesson, capsys):
    with pytest.raises(ValueError, match="expected sequence of length"):
        lesson.say("break-me", capsys, *RAGGED)
