"""Lesson 05: what its text says is what happens, and every state of its widget is right."""

import re

import pytest
import torch
from lesson_cells import code_cells, numbers, pictures, say, signs
from widget_numbers import EXPECTED, wrong_cells

import qwenlab
from qwenlab.teach import check, exploring, until_stop


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
        "plain",
        "library",
        "look-timelines",
        "draw-plain-code",
        "one-stream",
        "own-streams",
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
    decode = lesson[1]["tokenizer"].decode
    answers = [decode(ids).split("\\boxed")[1] for ids in lesson[1]["alone"]]
    assert answers == ["{72}", "{51}", "{5}", "{28}"]


def test_the_steps_add_up(lesson):
    names = lesson[1]
    lengths = [len(ids) + 1 for ids in names["alone"]]
    assert names["steps"](names["one_by_one"]) == sum(lengths)
    assert names["steps"](names["together"]) == max(lengths)
    assert names["together"].stats.row_steps["wasted"] == sum(
        max(lengths) - length for length in lengths
    )


def test_a_state_holds_each_row_s_own_length(lesson, capsys):
    said = say(lesson, "state", capsys)
    lengths = [len(prompt) for prompt in lesson[1]["prompts"]]
    assert f"{max(lengths)} wide" in said and f"prefill  {lengths}" in said
    assert f"one decode   {[length + 1 for length in lengths]}" in said


def test_one_stop_id_of_the_two_talks_on_to_the_end(lesson, capsys):
    said = say(lesson, "stop-sets", capsys)
    decode = lesson[1]["tokenizer"].decode
    first_line = decode(lesson[1]["alone"][0]).split("\n")[0]
    assert f"A until the end of the line: {first_line}\n" in said
    talking = [line for line in said.splitlines() if "one stop id of two" in line]
    assert len(talking) == 4 and all(line.endswith("<|im_end|>") for line in talking)


# --- sampling ---


def test_the_plain_code_gives_the_probabilities_that_the_formulas_do(lesson):
    penalise, probabilities = lesson[1]["penalise"], lesson[1]["probabilities"]
    z = torch.tensor([2.0, 1.0, 0.0, -1.0])
    halves = torch.exp(z / 0.5) / torch.exp(z / 0.5).sum()
    assert torch.allclose(probabilities(z, T=0.5), halves)
    p = torch.exp(z) / torch.exp(z).sum()  # 0.64, 0.24, 0.09, 0.03
    for options, left in ((dict(k=2), 2), (dict(p=0.6), 1), (dict(p=0.7), 2), (dict(k=3, p=1), 3)):
        expected = p.where(torch.arange(4) < left, 0)
        assert torch.allclose(probabilities(z, **options), expected / expected.sum()), options
    assert penalise(z, [0, 3, 3], 2.0).tolist() == [1.0, 1.0, 0.0, -2.0]
    assert z.tolist() == [2.0, 1.0, 0.0, -1.0]


@pytest.mark.parametrize(
    "setting", [dict(temperature=1.3, top_k=3), dict(temperature=0.9, top_p=0.8)]
)
def test_the_library_draws_as_often_as_the_plain_code_says(lesson, setting):
    model, tokenizer, ask = (lesson[1][name] for name in ("model", "tokenizer", "ask"))
    prompt = ask(tokenizer, "48+13+27+36=?", "")
    z = model(torch.tensor([prompt]), last_only=True)[0]
    due = lesson[1]["probabilities"](
        z, setting["temperature"], setting.get("top_k", 0), setting.get("top_p", 1.0)
    )
    draws = 400
    drawn = qwenlab.generate(model, [prompt], n=draws, max_new_tokens=1, stop=(), **setting)
    counts = torch.bincount(torch.tensor(drawn.token_ids)[:, 0], minlength=len(z))
    assert (counts[due == 0] == 0).all()
    deviations = (draws * due * (1 - due)).sqrt()
    assert ((counts - draws * due).abs() <= 4 * deviations).all()


def test_the_draws_of_the_page_stay_among_the_tokens_that_are_kept(lesson, capsys):
    lesson_names = dict(lesson[1])
    capsys.readouterr()
    exec(lesson[0]["draw-pictures"], lesson_names)
    said = say((lesson[0], lesson_names), "draw-python", capsys)
    assert sum(numbers(r"drawn (\d+) times of 200", said)) == 200
    assert len(re.findall(r" 0\.0%  drawn 0 times", said)) == 2  # of six, top-k keeps four
    assert "agrees token by token" in said


def test_the_pictures_show_what_the_text_says_of_each_setting(lesson):
    names = dict(lesson[1])
    exec(lesson[0]["draw-pictures"], names)
    table = {
        setting: torch.stack([names["column"](setting, value) for value in values], 1)
        for setting, values in names["PICTURES"].items()
    }
    unlikely = table["temperature T"][-1]
    assert (unlikely.diff() > 0).all()  # the hotter, the likelier
    new = [i for i, token_id in enumerate(names["likely"].tolist())
           if token_id not in names["sum_prompt"]]  # fmt: skip
    assert new and (table["repetition penalty r"][new].diff() > 0).all()
    assert (table["repetition penalty r"] > 0).all() and (table["temperature T"] > 0).all()
    for setting in ("top-k", "top-p"):
        assert (table[setting] == 0).any() and (table[setting][0].diff() <= 0).all()


def test_one_stream_for_all_changes_a_row_with_its_neighbours(lesson, capsys):
    assert "-" in signs(say(lesson, "one-stream", capsys))
    assert signs(say(lesson, "own-streams", capsys)) == "===="
    say(lesson, "streams-agree", capsys)


# --- the exercises ---


def test_the_colleague_s_version_passes_its_own_test_and_fails_the_check():
    def cut(token_ids, stop_ids):
        is_stop = torch.isin(token_ids, torch.tensor(stop_ids))
        first = is_stop.int().argmax(dim=1, keepdim=True)
        keep = torch.arange(token_ids.shape[1]) < first
        return keep, is_stop[:, -1]

    keep, stopped = cut(torch.tensor([[3, 4, 9, 7], [5, 9, 7, 7]]), [9, 7])
    assert keep.sum(1).tolist() == [2, 1] and stopped.all()
    answer = check("cut-at-stop", cut)
    assert not answer.ok and "both bugs" in repr(answer)


def cut_row_by_row(token_ids, stop_ids):
    keep = torch.zeros(token_ids.shape, dtype=torch.bool)
    stopped = torch.zeros(len(token_ids), dtype=torch.bool)
    for row, ids in enumerate(token_ids.tolist()):
        left = until_stop(ids, stop_ids)
        keep[row, : len(left)] = True
        stopped[row] = len(left) < len(ids)
    return keep, stopped


def cut_by_place(token_ids, stop_ids):
    stops = (token_ids[..., None] == torch.tensor(stop_ids)).any(-1)
    stopped = stops.any(1)
    first = stops.int().argmax(1).where(stopped, torch.tensor(token_ids.shape[1]))
    return torch.arange(token_ids.shape[1]) < first[:, None], stopped


def step_row_by_row(logits, done, stop_ids, pad_id):
    ids = [pad_id if over else int(z.argmax()) for z, over in zip(logits, done, strict=True)]
    after = [bool(over) or token in stop_ids for token, over in zip(ids, done, strict=True)]
    return torch.tensor(ids)[:, None], torch.tensor(after)


def step_with_where(logits, done, stop_ids, pad_id):
    ids = torch.where(done, pad_id, logits.max(-1).indices)
    for stop_id in stop_ids:
        done = done | (ids == stop_id)
    return ids.unsqueeze(1), done


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("cut-at-stop", cut_row_by_row),
        ("cut-at-stop", cut_by_place),
        ("decode-step", step_row_by_row),
        ("decode-step", step_with_where),
    ],
)
def test_other_ways_to_write_it_are_right_too(name, answer):
    assert check(name, answer).ok


# --- the cell to break ---

ALIVE = "done[row] or token_id in model.stop_ids  # 2, 3"
BREAKS = {
    "1": (
        (
            "model(input_ids, real, state, last_only=True)  # 1",
            "model(input_ids, state=state, last_only=True)",
        ),
        "====",
    ),
    "2": ((ALIVE, "token_id in model.stop_ids"), "----"),
    "3": ((ALIVE, "done[row] or token_id == pad_id"), "----"),
    "4": (
        (
            "new[:, None], state=state, last_only=True)  # 4",
            "new.flip(0)[:, None], state=state, last_only=True)",
        ),
        "----",
    ),
}


def test_the_cell_to_break_works_as_it_stands(lesson, capsys):
    assert signs(say(lesson, "break-me", capsys)) == "===="


def test_each_break_shows_what_the_text_says_and_no_two_the_same(lesson, capsys):
    whole = say(lesson, "break-me", capsys)
    seen = {}
    for number, (change, expected) in BREAKS.items():
        seen[number] = say(lesson, "break-me", capsys, change)
        assert signs(seen[number]) == expected, number
        first_line_moved = seen[number].splitlines()[0] != whole.splitlines()[0]
        assert first_line_moved == (number == "1")
    assert len({*seen.values(), whole}) == 5
    assert re.findall(r"here .*", seen["3"]) != []
    assert all("<|im_end|>" in line for line in re.findall(r"here .*", seen["3"]))
    assert not any("<|im_end|>" in line for line in re.findall(r"here .*", seen["2"]))


def test_with_two_tokens_the_loud_breaks_can_hardly_be_seen(lesson, capsys):
    two = ("range(MOST)", "range(2)")
    whole = say(lesson, "break-me", capsys, two)
    assert say(lesson, "break-me", capsys, two, BREAKS["2"][0]) == whole
    assert say(lesson, "break-me", capsys, two, BREAKS["3"][0]) == whole


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
