"""What lessons 03 and 04 say must be what happens, and every state of their widgets shows the right numbers."""

import itertools
import re

import pytest
import torch
from lesson_cells import Lesson, pictures
from widget_numbers import EXPECTED, wrong_cells

from qwenlab.teach import exploring


def verdicts(text):
    return re.findall(r"same as alone|DIFFERENT", text)


RIGHT, WRONG = "same as alone", "DIFFERENT"


@pytest.fixture(scope="module")
def masks():
    return Lesson("03-combined-mask", until="library")


@pytest.fixture(scope="module")
def nans():
    return Lesson("04-nan-rows", until="library")


def test_03_top_left_is_right_for_one_token_only(masks, capsys):
    said = masks.say("top-left", capsys)
    assert verdicts(said) == [WRONG, WRONG]
    names = masks.names
    for prompt, lone in zip(names["prompts"], names["alone"], strict=True):
        answer = names["continue_cached"](prompt, names["top_left_mask"])
        assert answer[0] == lone[0] and answer[1] != lone[1]
    assert re.findall("True|False", masks.say("flag", capsys)) == ["True", "False"]


def test_03_order_alone_spoils_the_padded_row_and_the_cure_mends_all(masks, capsys):
    assert verdicts(masks.say("order-only", capsys)) == [WRONG, RIGHT]
    assert verdicts(masks.say("plain", capsys)) == [RIGHT] * 4


def test_03_a_cached_step_is_the_bottom_of_the_square(masks, capsys):
    said = masks.say("cached-step", capsys)
    right, wrong = re.findall(r"(?:difference|row 1) (\S+)", said)
    assert float(right) < 1e-5 < 0.1 < float(wrong) and "row 0 has NaN: True" in said


def test_03_a_rule_of_the_readers_own_takes_part_at_once(masks, capsys):
    assert WRONG in verdicts(masks.say("window", capsys))
    assert float(re.search(r"difference (\S+)", masks.say("heads", capsys))[1]) > 0.1


@pytest.mark.parametrize(
    ("change", "words", "fits"),
    [
        ((), [RIGHT, RIGHT], "True"),
        ((("cached = keys - queries  # 1", "cached = 0"),), [RIGHT, RIGHT], "False"),
        ((("key <= place  # 2", "key < place"),), [WRONG, WRONG], "True"),
        ((("real[key]  # 3", "real[place]"),), [WRONG, RIGHT], "True"),
    ],
)
def test_03_breaking_shows_what_the_text_says(masks, capsys, change, words, fits):
    said = masks.say("break-me", capsys, *change)
    assert verdicts(said) == words and f"bottom of the square: {fits}" in said


def test_04_nan_stays_in_its_row_until_rows_meet(nans, capsys):
    said = nans.say("textbook", capsys)
    real = list(map(int, re.findall(r"(\d+) real tokens", said)))
    assert list(map(int, re.findall(r"(\d+) of them", said))) == [real[0], 0]
    said = nans.say("words", capsys)
    assert verdicts(said) == [WRONG, RIGHT] and "RuntimeError: probability tensor" in said
    said = nans.say("loss", capsys)
    tensors = len(list(nans.names["model"].parameters()))
    assert "mean over the batch: nan" in said and f"{tensors} of {tensors}" in said
    assert not any(parameter.requires_grad for parameter in nans.names["model"].parameters())


def test_04_cures_mend_and_the_lowest_number_twice_does_not(nans, capsys):
    lines = {line[:19].strip(): line for line in nans.say("cures", capsys).splitlines()}
    bad = [name for name, line in lines.items() if "tokens NaN" in line]
    assert bad == ["-inf", "finfo.min twice"] and len(lines) == 7
    for name in set(lines) - set(bad):
        single, half = map(float, re.findall(r"difference (\S+)", lines[name]))
        assert single < 1e-5 and half < 5e-2
    lines = {line[:19].strip(): line for line in nans.say("kernels", capsys).splitlines()}
    left = {
        "-inf": "NaN", "finfo.min": "the mean", "finfo.min twice": "NaN", "log-sum-exp": "zeros",
        "pads-see-themselves": "its own", "eager": "zeros", "sdpa": "zeros", "sdpa, lowest added": "the mean",
    }  # fmt: skip
    assert all(lines[name].count(f": {word}") == 2 for name, word in left.items())


def test_04_three_cures_fail(nans, capsys):
    assert nans.say("twice", capsys).count("-inf") == 5
    said = nans.say("clamp", capsys)
    assert torch.tensor([1e-39]).mul(1).item() > 0, "flushing was left on"
    if "flushed" in said:
        assert re.findall(r"flushed: (\S+)", said) == ["nan", "0.0"] * 3
    found = dict(re.findall(r"(\S.*\S) +loss .* gradients: (\d+)", nans.say("nan-to-num", capsys)))
    assert int(found.pop("swept up")) > 0 and set(found.values()) == {"0"} and len(found) == 3


def test_04_zeroing_pads_is_neither_needed_nor_a_cure(nans, capsys):
    said = nans.say("zeroing", capsys)
    assert [float(x) for x in re.findall(r"difference (\S+)", said)] == [0.0, 0.0]
    assert re.findall(r"(\d+)% NaN", said) == ["40", "40", "0"]


def test_04_a_cure_hides_a_mistake_and_a_look_finds_it(nans, capsys):
    for cell in ("time", "hides"):
        exec(nans.sources[cell], nans.names)
    said = nans.say("hides", capsys)
    answers = re.findall(r"next tokens: (.+)", said)
    assert answers[0] == "NaN" and answers[-1] not in answers[:-1] and len(set(answers[1:-1])) == 1
    said = nans.say("assert", capsys)
    first = [int(real.int().argmax()) for real in nans.names["rectangle"][1]]
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
def test_04_breaking_shows_what_the_text_says(nans, capsys, change, nan):
    said = nans.say("break-me", capsys, *change)
    assert verdicts(said) == [WRONG if nan else RIGHT, RIGHT]


@pytest.mark.parametrize("name", ["03-combined-mask", "04-nan-rows"])
def test_every_state_of_the_widget_shows_the_right_numbers_and_no_two_are_alike(name, monkeypatch):
    monkeypatch.setenv("QWENLAB_PAGE", "1")
    monkeypatch.setattr(exploring, "_spent", 0)
    cell = {"03-combined-mask": "explore-masks", "04-nan-rows": "explore-microscope"}[name]
    lesson = Lesson(name, until=cell)
    shown = pictures(lesson.widget._repr_html_())
    labels = [label.replace("_", " ") for label in lesson.controls]
    states = [dict(zip(labels, map(str, state), strict=True)) for state in itertools.product(*lesson.controls.values())]
    assert len(shown) == len(states) > 15  # equal pictures would be stored once
    for state, (_, tables) in zip(states, shown, strict=True):
        assert wrong_cells(tables, EXPECTED[name][0](state)) == [], state
