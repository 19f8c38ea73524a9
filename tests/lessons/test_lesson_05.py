"""Lesson 05: what its text says is what happens, and every state of its widget is right."""

import pytest
from lesson_cells import code_cells, numbers, pictures, say, signs
from widget_numbers import EXPECTED, wrong_cells

from qwenlab.teach import exploring


@pytest.fixture(scope="module")
def lesson():
    """The source of each cell by id, and a namespace in which the first half has run."""
    sources = code_cells("05-batched-generation")
    names = {}
    for name in (
        "load",
        "alone",
        "dropped",
        "dropped-picture",
        "look-timelines",
        "plain",
        "one-stream",
    ):
        exec(sources[name], names)
    return sources, names


def test_a_dropped_mask_gives_a_right_first_token_and_wrong_words(lesson, capsys):
    assert signs(say(lesson, "dropped", capsys)) == "---="
    kept = lesson[1]["kept"]
    dropped = lesson[1]["dropped"]
    first_wrong = [next((i for i, (a, b) in enumerate(zip(*rows, strict=True)) if a != b), None)
                   for rows in zip(kept[:3], dropped[:3], strict=True)]  # fmt: skip
    assert all(1 < place < lesson[1]["SHOWN"] for place in first_wrong)  # all in the picture
    assert [row[:1] for row in kept] == [row[:1] for row in dropped]


def test_the_model_answers_rightly_alone(lesson):
    answers = [lesson[1]["text"](ids).split("\\boxed")[1] for ids in lesson[1]["alone"]]
    assert answers == ["{72}", "{51}", "{5}", "{28}"]


def test_the_steps_add_up(lesson):
    names = lesson[1]
    lengths = [len(ids) + 1 for ids in names["alone"]]
    assert names["steps"](names["one_by_one"]) == sum(lengths)
    assert names["steps"](names["together"]) == max(lengths)
    assert names["together"].stats.row_steps["wasted"] == sum(
        max(lengths) - length for length in lengths
    )


def test_one_stop_id_of_the_two_talks_on_to_the_end(lesson, capsys):
    said = say(lesson, "stop-sets", capsys)
    first_line = lesson[1]["text"](lesson[1]["alone"][0]).split("⏎")[0]
    assert said.count("<|im_end|>") >= 4 and f"A until the end of the line: {first_line}\n" in said


def test_a_hundred_draws_stay_among_the_tokens_that_top_k_keeps(lesson, capsys):
    for changes, most in (((), 100), ((("top_k=0", "top_k=2"),), 2)):
        drawn = numbers(r"drawn (\d+) times", say(lesson, "draw-python", capsys, *changes))
        assert sum(drawn) == 100 and 1 < len(drawn) <= most


def test_one_stream_for_all_changes_a_row_with_its_neighbours(lesson, capsys):
    assert "-" in signs(say(lesson, "one-stream", capsys))
    assert signs(say(lesson, "own-streams", capsys)) == "===="


BREAKS = {
    "1": (
        (
            "model(input_ids, real, state, last_only=True)  # 1",
            "model(input_ids, state=state, last_only=True)",
        ),
        "====",
    ),
    "2": (("continue  # 2", "pass"), "----"),
    "3": (("token_id in model.stop_ids:  # 3", "token_id == pad_id:"), "----"),
    "4": (
        (
            "new[:, None], state=state, last_only=True)  # 4",
            "new.flip(0)[:, None], state=state, last_only=True)",
        ),
        "----",
    ),
}


def test_the_cells_to_break_work_as_they_stand(lesson, capsys):
    assert signs(say(lesson, "break-me", capsys)) == "===="
    assert signs(say(lesson, "break-sampler-me", capsys)) == "===="


@pytest.mark.parametrize("number", BREAKS)
def test_breaking_shows_what_the_text_says(lesson, capsys, number):
    change, expected = BREAKS[number]
    said = say(lesson, "break-me", capsys, change)
    assert signs(said) == expected
    moved = numbers(r"logits moved by (\S+)", said)
    assert moved[0] > 0.01 if number == "1" else moved[0] < 1e-5


def test_a_sampler_that_listens_to_row_0_only(lesson, capsys):
    change = ("logits.argmax(-1)  # 5", "logits[0].argmax().expand(len(logits))")
    assert signs(say(lesson, "break-sampler-me", capsys, change)) == "=---"


# --- the widget ---


def test_every_state_of_the_widget_shows_what_the_model_says(lesson, monkeypatch):
    monkeypatch.setenv("QWENLAB_PAGE", "1")
    monkeypatch.setattr(exploring, "_spent", 0)
    sources, names = lesson
    exec(sources["explore-steps"].replace("\nexplore(", "\nwidget = explore("), names)
    html = names["widget"]._repr_html_()
    shown = pictures(html)
    steps = max(len(ids) + 1 for ids in names["alone"])
    assert (
        len(shown) == 2 * steps <= 60 and len(html) < 300_000
    )  # equal pictures would be stored once
    states = [
        {"step": str(step), "mask": mask} for step in range(steps) for mask in ("kept", "dropped")
    ]
    (right,) = EXPECTED["05-batched-generation"]
    for state, (picture, tables) in zip(states, shown, strict=True):
        assert wrong_cells(tables, right(state)) == [], state
        assert picture.figcaption.text == f"step {state['step']}, mask {state['mask']}"
