"""Lesson 16: what its text says is what happens, whatever kernels this machine has."""

import re
from types import SimpleNamespace

import pytest
import torch
from executed import executed
from lesson_cells import NOTEBOOKS, Lesson, asked, numbers
from widget_numbers import states_of

import qwenlab
from qwenlab.exercises.lesson_16 import may_flip
from qwenlab.teach import ask, check

NAME = "16-the-last-bit"
DTYPES = ["bfloat16", "float16", "float32"]


@pytest.fixture(scope="module")
def lesson():
    """The cells that the tests call have run. The widget is the page's own."""
    lesson = Lesson(NAME, until="load")
    lesson.names["explore"] = lambda draw, **controls: lesson.widgets.append(controls)
    for cell in ("hero", "order", "shape", "teacher", "cure", "cure-tried"):
        exec(lesson.sources[cell], lesson.names)
    lesson.names["model"] = lesson.names["models"]["bfloat16"]
    return lesson


def widget_of_the_page():
    (hero,) = [cell for cell in executed(NOTEBOOKS / f"{NAME}.ipynb").cells if cell["id"] == "hero"]
    (html,) = [output.data["text/html"] for output in hero.outputs if "data" in output]
    return SimpleNamespace(_repr_html_=lambda: html)


def test_every_state_of_the_widget_shows_real_tokens_and_flips_only_within_reach(lesson):
    (controls,) = lesson.widgets
    steps = lesson.names["STEPS"]
    alone = {}
    for state, picture, (words, figures) in states_of(widget_of_the_page(), controls):
        question = lesson.names["QUESTIONS"][state["question"]]
        key = state["dtype"], question
        if key not in alone:
            prompt = ask(lesson.names["tokenizer"], question)
            model = lesson.names["models"][state["dtype"]]
            (answer,) = qwenlab.generate(model, [prompt], max_new_tokens=steps)
            alone[key] = [lesson.names["tokenizer"].decode([i]) for i in answer.token_ids]
        said = " ".join(caption.text for caption in picture.find_all("figcaption"))
        first, second = ([word.replace("⏎", "\n") for word in line] for line in words)
        start = int(picture.thead.find_all("th")[0].text) - 1
        assert first == alone[key][start : start + len(first)]
        outlined = [
            [("x" in cell["class"]) for cell in row.find_all("td")] for row in rows_of(picture)
        ]
        unlike = [a != b for a, b in zip(first, second, strict=True)]
        assert outlined == [[False] * len(first), unlike]
        assert numbers(r"(\d+) of \d+ greedy", said)[0] >= sum(unlike)
        margin, moved = ([float(cell) for cell in line] for line in figures)
        for flip, lead, far in zip(unlike, margin, moved, strict=True):
            assert not flip or lead <= 2 * far + 0.02  # two digits are shown
        changed = numbers(r"(\d+)% of the logits", said)[0]
        if state["neighbours"] == "0":
            assert changed == 0 and not any(moved)


def rows_of(picture):
    return picture.find("table").tbody.find_all("tr")


def test_the_float32_margin_of_a_step_is_that_of_a_whole_pass(lesson):
    model = lesson.names["models"]["float32"]
    prompt = lesson.names["prompt"]
    answer, logits = lesson.names["read"](model, [prompt])
    whole = model(torch.tensor([prompt + answer]))[0, len(prompt) - 1 : -1]
    found = lesson.names["margins"](logits)
    assert torch.allclose(found, lesson.names["margins"](whole), atol=1e-3)


def test_sums_in_other_orders_are_other_sums_near_the_exact_one(lesson):
    said = lesson.shown("order")
    for dtype, part in zip(DTYPES, re.split(r"^(?=\w)", said, flags=re.M)[1:], strict=True):
        exact, *sums = numbers(r"(?:exactly|forwards|backwards|halves) +(-?[\d.]+)", part)
        values = lesson.names["numbers"].to(getattr(torch, dtype))
        assert exact == pytest.approx(values.double().sum().item(), rel=1e-6)
        assert len(sums) == 3 and len(set(sums)) > 1
        precision = torch.finfo(values.dtype).eps
        assert all(abs(total - exact) < 100 * precision * abs(exact) for total in sums)


def test_a_row_is_like_itself_and_each_of_sixteen_places_is_like_the_others(lesson):
    said = lesson.shown("shape")
    assert numbers(r"by rows +1: (\d+)", said) == [0, 0, 0]
    assert numbers(r"16 places: (\d+)", said) == [1, 1, 1]


def test_what_is_said_to_be_lost_first_is_the_first_in_the_table(lesson):
    said = lesson.shown("layers")
    tables = {}
    for title in ("reading the prompt", "the first decoded token"):
        body = said.rpartition(title)[2].partition("the first decoded")[0]
        rows = re.findall(r"(\d: [a-zA-Z' ]+?)\s+([\d.e-]+)\s+([\d.e-]+)\s+([\d.e-]+)\s", body)
        tables[title] = rows
    found = re.findall(r"^(.+), (\w+): first lost in (?:layer )?(.+)$", said, re.M)
    assert len(found) == 6
    for title, dtype, first in found:
        column = 1 + DTYPES.index(dtype)
        lost = [row[0] for row in tables[title] if float(row[column]) > 0]
        assert first == (lost[0] if lost else "nowhere")


def test_one_change_at_a_time_changes_bits_but_not_in_the_invariant_mode(lesson):
    usual = lesson.shown("causes").splitlines()[1:]
    shares = [numbers(r"(\d+)%", line) for line in usual]
    assert len(shares) == 5 and shares[0] == [0, 0, 0]
    said = lesson.shown("library")
    assert numbers(r"change (\d+) of", said) == [0, 0, 0]
    assert numbers(r"(\d+)%", said) == [0] * 15
    if not any(map(any, shares)):
        pytest.skip("no change of shape changes a bit on this machine")


def test_finer_dtypes_move_less_and_fewer_decisions_are_within_their_reach(lesson):
    said = lesson.shown("margins")
    moved = numbers(r"up to ([\d.e-]+);", said)
    within = numbers(r"reach (\d+)", said)
    assert moved == sorted(moved, reverse=True) and within == sorted(within, reverse=True)
    seen = numbers(r"seen (\d+)", said)
    assert all(flips == 0 or reach for flips, reach in zip(seen, within, strict=True))


def test_teacher_forcing_counts_no_more_flips_than_a_free_run(lesson):
    said = lesson.shown("teacher")
    free, forced = numbers(r"(?:free|forced) (\d+)", said.partition("largest")[0])
    assert forced <= free
    answer, logits = lesson.names["answer"], lesson.names["forced"]
    assert forced == sum(a != b for a, b in zip(answer, logits.argmax(-1).tolist(), strict=True))
    gap = (lesson.names["alone"] - logits).abs().max().item()
    within = may_flip(lesson.names["alone"], gap)
    assert within[logits.argmax(-1) != torch.tensor(answer)].all()


def test_pieces_of_fixed_size_change_no_bit(lesson):
    assert numbers(r"(?:fixed rows|in blocks) +(\d+)", lesson.shown("cure-tried")) == [0, 0]


def test_what_can_not_be_promised_is_refused_by_name(lesson):
    lines = " ".join(lesson.shown("limits").split()).split("- ")[1:]
    assert len(lines) == 4
    assert "can't be had in bfloat16 on this machine: 16 equal rows" in lines[0]
    assert "not a function of your own" in lines[1] and "leave out `state`" in lines[2]
    assert lines[3].endswith("[1, 2, 4]")


def test_the_breaks_show_what_the_text_says(lesson, capsys):
    def unlike(*changes):
        return numbers(r": (\d+) unlike", lesson.say("break-me", capsys, *changes))

    assert unlike() == [0, 0]
    keys, rows = unlike(("size = 64", "size = len(keys)"))
    assert keys > 0 and rows == 0
    of_16 = numbers(r"by rows.* 16: (\d+)", lesson.shown("shape"))[-1]  # of float32
    keys, rows = unlike(("16 - 1))  # 2", "1 - 1))  # 2"))
    assert keys == 0 and (rows > 0) == (of_16 > 0)
    assert unlike(("in pieces:", "in reversed(pieces):")) == [0, 0]


def test_the_colleague_s_comparison_counts_what_follows_a_flip():
    colleague = asked(NAME, "count-flips")["colleague_flips"]
    answer = check("count-flips", colleague)
    assert not answer.ok and "after one flip nothing is comparable" in repr(answer)
