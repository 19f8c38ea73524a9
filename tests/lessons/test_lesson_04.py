"""What lesson 04 says must be what happens, and its widget shows the right numbers."""

import re

import pytest
import torch
from lesson_cells import RIGHT, WRONG, Lesson, verdicts
from widget_numbers import every_state_is_right


@pytest.fixture(scope="module")
def lesson():
    return Lesson("04-nan-rows", until="library")


def test_nan_stays_in_its_row_until_rows_meet(lesson, capsys):
    said = lesson.say("textbook", capsys)
    real = list(map(int, re.findall(r"(\d+) real tokens", said)))
    assert list(map(int, re.findall(r"(\d+) of them", said))) == [real[0], 0]
    said = lesson.say("words", capsys)
    assert verdicts(said) == [WRONG, RIGHT] and "RuntimeError: probability tensor" in said
    said = lesson.say("loss", capsys)
    tensors = len(list(lesson.names["model"].parameters()))
    assert "mean over the batch: nan" in said and f"{tensors} of {tensors}" in said
    assert not any(parameter.requires_grad for parameter in lesson.names["model"].parameters())


def test_cures_mend_and_the_lowest_number_twice_does_not(lesson, capsys):
    lines = {line[:19].strip(): line for line in lesson.say("cures", capsys).splitlines()}
    bad = [name for name, line in lines.items() if "tokens NaN" in line]
    assert bad == ["-inf", "finfo.min twice"] and len(lines) == 7
    for name in set(lines) - set(bad):
        single, half = map(float, re.findall(r"difference (\S+)", lines[name]))
        assert single < 1e-5 and half < 5e-2
    lines = {line[:19].strip(): line for line in lesson.say("kernels", capsys).splitlines()}
    left = {
        "-inf": "NaN", "finfo.min": "the mean", "finfo.min twice": "NaN", "log-sum-exp": "zeros",
        "pads-see-themselves": "its own", "eager": "zeros", "sdpa": "zeros",
        "sdpa, lowest added": "the mean",
    }  # fmt: skip
    assert all(lines[name].count(f": {word}") == 2 for name, word in left.items())


def test_three_cures_fail(lesson, capsys):
    assert lesson.say("twice", capsys).count("-inf") == 5
    said = lesson.say("clamp", capsys)
    assert torch.tensor([1e-39]).mul(1).item() > 0, "flushing was left on"
    if "flushed" in said:
        assert re.findall(r"flushed: (\S+)", said) == ["nan", "0.0"] * 3
    found = dict(
        re.findall(r"(\S.*\S) +loss .* gradients: (\d+)", lesson.say("nan-to-num", capsys))
    )
    assert int(found.pop("swept up")) > 0 and set(found.values()) == {"0"} and len(found) == 3


def test_zeroing_pads_is_neither_needed_nor_a_cure(lesson, capsys):
    said = lesson.say("zeroing", capsys)
    assert [float(x) for x in re.findall(r"difference (\S+)", said)] == [0.0, 0.0]
    assert re.findall(r"(\d+)% NaN", said) == ["40", "40", "0"]


def test_a_cure_hides_a_mistake_and_a_look_finds_it(lesson, capsys):
    for cell in ("time", "hides"):
        exec(lesson.sources[cell], lesson.names)
    said = lesson.say("hides", capsys)
    answers = re.findall(r"next tokens: (.+)", said)
    assert answers[0] == "NaN" and answers[-1] not in answers[:-1] and len(set(answers[1:-1])) == 1
    said = lesson.say("assert", capsys)
    first = [int(real.int().argmax()) for real in lesson.names["rectangle"][1]]
    assert "combined mask: []" in said and str(list(enumerate(first))) in said


@pytest.mark.parametrize(
    ("change", "nan"),
    [
        ((), 0),
        ((("-torch.inf)  # 1", "-1e9)"),), 0),
        (((".clamp(min=low)  # 2", ""),), 2),
        (((".masked_fill(total == 0, 1)  # 3", ""),), 2),
    ],
)
def test_breaking_shows_what_the_text_says(lesson, capsys, change, nan):
    said = lesson.say("break-me", capsys, *change)
    assert verdicts(said) == [WRONG if nan else RIGHT, RIGHT]


def test_every_state_of_the_widget_shows_the_right_numbers_and_no_two_are_alike():
    every_state_is_right("04-nan-rows", until="explore-microscope", fewest=16)
