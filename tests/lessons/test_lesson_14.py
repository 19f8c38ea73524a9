"""Lesson 14: what its text says is what happens, and every state of its widget is right."""

import itertools
import json
import math
import random
import re
import sys

import lesson_cells
import pytest
import torch
from helpers import count
from lesson_cells import Lesson, code_cells, pictures
from widget_numbers import EXPECTED, wrong_cells

from qwenlab.bench.timing import Spread
from qwenlab.bench.workloads import PUBLISHED
from qwenlab.exercises.lesson_14 import answer_mask, token_mean, truncate
from qwenlab.teach import exploring, stored
from qwenlab.training.distillation import rectangle
from qwenlab.training.traces import Row

NAME = "14-distillation"
FEWER = {  # than the lesson has
    "PROBLEMS = 600": "PROBLEMS = 100",
    "STEPS = 16": "STEPS = 1",
    "PASSES = 2 ": "PASSES = 1 ",
    "limit=50": "limit=2",
}


@pytest.fixture(scope="module")
def lesson():
    """The lesson up to its training, in haste, every state of its widget drawn.

    What its short trainings bring is read from the page.
    """
    cells = code_cells(NAME)
    for old, new in FEWER.items():
        assert sum(source.count(old) for source in cells.values()) == 1
        cells = {cell: source.replace(old, new) for cell, source in cells.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lesson_cells, "code_cells", lambda name: cells)
        patch.setenv("QWENLAB_PAGE", "1")
        patch.setattr(exploring, "_spent", 0)
        return Lesson(NAME, until="library")


def numbers(text, name):
    """The numbers of the line that begins with `name`."""
    (line,) = [line for line in text.splitlines() if line.startswith(name)]
    return [float(found) for found in re.findall(r"-?\d[\d.]*", line.removeprefix(name))]


# --- the failing cases, as designed ---


def test_prompts_and_pads_drown_the_answers(lesson, capsys):
    said = lesson.say("all-count", capsys)
    four = lesson.names["four"]
    width = max(len(prompt) + len(answer) for prompt, answer in four)
    places = {
        "prompt": sum(len(prompt) - 1 for prompt, _ in four),
        "answer": sum(len(answer) for _, answer in four),
        "pad": sum(width - len(prompt) - len(answer) for prompt, answer in four),
    }
    found = {kind: numbers(said, kind) for kind in places}
    assert {kind: line[0] for kind, line in found.items()} == places
    assert found["prompt"][2] + found["pad"][2] > 95 and found["answer"][2] < 5
    assert found["answer"][3] < 0.3 * found["pad"][3]
    assert numbers(said, "cosine of the whole gradient with the answers' own:")[0] < 0.3


def test_a_loss_on_everything_brings_the_answers_far_less(lesson):
    told = lesson.shown("teaches").splitlines()[1:4]
    before, everything, answers = (float(line.split()[-1]) for line in told)
    assert answers < before
    assert before - everything < 0.6 * (before - answers)


def test_a_row_without_an_answer_spoils_every_weight(lesson, capsys):
    said = lesson.say("cut-whole", capsys)
    assert (
        "0 answer tokens left" in said and "its loss: nan" in said and "a mean of rows: nan" in said
    )
    broken, of = re.search(r"(\d+) of (\d+) weight matrices", said).groups()
    assert broken == of


def test_a_made_up_stop_teaches_to_end_in_mid_thought(lesson):
    found = re.findall(r"(\d+)% +([\d.]+)\n", lesson.shown("made-up"))
    (before, _), (cut, tokens), (stopped, fewer) = [
        (int(share) / 100, float(length)) for share, length in found
    ]
    assert cut > before - 0.1 and stopped < cut - 0.2 and fewer < tokens


# --- the mended loss ---


def test_rows_are_cut_and_dropped_as_worked_out_by_hand(lesson, capsys):
    said = lesson.say("plain-rows", capsys).splitlines()
    assert [line.split(": ")[1] for line in said] == [
        "tokens [], dropped [0]",
        "tokens [], dropped [0]",
        "tokens [1], dropped []",
        "tokens [3], dropped []",
    ]


def test_the_mask_has_three_targets_whatever_the_answer_ends_in(lesson, capsys):
    assert re.findall(
        r"(\d) targets count, a mask from ids has (\d)", lesson.say("plain-batch", capsys)
    ) == [
        ("3", "3"),
        ("3", "2"),
    ]
    assert lesson.say("plain-loss", capsys) == "by tokens 1.0, mean of means 2.0\n"


def test_no_cut_changes_the_gradient_but_means_of_means_do(lesson):
    apart = dict(lesson.names["apart"])
    assert apart.pop("mean of means") > 1e-3
    assert len(apart) == 4 and max(apart.values()) <= 1e-5


def random_rows(draw, pad_id, stop_id):
    rows = []
    for _ in range(draw.randint(1, 5)):
        ids = [draw.choice([5, 6, 7, pad_id, stop_id]) for _ in range(draw.randint(2, 12))]
        rows.append(Row(ids, draw.randint(1, len(ids) - 1)))
    return rows


def test_plain_batches_and_the_exercise_are_the_library_s(lesson):
    draw = random.Random(14)
    pad_id = lesson.names["pad_id"]
    for _ in range(count(20, 500)):
        rows = random_rows(draw, pad_id, lesson.names["stop_id"])
        input_ids, _, wanted = rectangle(rows, pad_id)
        ids, targets, counts = lesson.names["plain_batch"](rows)
        assert (
            ids.equal(input_ids) and targets.equal(input_ids[:, 1:]) and counts.equal(wanted[:, 1:])
        )
        lengths = [len(row.ids) for row in rows]
        assert answer_mask(ids, [row.prompt for row in rows], lengths, pad_id).equal(counts)


def test_the_exercises_agree_with_the_lesson(lesson):
    draw = random.Random(15)
    plain_rows = lesson.names["plain_rows"]
    for _ in range(count(50, 1000)):
        traces = [
            ([1] * draw.randint(1, 9), [2] * draw.randint(1, 6), True)
            for _ in range(draw.randint(1, 5))
        ]
        most = draw.randint(1, 16)
        rows, dropped = plain_rows([(prompt, [*answer, 9]) for prompt, answer, _ in traces], most)
        assert truncate(traces, 9, most) == (
            [ids for ids, _ in rows],
            [len(i) - n for i, n in rows],
            dropped,
        )
        losses = [torch.rand(2, draw.randint(1, 5)) for _ in range(draw.randint(1, 4))]
        masks = [torch.rand(loss.shape) < 0.7 for loss in losses]
        masks[0][0] = True
        every = [
            loss.item() for pair in zip(losses, masks, strict=True) for loss in pair[0][pair[1]]
        ]
        assert token_mean(losses, masks).sum().item() == pytest.approx(sum(every) / len(every))


BREAKS = {
    "1": (("counts = counts[:, 1:]  # 1", "counts = targets != pad_id"), None),
    "2": (("if True:  # 2", "if ids[i] != pad_id:"), -1),
    "3": (
        ("logits = net(input_ids)[:, :-1].cpu()  # 3", "logits = net(input_ids)[:, 1:].cpu()"),
        0,
    ),
    "4": (("tokens = tokens  # 4", "tokens = len(wanted)"), 0),
    "5": (("in range(prompt, len(ids)):  # 5", "in range(prompt + 1, len(ids)):"), -4),
}


def test_the_cell_to_break_works_as_it_stands(lesson, capsys):
    assert lesson.say("break-me", capsys).endswith("right\n")


@pytest.mark.parametrize("number", BREAKS)
def test_breaking_shows_what_the_text_says(lesson, capsys, number):
    change, fewer = BREAKS[number]
    said = lesson.say("break-me", capsys, change)
    tokens, should = map(int, re.search(r"tokens (\d+), should be (\d+)", said).groups())
    loss, right = map(float, re.search(r"loss ([\d.]+), should be ([\d.]+)", said).groups())
    assert said.endswith("WRONG\n") and math.isclose(loss, right, abs_tol=1e-3) == (number == "5")
    assert tokens - should == fewer if fewer is not None else tokens > should


# --- the five conclusions ---


def verdicts(lesson, capsys, gains, backward):
    """What the lesson says if our table has these gains, and a backward pass this one."""
    runs = []
    for task, gain in gains.items():
        for batch, seconds, memory in ((1, gain, 4e8), (PUBLISHED[task].batch, 1.0, 5e8)):
            spread = dict.fromkeys(("median", "low", "high"), seconds)
            runs.append({"task": task, "batch": batch, "seconds": spread, "memory": memory})
    table = dict.fromkeys(
        ("model", "machine", "torch_version", "dtype", "problems", "repeats"), "some"
    ) | {"runs": runs}
    names = lesson.names | {"costs": {4: 0.1, 64: 0.2}, "shares": {1: Spread(0.5, 0.5, 0.5)}}
    names |= {"passes": {1: [2.0, backward], 16: [1.0, 1.0]}}
    exec(lesson.sources["long-run"], names)
    names["stored"] = lambda name: table
    exec(lesson.sources["table"], names)
    capsys.readouterr()
    exec(lesson.sources["verdicts"], names)
    said = [" ".join(lines.split()) for lines in capsys.readouterr().out.strip().split("\n\n")]
    assert len(said) == 6
    return said


def test_each_conclusion_gets_its_verdict_from_the_numbers(lesson, capsys):
    low = dict(zip(PUBLISHED, (1.3, 1.2, 1.5, 1.1), strict=True))
    big, slow, memory, pads, least, backward = verdicts(lesson, capsys, low, backward=2.0)
    assert "supported by their table: the H100 gains more in 4 of 4 tasks. Not testable here" in big
    assert "supported here: our machine gains less than the H100 in 4 of 4 tasks" in slow
    assert (
        "not testable here: a row takes 1.6 MB more" in memory and "a row takes 0.34 GB" in memory
    )
    assert "does not follow from their table: its batches are 64, 3, 4, 4," in pads
    assert "+10% (4 rows) and +20% (64 rows)" in pads
    assert "so in their table, so in ours: distillation gains least here, 1.1x" in least
    assert (
        "does not follow, backward gains as well: backward takes 50%" in backward
        and "gains 2.0x from 1 row to 16" in backward
    )

    assert "half so here" in verdicts(lesson, capsys, low, backward=1.5)[-1]
    high = dict(zip(PUBLISHED, (9.0, 1.2, 9.0, 9.0), strict=True))
    _, slow, _, _, least, backward = verdicts(lesson, capsys, high, backward=1.0)
    assert "not so here: our machine gains less than the H100 in 1 of 4 tasks" in slow
    assert "so in their table, not so in ours: self-consistency gains least" in least
    assert "supported here: backward takes" in backward


# --- what is stored ---


def test_the_stored_results_have_what_the_lesson_shows():
    long = stored("distillation")
    table = stored("workloads")
    assert [run["seed"] for run in long["runs"]] == [0, 1, 2]
    for run in long["runs"]:
        assert (
            0 < run["before"] < 1
            and 0 < run["after"] < 1
            and run["epochs"] > 0
            and run["steps"] > 0
        )
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
    made = json.loads((tmp_path / "all.json").read_text())
    shipped = stored("distillation")
    assert [run["seed"] for run in made["runs"]] == [0, 1]
    assert made.keys() == shipped.keys() and made["runs"][0].keys() == shipped["runs"][0].keys()
    assert made["provenance"].keys() == shipped["provenance"].keys()


# --- the widget ---


def test_every_state_of_the_widget_shows_what_plain_loops_say(lesson):
    ((widget, controls),) = lesson.widgets
    html = widget._repr_html_()
    shown = pictures(html)
    states = list(itertools.product(*controls.values()))
    assert (
        len(shown) == len(states) <= 60 and len(html) < 300_000
    )  # equal pictures would be stored once
    (right,) = EXPECTED[NAME]
    for state, (picture, tables) in zip(states, shown, strict=True):
        state = {
            name.replace("_", " "): str(value) for name, value in zip(controls, state, strict=True)
        }
        assert wrong_cells(tables, right(state)) == [], state
        _, lines = right(state)
        captions = [caption.text for caption in picture.find_all("figcaption")]
        assert captions[0].startswith(f"{sum(int(line[0]) for line in lines)} tokens count")
        assert float(captions[1].split()[-1]) == pytest.approx(
            sum(float(line[3]) for line in lines), abs=0.002
        )
        outlined = [len(tr.find_all("td", class_="x")) for tr in picture.table.tbody.find_all("tr")]
        assert outlined == [int(line[0]) for line in lines]
        heads = [tr.th.text for tr in picture.table.tbody.find_all("tr")]
        assert heads == [
            f"{n}{'' if int(line[0]) else ' dropped'}" for n, line in zip("ABC", lines, strict=True)
        ]
