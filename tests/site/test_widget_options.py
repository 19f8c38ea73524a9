"""Options that a widget doesn't take are refused by Python, in one line that names them."""

import json
import re

import pytest

from qwenlab.teach import page_model
from qwenlab.teach.in_page import FOLDER, widget_names
from qwenlab.teach.widget_options import OPTIONS

# Right values of every option, those in front as in the lessons.
RIGHT = {
    "answers": {"prompt": ["2+2?"], "n": [8, 1], "temperature": [1.0, 0, 2]},
    "batch": {
        "prompts": [["2+2?", "7*8?", "1+1?", "3+4?"], ("2+2?",)],
        "side": ["right", "left"],
        "pads": ["hidden", "seen"],
        "max_new_tokens": [60, 1],
    },
    "mask": {"lines": [["2+2=", "17+25="]], "pad": ["9"], "hints": [[1, 2], (0, 0)]},
    "nan": {"lines": [["2+2=", "17+25="]]},
    "queue": {
        "prompts": [["2+2?", "7*8?"]],
        "slots": [3, 1, 4],
        "strategies": [["static", "continuous"], ["early-stop"]],
    },
    "sampling": {
        "prompt": ["2+2?"],
        "temperature": [1, 0.5],
        "top_k": [0, 20],
        "top_p": [1.0, 0.05],
        "repetition_penalty": [1.0, 2],
    },
    "sides": {"prompts": [[("2+2?", "2+2="), ("7*8?", "")]], "side": ["left", "right"]},
    "steps": {"prompts": [["2+2?", "7*8?"]]},
    "turns": {"talks": [[["2+2?", "and 3?"], ("7*8?", "and 1?")]]},
}
# Wrong wherever they stand, and wrong where the right value is of that type.
WRONG = [None, object(), {}, [], [object()], [None], float("nan"), b"2"]
WRONG_BY_TYPE = {
    str: ["", " ", 3, ["2+2?"]],
    int: ["1", -1, True, 10_001, 0.5j],
    float: ["1", -1, True, 10_001],
    list: ["2+2?", 3, [3.5], [[]], ["2+2?"] * 40, [-1]],
}
CASES = [(widget, name) for widget, options in RIGHT.items() for name in options]


@pytest.fixture(scope="module")
def model():
    return page_model("tiny")


def right_options(widget: str) -> dict:
    return {name: values[0] for name, values in RIGHT[widget].items()}


def refused(model, widget: str, **options) -> str:
    with pytest.raises(ValueError) as error:
        model.widget(widget, **options)
    message = str(error.value)
    assert message.startswith(f"widget {widget}: ") and "\n" not in message and len(message) < 250
    return message


def test_every_widget_and_each_option_that_its_script_reads_is_known():
    assert sorted(OPTIONS) == sorted(RIGHT) == widget_names()
    for widget, options in RIGHT.items():
        assert sorted(options) == sorted(OPTIONS[widget])
        script = (FOLDER / f"widget_{widget}.js").read_text(encoding="utf-8")
        for name in options:
            assert re.search(rf"\b{name}\b", script)


@pytest.mark.parametrize(("widget", "name"), CASES)
def test_an_option_is_taken_right_refused_wrong_and_missed_only_if_needed(model, widget, name):
    options = right_options(widget)
    for value in RIGHT[widget][name]:
        shown = model.widget(widget, **{**options, name: value})
        assert json.dumps(value).replace('"', "&quot;") in shown.opening
    kind = type(RIGHT[widget][name][0])
    for value in WRONG + WRONG_BY_TYPE[kind]:
        assert f" {name} is " in refused(model, widget, **{**options, name: value})
    del options[name]
    if OPTIONS[widget][name].required:
        assert f" {name} is missing" in refused(model, widget, **options)
    else:
        model.widget(widget, **options)


@pytest.mark.parametrize("widget", RIGHT)
def test_what_no_widget_knows_is_named(model, widget):
    options = right_options(widget)
    assert "no option 'promts', expected " in refused(model, widget, **options, promts="2+2?")
    for height in (400, (400,), (400, "600"), (400, -1), None):
        assert " height is " in refused(model, widget, **options, height=height)


@pytest.mark.parametrize("name", ["side", "pads"])
def test_a_word_that_is_none_of_the_choices_is_refused(model, name):
    options = {**right_options("batch"), name: "middle"}
    assert f" {name} is 'middle', expected " in refused(model, "batch", **options)


def test_a_strategy_that_the_queue_does_not_have_is_refused(model):
    options = {**right_options("queue"), "strategies": ["static", "fast"]}
    assert "'continuous', or of some of them" in refused(model, "queue", **options)


def test_each_line_has_its_hint(model):
    assert " hints is [1], " in refused(model, "mask", lines=["2+", "3+"], pad="9", hints=[1])


def test_a_widget_of_one_s_own_takes_what_json_can_hold(model, tmp_path, monkeypatch):
    (tmp_path / "widget_next.js").write_text("", encoding="utf-8")
    (tmp_path / "drawing.css").write_text("", encoding="utf-8")
    monkeypatch.setattr("qwenlab.teach.in_page.FOLDER", tmp_path)
    model.widget("next", line="2+7=", anything=[None, 3])
    for wrong in (object(), float("nan"), {1, 2}):
        assert " line is " in refused(model, "next", line=wrong)
