"""Lesson 13: what its text says is what happens.

Every state of its widgets is right, and so are its stored results.
"""

import itertools
import json
import random
import re

import pytest
import stored_grpo
import torch
from helpers import count
from lesson_cells import code_cells, numbers, pictures, say, shown
from widget_numbers import EXPECTED, states_of, wrong_cells

import qwenlab
from qwenlab.exercises.lesson_13 import silent_groups
from qwenlab.teach import exploring, keeping, stored
from qwenlab.training import objective
from qwenlab.training.trainer import token_logprobs

NAME = "13-grpo"
CELLS = [
    "load",
    "hero",
    "batch-statistics",
    "objective-code",
    "pushes",
    "tokens-that-count",
    "rescore",
    "train-step",
    "averages",
    "explore-run",
    "long-answers",
]


@pytest.fixture(scope="module")
def lesson():
    """The source of each cell by id, and a namespace in which those that the tests call have run.

    What the others say is read from the page.
    """
    sources = code_cells(NAME)
    names = {"widgets": []}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QWENLAB_PAGE", "1")
        patch.setattr(exploring, "_spent", 0)
        for cell in CELLS:
            kept = re.sub(r"\nexplore\(", "\nwidgets += explore(", sources[cell])
            names["explore"] = lambda *given, **controls: [
                (exploring.explore(*given, **controls), controls)
            ]
            code = kept.replace("    explore,\n", "")
            exec(code, names)
    return sources, names


# --- groups ---


def test_advantages_are_the_hand_worked_ones(lesson):
    names = lesson[1]
    worth = names["group_advantages"](names["hard_and_easy"])
    assert worth[0].tolist() == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-3)
    assert not worth[1].any()
    over_batch = names["over_batch"]
    assert over_batch[1].gt(0.5).all() and over_batch[0, 0] == over_batch[1, 0]
    draw = random.Random(3)
    for _ in range(count(20, 200)):
        rewards = torch.tensor(draw.choices([0.0, 1.0], k=24)).view(draw.choice([2, 3, 6]), -1)
        theirs = objective.advantages(rewards)
        assert torch.allclose(names["group_advantages"](rewards), theirs, atol=1e-5)


def test_some_groups_of_the_first_screen_are_silent_and_some_are_not(lesson):
    rewards = lesson[1]["rewards"]
    silent = rewards.amin(1) == rewards.amax(1)
    assert 1 <= int(silent.sum()) < len(silent)
    (widget, _), _ = lesson[1]["widgets"]
    picture, _ = pictures(widget._repr_html_())[0]
    assert f"silent groups: {int(silent.sum())}" in picture.text
    outlined = [len(row.find_all("td", class_="x")) for row in picture.tbody.find_all("tr")]
    assert outlined == rewards.sum(1).int().tolist()


def test_the_answers_are_the_same_both_ways():
    said = shown(NAME, "one-at-a-time")
    assert "the answers are the same" in said
    alone, together = numbers(r"(\d+) steps", said)
    assert together < alone / 5


# --- the objective and the step ---


def test_the_objective_is_the_librarys_and_its_push_ends_where_the_text_says(lesson):
    names = lesson[1]
    new, old, ref = torch.randn(3, 4, 7)
    A = torch.randn(4)
    for beta in (0.0, 0.3):
        ours = names["objective"](new, old, ref, A, beta=beta)
        theirs = -objective.clipped_loss(new, old, A, 0.2)
        theirs = theirs - beta * objective.divergence(new, ref)
        assert torch.allclose(ours, theirs, atol=1e-5)
    ratios = torch.tensor([0.5, 1.0, 1.5])
    push = names["push"](ratios, [1.0, -1.0])
    assert push.ne(0).tolist() == [[True, True, False], [False, True, True]]
    pull = names["push"](ratios, [0.0], beta=1.0)[0]
    assert pull[0] > 0 and pull[1] == 0 and pull[2] < 0  # back towards 1


def test_the_ratio_is_1_before_an_update_and_only_at_the_temperature_of_sampling(lesson):
    right, wrong = numbers(r"up to ([\d.e+-]+)", shown(NAME, "rescore"))
    assert right < 1e-4 and wrong > 0.1
    names = lesson[1]
    ids, real, completion, _ = names["rectangle"](
        list(names["rollouts"])[:9], names["pad_id"], names["model"].device
    )
    for temperature in (1.0, 0.6):
        ours = names["rescore"](names["model"], ids, real, temperature)
        theirs = token_logprobs(names["model"], ids, real, completion, temperature=temperature)
        assert (ours - theirs)[completion].abs().max() < 1e-5


def test_the_plain_step_is_the_librarys():
    said = shown(NAME, "compare")  # it asserts that the metrics agree
    assert said.count("ours") == 5 and "silent" in said
    moved, differ = numbers(r"(?:up to|differ by) ([\d.e+-]+)\n", said)
    assert differ < 0.01 * moved


def test_kl_holds_the_model_nearer_its_start():
    said = shown(NAME, "kl-run")
    free, held = numbers(r"KL in the last ([\d.]+)", said)
    assert held < free and "stays nearer to its start" in said
    first, last = (
        numbers(r"beta 0.0: reward ([\d.]+) .*?", said)[0],
        numbers(r"beta 0.0: .*third, ([\d.]+) in", said)[0],
    )
    assert last > first + 0.03  # it learns


def test_the_three_averages_differ_as_worked_by_hand():
    found = re.findall(r"(\w+) +loss ([\d.]+), .* ([\d.]+) and ([\d.]+)", shown(NAME, "averages"))
    assert found == [
        ("sequence", "2.00", "0.500", "0.167"),
        ("token", "1.00", "0.250", "0.250"),
        ("fixed", "0.25", "0.062", "0.062"),
    ]


# --- the exercise that is measured, and the cell to break ---


def test_predicted_silent_groups_are_near_the_measured_ones(lesson, capsys):
    names = dict(lesson[1])
    exec(lesson[0]["silent-share"], names)
    names["my_silent_groups"] = silent_groups
    capsys.readouterr()
    exec(lesson[0]["measure-silent-groups"], names)
    lines = re.findall(r"predict (\d+)%, measured (\d+)%", capsys.readouterr().out)
    assert len(lines) == 3
    for predicted, measured in lines:
        assert abs(int(predicted) - int(measured)) < 15
    names["my_silent_groups"] = lambda rates, n: None
    exec(lesson[0]["measure-silent-groups"], names)
    assert capsys.readouterr().out.startswith("Write my_silent_groups first")


def told(said):
    found = numbers(r"(?:teach|counted|ratio-1\||loss) +([\d.e+-]+)", said)
    return int(found[0]), int(found[1]), found[2], found[3]


def test_the_cell_to_break_works_as_it_stands(lesson, capsys):
    rewards = lesson[1]["rewards"]
    groups, tokens, ratio, _ = told(say(lesson, "break-me", capsys))
    teach = int((rewards.amin(1) < rewards.amax(1)).sum())
    assert (groups, tokens) == (teach, sum(lesson[1]["sampled"])) and ratio < 1e-4


def test_breaking_shows_what_the_text_says(lesson, capsys):
    right = told(say(lesson, "break-me", capsys))
    means = ("rewards - rewards.mean(1, keepdim=True)", "rewards - rewards.mean()")
    deviations = ("rewards.std(1, keepdim=True)", "rewards.std()")
    broken = told(say(lesson, "break-me", capsys, means, deviations))
    assert broken[0] == len(lesson[1]["chosen"]) > right[0]
    stopped = sum(request.stop_id is not None for request in lesson[1]["rollouts"])
    no_stop = ("counts & real", "counts & ~torch.isin(ids, is_stop)")
    broken = told(say(lesson, "break-me", capsys, no_stop))
    assert broken[1] == right[1] - stopped and broken[2] < 1e-4
    assert told(say(lesson, "break-me", capsys, ("/ 1.0", "/ 0.7")))[2] > 0.1
    source = lesson[0] | {"break-me": lesson[0]["break-me"] + "\n"}
    last = "\n\n\nbroken_step(part=16)\n"
    fewer = (last, last.replace("16", "5"))
    again = (source, lesson[1])
    assert told(say(again, "break-me", capsys, fewer))[3] == pytest.approx(right[3], abs=2e-5)
    own = ("/ tokens  # 4", "/ int(counts.sum())")
    other = [told(say(again, "break-me", capsys, *changes))[3] for changes in ([own], [own, fewer])]
    assert abs(other[0]) > 2 * abs(right[3]) and abs(other[0] - other[1]) > 1e-3


# --- the widgets ---


def test_every_state_of_the_widgets_shows_what_plain_loops_say(lesson):
    size = 0
    for (widget, controls), right in zip(lesson[1]["widgets"], EXPECTED[NAME], strict=True):
        size += len(widget._repr_html_())
        states = list(states_of(widget, controls))
        assert len(states) <= 60
        for state, _, tables in states:
            assert wrong_cells(tables, right(state)) == [], state
    assert size < 400_000


# --- the stored results ---


def test_the_stored_results_are_of_the_lessons_settings_and_whole(lesson):
    held = stored("grpo")
    names = lesson[1]
    assert {"command", "date", "machine", "torch", "threads", "dtype", "seconds"} <= set(
        held["provenance"]
    )
    assert held["provenance"]["checkpoint"] == names["CHECKPOINT"]
    settings = held["settings"]
    assert settings["num_rollouts"] == names["ROLLOUTS"]
    assert settings["max_new_tokens"] == names["CAP"] and settings == stored_grpo.SETTINGS
    usual = [run["seed"] for run in held["runs"] if run["lr"] == names["USUAL"]]
    assert usual == [0, 1, 2] and len(held["runs"]) > 3  # and one with a rate that is too high
    for run in held["runs"]:
        steps = len(run["metrics"]["reward"])
        assert {len(values) for values in run["metrics"].values()} == {steps} and run["tests"][
            "step"
        ][-1] == steps
        assert len({len(values) for values in run["tests"].values()}) == 1
        assert (
            max(run["metrics"]["ratio"]) < 1e-4
        )  # nothing was trained on that the model hadn't said
    assert [line["rows"] for line in held["speed"]["speed"]] == list(stored_grpo.BATCHES)


def usual_runs():
    runs = stored("grpo")["runs"]
    rate = min(run["lr"] for run in runs)
    return [run for run in runs if run["lr"] == rate]


def test_the_counts_of_the_ways_are_those_of_the_accuracies():
    for run in stored("grpo")["runs"]:
        for tested in (run["before"], run["after"]):
            for kind in ("sampled", "greedy"):
                counts = tested["ways"][kind].values()
                right = sum(count["right"] for count in counts)
                assert sum(count["answers"] for count in counts) == run["problems"]
                assert right / run["problems"] == pytest.approx(tested[kind])


def test_the_answers_from_the_file_are_those_of_plain_loops(lesson, capsys):
    said = say(lesson, "long-answers", capsys)
    for number, name, digits in ((1, "reward", 2), (2, "length", 1), (3, "silent", 2)):
        (line,) = [line for line in said.splitlines() if line.startswith(f"{number}. ")]
        expected = []
        for run in usual_runs():
            values = run["metrics"][name]
            few = len(values) // 5
            first, last = sum(values[:few]) / few, sum(values[-few:]) / few
            expected.append(f"{first:.{digits}f} -> {last:.{digits}f}")
        assert ", ".join(expected) in line
        rises = values[-1] > values[0]
        assert rises or name != "reward"
    assert "1. rewards rise" in said and "3. silent groups multiply" in said
    assert stored("grpo")["provenance"]["machine"] in said


def test_an_answer_from_the_file_follows_its_numbers(lesson, capsys):
    names = dict(lesson[1])
    fallen = json.loads(json.dumps(names["usual"]))
    for run in fallen:
        run["metrics"]["reward"].reverse()
    names["usual"] = fallen
    assert "1. rewards fall" in say((lesson[0], names), "long-answers", capsys)
    names["usual"] = [names["usual"][0], *lesson[1]["usual"][1:]]
    assert "1. rewards differ by seed" in say((lesson[0], names), "long-answers", capsys)


def test_the_two_parts_of_the_gain_add_up_to_it(lesson):
    said = shown(NAME, "long-ways")
    parts = numbers(r": +([+-][\d.]+) points", said)
    gains = [run["after"]["sampled"] - run["before"]["sampled"] for run in usual_runs()]
    assert len(parts) == 2
    assert sum(parts) == pytest.approx(100 * sum(gains) / len(gains), abs=0.11)
    for way in stored_grpo.WAYS:
        (found,) = [line for line in said.splitlines() if line.strip().startswith(way)]
        shares = []
        for when in ("before", "after"):
            counts = [run[when]["ways"]["sampled"] for run in usual_runs()]
            answers = sum(count[way]["answers"] for count in counts)
            shares.append(f"{answers / sum(run['problems'] for run in usual_runs()):.0%}")
        assert re.findall(r"\d+%", found)[:2] == shares


def test_the_high_rate_collapses_and_the_usual_one_does_not():
    said = shown(NAME, "high-rate")
    verdicts = re.findall(r"rate ([\d.e-]+), .*: (.+)", said)
    usual = min(float(rate) for rate, _ in verdicts)
    assert len(verdicts) == len(stored("grpo")["runs"])
    for rate, verdict in verdicts:
        assert verdict == ("it has learned" if float(rate) == usual else "it has COLLAPSED")


def test_the_model_leaves_its_short_cut_and_greedy_decoding_does_so_in_a_jump():
    for run in usual_runs():
        short = stored_grpo.SHORT_CUT
        for kind in ("sampled", "greedy"):
            before, after = (run[when]["ways"][kind] for when in ("before", "after"))
            assert after[short]["answers"] < 0.5 * before[short]["answers"]
        rises = {}
        for kind in ("sampled", "greedy"):
            rises[kind] = max(later - now for now, later in itertools.pairwise(run["tests"][kind]))
        assert rises["greedy"] > rises["sampled"]


def test_an_unknown_name_lists_those_there_are():
    with pytest.raises(keeping.StoredError, match=r"no stored results 'grp'; there are .*grpo"):
        stored("grp")


def test_the_script_goes_on_where_it_was_and_its_parts_fit_together(tmp_path, monkeypatch, capsys):
    small = {"num_rollouts": 2, "prompts_per_step": 2, "batch_size": 4, "max_new_tokens": 8}
    monkeypatch.setattr(stored_grpo, "SETTINGS", small)
    monkeypatch.setattr(stored_grpo, "BATCHES", (1, 4))

    def run(*words):
        monkeypatch.setattr("sys.argv", ["stored_grpo.py", *map(str, words)])
        stored_grpo.main()

    out = tmp_path / "runs" / "seed-0.json"
    options = ["--seed", 0, "--steps", 3, "--every", 2, "--tests", 2, "--problems", 3]
    run(*options, "--out", out)
    first = json.loads(out.read_text(encoding="utf-8"))
    out.unlink()
    run(*options, "--out", out)  # the training and the tests are there already
    again = json.loads(out.read_text(encoding="utf-8"))
    assert {**first, "provenance": 0} == {**again, "provenance": 0}
    assert first["tests"]["step"] == [0, 2, 3] and first["provenance"]["command"].endswith(
        "--problems 3"
    )
    run("--speed", "--repeats", 1, "--out", tmp_path / "runs" / "speed.json")
    run("--merge", *sorted((tmp_path / "runs").glob("*.json")), "--out", tmp_path / "grpo.json")
    merged = json.loads((tmp_path / "grpo.json").read_text(encoding="utf-8"))
    assert merged["settings"] == small and len(merged["runs"]) == 1
    assert [line["rows"] for line in merged["speed"]["speed"]] == [1, 4]
    assert qwenlab.load("tiny-base")[0].config  # and nothing has touched the shipped model
    capsys.readouterr()
