"""Lesson 14: what its text says is what happens, and every state of its widgets is right."""

import json
import random
import re
import sys

import lesson_cells
import pytest
import torch
from helpers import count
from lesson_cells import code_cells, numbers, say, shown
from widget_numbers import EXPECTED, states_of, wrong_cells

from qwenlab.bench.workloads import PUBLISHED
from qwenlab.exercises.lesson_14 import part_factors, turn_mask
from qwenlab.teach import exploring, stored
from qwenlab.training.distillation import mean_loss, rectangle
from qwenlab.training.traces import Row

NAME = "14-distillation"
CELLS = [
    "load",
    "hero",
    "all-losses",
    "by-kind",
    "plain-batch",
    "explore-average",
    "plain-backward",
    "soft-loss",
    "break-rows",
]


@pytest.fixture(scope="module")
def lesson():
    """The source of each cell by id, and a namespace in which those that the tests call have run.

    The widgets hold all of their states. What the trainings bring is read from the page.
    """
    sources = code_cells(NAME)
    names = {"widgets": []}

    def record(draw, **controls):
        return [(exploring.explore(draw, **controls), controls)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QWENLAB_PAGE", "1")
        patch.setattr(exploring, "_spent", 0)
        for cell in CELLS:
            source = re.sub(r"\nexplore\(", "\nwidgets += record(", sources[cell])
            names["record"] = record
            if cell == "soft-loss":
                names["rows"] = names["all_rows"][:16]
            exec(source, names)
    return sources, names


def line_of(text, name):
    """The numbers of the first line that begins with `name`."""
    lines = [line.strip() for line in text.splitlines()]
    line = next(line for line in lines if line.startswith(name))
    return [float(found) for found in re.findall(r"-?\d[\d.]*", line.removeprefix(name))]


# --- what counts ---


def test_prompts_and_pads_drown_the_answers(lesson):
    said = shown(NAME, "by-kind")
    found = {kind: line_of(said, kind) for kind in ("prompt", "answer", "pad")}
    assert found["prompt"][1] + found["pad"][1] > 90 and found["answer"][1] < 10
    assert found["answer"][2] < 0.5 * found["pad"][2]
    assert numbers(r"own: (-?[\d.]+)", said)[0] < 0.5


def test_the_places_by_kind_are_those_of_the_rows(lesson, capsys):
    names = dict(lesson[1])
    said = say((lesson[0], names), "by-kind", capsys)
    four = names["four"]
    width = max(len(row.ids) for row in four)
    places = {
        "prompt": sum(row.prompt - 1 for row in four),
        "answer": sum(len(row.ids) - row.prompt for row in four),
        "pad": sum(width - len(row.ids) for row in four),
    }
    assert {kind: line_of(said, kind)[0] for kind in places} == places


def test_a_loss_on_everything_brings_the_answers_far_less():
    said = shown(NAME, "teaches")
    names = ("before", "all targets", "answers only")
    before, everything, answers = (
        line_of(said.split("on:")[1].split("\n", 2)[2], name)[1] for name in names
    )
    assert answers < before and before - everything < 0.6 * (before - answers)
    share = numbers(r"gain (-?\d+)%", said)[0]
    assert share == pytest.approx(100 * (before - everything) / (before - answers), abs=0.6)


def test_the_mask_has_three_targets_whatever_the_answer_ends_in():
    found = re.findall(r"(\d) targets count, by ids (\d)", shown(NAME, "plain-batch"))
    assert found == [("3", "3"), ("3", "2")]


def test_a_row_without_an_answer_spoils_every_weight():
    said = shown(NAME, "cut-whole")
    assert "a mean of rows: nan" in said
    broken, of = re.search(r"(\d+) of (\d+) weight tensors", said).groups()
    assert broken == of


def random_rows(draw, pad_id, stop_id):
    rows = []
    for _ in range(draw.randint(1, 5)):
        ids = [draw.choice([5, 6, 7, pad_id, stop_id]) for _ in range(draw.randint(2, 12))]
        rows.append(Row(ids, draw.randint(1, len(ids) - 1)))
    return rows


def test_plain_batches_and_the_exercise_are_the_librarys(lesson):
    draw = random.Random(14)
    pad_id = lesson[1]["pad_id"]
    for _ in range(count(20, 500)):
        rows = random_rows(draw, pad_id, lesson[1]["stop_id"])
        input_ids, _, wanted = rectangle(rows, pad_id)
        ids, targets, counts = lesson[1]["plain_batch"](rows)
        assert ids.equal(input_ids) and targets.equal(input_ids[:, 1:])
        assert counts.equal(wanted[:, 1:])
        for row, right in zip(rows, counts, strict=True):
            turns = [("user", row.prompt), ("assistant", len(row.ids) - row.prompt)]
            assert turn_mask(turns).equal(right[: len(row.ids) - 1])


# --- micro-batches ---


def test_no_cut_changes_the_gradient_but_a_mean_of_means_does():
    said = shown(NAME, "cuts")
    off = re.findall(r"^(.+?) +loss .*gradient ([\d.e+-]+) off", said, re.MULTILINE)
    assert len(off) == 5
    for name, apart in off:
        assert (float(apart) > 1e-3) == (name == "mean of means"), name


def test_the_exercises_factors_give_the_mean_over_all_tokens():
    draw = random.Random(15)
    for _ in range(count(50, 1000)):
        losses = [torch.rand(draw.randint(1, 9)) for _ in range(draw.randint(1, 4))]
        factors = part_factors(torch.tensor([len(loss) for loss in losses]))
        pairs = zip(losses, factors, strict=True)
        total = sum(loss.mean() * factor for loss, factor in pairs) / len(losses)
        assert total.item() == pytest.approx(torch.cat(losses).mean().item(), abs=1e-5)


# --- logits ---


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_the_loss_on_logits_is_the_librarys_and_the_formulas(lesson, temperature):
    names = lesson[1]
    rows = names["all_rows"][:5]
    model, teacher = names["model"], names["teacher"]
    with torch.no_grad():
        ours = names["learn_logits"](model, rows, temperature).item()
        theirs = mean_loss(model, [rows], names["pad_id"], teacher, temperature)
        total = tokens = 0
        for ids, prompt in rows:
            z, s = (net(torch.tensor([ids]))[0].double() for net in (teacher, model))
            for place in range(prompt - 1, len(ids) - 1):
                p = (z[place] / temperature).softmax(-1)
                q = (s[place] / temperature).softmax(-1)
                total += (p * (p / q).log()).sum().item()
                tokens += 1
    assert ours == pytest.approx(theirs, abs=1e-5)
    assert ours == pytest.approx(temperature**2 * total / tokens, rel=1e-3)


def test_t_squared_keeps_the_gradients_size_and_logits_teach():
    said = shown(NAME, "soft-run")
    norms = numbers(r"gradient ([\d.]+)", said)
    bare = numbers(r"without the factor ([\d.]+)", said)
    assert bare == sorted(bare, reverse=True) and bare[0] > 50 * bare[-1]
    assert norms[-1] == pytest.approx(norms[-2], rel=0.3)
    before = line_of(said, "before")[0]
    losses = {}
    for name in ("the teacher's tokens", "its logits, T = 1", "its logits, T = 2"):
        losses[name] = line_of(said, name)[0]
    assert max(losses.values()) < before
    lowest = re.search(r"The lowest is that of (.+)\.", said)[1]
    assert losses[lowest] == min(losses.values())


# --- the same minutes of each ---


def test_the_same_minutes_are_those_of_the_stored_runs():
    said = shown(NAME, "same-minutes")
    gains = []
    for run in stored("distillation")["runs"]:
        minutes, steps, theirs, ours = line_of(said, f"{run['seed']}  ")
        assert minutes == pytest.approx(run["seconds"] / 60, abs=0.06)
        assert ours == pytest.approx(100 * (run["after"] - run["before"]), abs=0.06)
        (other,) = [
            one
            for one in stored("grpo")["runs"]
            if one["seed"] == run["seed"] and len(one["metrics"]["reward"]) > 100
        ]
        spent = 0
        for name in ("rollout_seconds", "training_seconds"):
            spent += sum(other["metrics"][name][: int(steps)])
        assert spent <= run["seconds"]
        tests = other["tests"]
        last = max(i for i, step in enumerate(tests["step"]) if step <= steps)
        assert theirs == pytest.approx(100 * (tests["greedy"][last] - tests["greedy"][0]), abs=0.06)
        gains.append((theirs, ours))
    assert all(ours > theirs for theirs, ours in gains)
    assert "distillation gains more than GRPO" in said
    for name in ("grpo", "distillation"):
        assert stored(name)["provenance"]["date"] in said


def test_the_stored_results_have_what_the_lessons_show():
    long = stored("distillation")
    table = stored("workloads")
    assert [run["seed"] for run in long["runs"]] == [0, 1, 2]
    for run in long["runs"]:
        assert 0 < run["before"] < 1 and 0 < run["after"] < 1
        assert run["epochs"] > 0 and run["steps"] > 0
    assert long["provenance"]["command"].startswith("python scripts/stored_distillation.py --merge")
    assert [run["task"] for run in table["runs"]] == [task for task in PUBLISHED for _ in range(2)]
    assert [run["batch"] for run in table["runs"]][::2] == [1, 1, 1, 1]


def test_the_script_makes_such_results(monkeypatch, tmp_path, capsys):
    monkeypatch.syspath_prepend(str(lesson_cells.NOTEBOOKS.parent / "scripts"))
    import stored_distillation

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["stored_distillation.py", *map(str, arguments)])
        stored_distillation.main()

    monkeypatch.setitem(stored_distillation.SETTINGS, "held_out", 4)
    run("--traces", tmp_path / "traces", "--limit", 24)
    parts = [tmp_path / f"{seed}.json" for seed in (1, 0)]
    for seed, part in zip((1, 0), parts, strict=True):
        run(
            "--traces",
            tmp_path / "traces",
            "--seed",
            seed,
            "--epochs",
            0.5,
            "--problems",
            4,
            "--out",
            part,
        )
    run("--merge", *parts, "--out", tmp_path / "all.json")
    made = json.loads((tmp_path / "all.json").read_text(encoding="utf-8"))
    shipped = stored("distillation")
    assert [run["seed"] for run in made["runs"]] == [0, 1]
    assert made.keys() == shipped.keys() and made["runs"][0].keys() == shipped["runs"][0].keys()
    assert made["provenance"].keys() == shipped["provenance"].keys()


# --- the cell to break ---


BREAKS = {
    "1": (("counts = counts & True  # 1, 2", "counts = targets != pad_id"), None),
    "2": (("counts & True  # 1, 2", "counts & (targets != pad_id)"), -1),
    "3": (("[:, :-1].cpu()  # 3", "[:, 1:].cpu()"), 0),
    "4": (("/ tokens  # 4", "/ len(wanted)"), 0),
}


def test_the_cell_to_break_works_as_it_stands(lesson, capsys):
    assert say(lesson, "break-me", capsys).endswith("right\n")


@pytest.mark.parametrize("number", BREAKS)
def test_breaking_shows_what_the_text_says(lesson, capsys, number):
    change, fewer = BREAKS[number]
    said = say(lesson, "break-me", capsys, change)
    tokens, should = map(int, re.search(r"tokens (\d+), should be (\d+)", said).groups())
    loss, right = map(float, re.search(r"loss ([\d.]+), should be ([\d.]+)", said).groups())
    assert said.endswith("WRONG\n")
    assert tokens - should == fewer if fewer is not None else tokens > 1.2 * should
    assert (loss < 0.9 * right) == (number == "2")
    assert (loss > 1.2 * right) == (number != "2")


# --- the widgets ---


def test_every_state_of_the_widgets_shows_what_plain_loops_say(lesson):
    size = 0
    (hero, average) = EXPECTED[NAME]
    rights = (lambda state: hero(state, lesson[1]["three"]), average)
    for (widget, controls), right in zip(lesson[1]["widgets"], rights, strict=True):
        size += len(widget._repr_html_())
        states = list(states_of(widget, controls))
        assert len(states) <= 60
        for state, picture, tables in states:
            assert wrong_cells(tables, right(state)) == [], state
            captions = [caption.text for caption in picture.find_all("figcaption")]
            said = sum(numbers(r"(\d+) (?:targets|tokens) count", " ".join(captions)))
            outlined = len(picture.find_all("td", class_="x"))
            if "counts" not in state:  # all columns are drawn
                assert outlined == said
            if state.get("counts") == "everything":
                assert outlined == sum(map(len, tables[1]))
    assert size < 300_000
