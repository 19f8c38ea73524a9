"""What lesson 04 says must be what happens, and its microscope shows the right numbers."""

import re

import pytest
import torch
from lesson_cells import Lesson, numbers
from widget_numbers import every_state_is_right

from qwenlab.teach import check

NAME = "04-nan-rows"


@pytest.fixture(scope="module")
def lesson():
    return Lesson(NAME, until="cured")


def lines_of(text):
    """The lines of a table as {its first column: the rest}; columns are two spaces apart."""
    return dict(re.findall(r"^(\S.*?)  +(.*)$", text, re.MULTILINE))


def test_nothing_has_no_softmax_and_a_weight_of_0_stops_no_nan(lesson):
    seen, blind, unshifted = lesson.shown("born").splitlines()
    assert "nan" not in seen and blind.count("nan") == unshifted.count("nan") == 3
    assert re.findall(r"out = (\S+)", lesson.shown("zero-times-nan")) == [
        "1.70",
        "1.70",
        "nan",
        "nan",
    ]


def test_nan_stays_in_its_row_until_rows_meet(lesson):
    bad, healthy = re.findall(r"(\d+) of (\d+) real tokens", lesson.shown("batch"))
    assert bad[0] == bad[1] and healthy[0] == "0"
    said = lesson.shown("meet")
    assert "greedy ids: [0, " in said and "sampling: RuntimeError: probability tensor" in said
    assert re.search(r"loss of each row: \[nan, \d.*\] mean: nan", said)
    tensors = len(list(lesson.names["model"].parameters()))
    assert f"{tensors} of {tensors}" in said
    assert not any(parameter.requires_grad for parameter in lesson.names["model"].parameters())


def test_three_cures_work_and_the_textbook_does_not(lesson):
    gaps = dict(re.findall(r"^(\S+) +differs from alone by (\S+)$", lesson.shown("cured"), re.M))
    assert gaps.pop("-inf") == "nan" and len(gaps) == 3
    assert all(float(gap) < 1e-5 for gap in gaps.values())
    lines = lines_of(lesson.shown("left").split("weights of")[0])
    left = {
        "-inf": "NaN", "finfo.min": "the mean", "log-sum-exp": "zeros",
        "pads-see-themselves": "its own", "eager": "zeros", "sdpa": "zeros",
        "sdpa, adding -inf": "zeros", "sdpa, adding lowest": "the mean",
    }  # fmt: skip
    assert all(lines[name].count(f": {word}") == 2 for name, word in left.items())


def test_sweeping_up_has_finite_gradients_only_after_a_fill(lesson):
    said = lesson.shown("sweep")
    assert said.count("[[0.0, 0.0, 0.0]] gradient") == 2
    assert said.count("gradient [[0.0, 0.0, 0.0]]") == said.count("gradient [[nan, nan, nan]]") == 1
    filled, added = numbers(r"gradients in (\d+) of", said)
    assert filled == 0 < added


def test_whatever_stands_at_the_pads_no_real_logit_moves(lesson):
    cache = numbers(r"cache at pads (\S+),", lesson.shown("pollute"))
    moved = numbers(r"real logits (\S+)", lesson.shown("pollute"))
    assert cache[0] == 0 and min(cache[1:]) > 0.1 and max(moved) < 1e-6


def test_padding_adds_nothing_to_the_error_of_either_dtype(lesson):
    assert lesson.shown("float32").count(": the same") == 2


def test_what_is_folded_says_the_same(lesson):
    said = lesson.shown("numbers")
    assert len(re.findall(r"twice -inf", said)) == 3
    assert torch.tensor([1e-39]).mul(1).item() > 0, "flushing was left on"
    if "not supported" not in said:
        assert re.findall(r"to 0: (\S+)", said) == ["nan", "0.0"] * 3
    said = lesson.shown("zeroing")
    assert max(numbers(r"real logits (\S+),", said)) < 1e-6
    assert re.findall(r"(\d+)% of them", said)[:2] == ["0", "0"] and "0% of" not in said[-90:]


def test_a_cure_hides_a_mistake(lesson):
    lines = lines_of(lesson.shown("hides"))
    right = lines.pop("with the right mask")
    assert lines.pop("-inf") == "NaN" and len(lines) == 3 and right not in lines.values()
    assert "no NaN, the same answers" in lesson.shown("no-such-row")


FIRST_NAN = {"none": (), "sum": ("sum",), "weights": ("weights",)}


@pytest.mark.parametrize(
    ("old", "new", "first"),
    [
        ("broken_stages(scores, mask):", "broken_stages(scores, mask):", "none"),
        ("-torch.inf)  # 1", "-1e9)", "none"),
        (".clamp(min=low)  # 2", "", "sum"),
        (".masked_fill(total == 0, 1)  # 3", "", "weights"),
    ],
)
def test_breaking_shows_what_the_text_says(lesson, capsys, old, new, first):
    said = lesson.say("break-me", capsys, (old, new))
    shown = dict(re.findall(r"(sum|weights) +\[?(-?[\w.]+)", said))
    assert (shown["sum"] == "nan") == (first == "sum")
    assert (shown["weights"] == "nan") == (first != "none")
    assert ("next tokens: NaN" in said) == (first != "none")
    if "1e9" in new:
        assert shown == {"sum": "8.0", "weights": "0.125"}


def test_the_colleague_s_softmax_is_right_for_minus_infinity_only(lesson):
    exec(lesson.sources["stub-masked-softmax"], lesson.names)
    answer = check("masked-softmax", lesson.names["colleague_softmax"])
    assert (
        "wrong on the lowest number" in repr(answer)
        and "right so far: -inf" in repr(answer).lower()
    )


def test_every_state_of_the_microscope_is_right_and_no_two_are_alike():
    every_state_is_right(NAME, until="explore-microscope", fewest=16)
