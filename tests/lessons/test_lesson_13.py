"""Lesson 13: what its text says is what happens.

Every state of its widget is right, and so are its stored results.
"""

import itertools
import json
import random
import re

import pytest
import stored_grpo
import torch
import widget_rollouts
from helpers import count
from lesson_cells import code_cells, pictures, say, shown
from widget_numbers import EXPECTED, wrong_cells

import qwenlab
from qwenlab.teach import exploring, keeping, stored
from qwenlab.training import objective
from qwenlab.training.trainer import token_logprobs

NAME = "13-grpo"
CELLS = [
    "load",
    "one-at-a-time",
    "rewards",
    "batch-statistics",
    "look-advantages",
    "long-run",
    "explore-run",
]
CELLS += [
    "mend-mask",
    "mend-ratio",
    "mend-loss-tokens",
    "mend-averages",
    "mend-gradient",
    "mend-one-step",
]
HASTE = {
    "roll(train[:4], **WAYS[way])": "roll(train[:1], **WAYS[way])",
    "for part in (16, 5):": "for part in ():",
    "train_step(plain, optimiser, chosen)": "train_step(plain, optimiser, chosen[:4])",
}


@pytest.fixture(scope="module")
def lesson():
    """The source of each cell by id, and a namespace in which those before the measurements ran.

    They run in haste: what they say at their full size is read from the page.
    """
    sources = code_cells(NAME)
    for old in HASTE:
        assert sum(source.count(old) for source in sources.values()) == 1, old
    names = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QWENLAB_PAGE", "1")
        patch.setattr(exploring, "_spent", 0)
        for cell in CELLS:
            source = sources[cell].replace("\nexplore(", "\nwidget = explore(")
            for old, new in HASTE.items():
                source = source.replace(old, new)
            exec(source, names)
    return sources, names


# --- the failing cases ---


def test_the_rollouts_say_the_same_both_ways(lesson):
    assert lesson[1]["same"] == [True]
    assert "The same words both ways: True" in shown(NAME, "one-at-a-time")


def test_some_groups_agree_and_some_do_not(lesson, capsys):
    rewards = lesson[1]["rewards"]
    worth = lesson[1]["group_advantages"](lesson[1]["rewards"])
    agree = [len(set(group)) == 1 for group in rewards.tolist()]
    assert 1 <= sum(agree) < len(agree)
    assert f"all agree: {sum(agree) / len(agree):.0%}" in say(lesson, "rewards", capsys)
    for group, values, silent in zip(rewards.tolist(), worth.tolist(), agree, strict=True):
        assert sum(values) == pytest.approx(0, abs=1e-5)
        assert (set(values) == {0.0}) == silent
        if sum(group) == 1:  # a lone right answer gets most
            assert max(values) == values[group.index(1)] == pytest.approx(worth.max().item())


def test_advantages_are_the_hand_worked_ones(lesson):
    names = lesson[1]
    worth = names["group_advantages"](names["hard_and_easy"])
    assert (
        worth[0].tolist() == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-3) and not worth[1].any()
    )
    assert names["batch"][1].gt(0.5).all() and names["batch"][0, 0] == names["batch"][1, 0]
    draw = random.Random(3)
    for _ in range(count(20, 200)):
        rewards = torch.tensor(draw.choices([0.0, 1.0], k=24)).view(draw.choice([2, 3, 6]), -1)
        assert torch.allclose(
            names["group_advantages"](rewards), objective.advantages(rewards), atol=1e-5
        )


# --- the mended step ---


def test_the_mask_holds_exactly_what_was_sampled(lesson):
    names = lesson[1]
    assert names["pad_id"] in names["stop_ids"]
    lengths = sorted(names["sampled"])
    some_are_cut = names["roll"](names["chosen"], max_new_tokens=lengths[len(lengths) // 2])
    kinds = set()
    for requests in (list(names["rollouts"]), list(some_are_cut)):
        ids, real, completion = names["rectangle"](requests)
        for row, request in enumerate(requests):
            answer = ids[row][completion[row]].tolist()
            kinds.add(request.stop_id)
            stop = [] if request.stop_id is None else [request.stop_id]
            assert answer == request.token_ids + stop
            assert ids[row][real[row]].tolist() == request.prompt + answer
    assert None in kinds and len(kinds) >= 2  # answers that stopped, and some that were cut off


def test_rescoring_is_the_librarys(lesson):
    names = lesson[1]
    ids, real, completion = names["rectangle"](list(names["rollouts"])[:9])
    for temperature in (1.0, 0.6):
        ours = names["rescore"](names["model"], ids, real, temperature)
        theirs = token_logprobs(names["model"], ids, real, completion, temperature=temperature)
        assert (ours - theirs)[completion].abs().max() < 1e-5


def test_the_ratio_is_1_before_an_update_and_only_at_the_temperature_of_sampling(lesson, capsys):
    names = lesson[1]
    assert names["largest_deviation"](list(names["rollouts"]), 1.0) < 1e-4
    assert len({len(request.prompt) for request in names["cooler"]}) > 1
    right, wrong = map(float, re.findall(r"up to ([\d.e+-]+)", say(lesson, "mend-ratio", capsys)))
    assert right < 1e-4 and wrong > 0.1


def test_the_loss_is_the_librarys_and_its_push_ends_where_the_text_says(lesson):
    names = lesson[1]
    new = torch.randn(4, 7)
    kept = torch.randn(4, 7)
    worth = torch.randn(4)
    ours = names["clipped_loss"](new, kept, worth)
    assert torch.equal(ours, objective.clipped_loss(new, kept, worth, 0.2))
    assert names["grid"].grad.neg().tolist() == [[1, 1, 1, 1, 0], [0, -1, -1, -1, -1]]


def test_the_three_averages_differ_as_worked_by_hand(lesson, capsys):
    found = re.findall(r"(\w+) +loss ([\d.]+)", say(lesson, "mend-averages", capsys))
    assert found == [("token", "1.00"), ("sequence", "2.00"), ("fixed", "0.25")]
    assert "rows' means: 2.00" in say(lesson, "mend-averages", capsys)
    for _ in range(count(5, 50)):
        lengths = torch.randint(1, 8, (5, 1))
        mask = torch.arange(7) < lengths
        losses = torch.randn(5, 7)
        for how in objective.AVERAGES:
            weight = lesson[1]["weights"](mask, how, int(mask.sum()), 5, 9)
            ours = (losses * weight).sum()
            theirs = objective.average(losses, mask, how, cap=9)
            assert ours.item() == pytest.approx(theirs.item(), abs=1e-6)


def test_any_cut_gives_the_same_gradient_and_own_counts_another():
    said = shown(NAME, "mend-gradient")
    off = [float(value) for value in re.findall(r": ([\d.e+-]+) off", said)]
    assert len(off) == 4 and max(off[::2]) < 1e-5 and min(off[1::2]) > 0.01


def test_the_plain_step_is_the_librarys():
    said = shown(NAME, "mend-compare")  # it asserts that the metrics agree
    assert said.count("ours") == 6 and "silent" in said
    moved, differ = re.findall(r"(?:up to|differ by) ([\d.e+-]+)\n", said)
    assert float(differ) < 0.01 * float(moved)


# --- the cell to break ---


def told(said):
    groups, tokens, ratio, loss = re.findall(r"(?:teach|counted|ratio-1\||loss) +([\d.e+-]+)", said)
    return int(groups), int(tokens), float(ratio), float(loss)


@pytest.fixture(scope="module")
def right(lesson):
    rewards = lesson[1]["rewards"]
    sampled = lesson[1]["sampled"]
    return int((rewards.amin(1) < rewards.amax(1)).sum()), sum(sampled)


def test_the_cell_to_break_works_as_it_stands(lesson, right, capsys):
    groups, tokens, ratio, _ = told(say(lesson, "break-me", capsys))
    assert (groups, tokens) == right and ratio < 1e-4


def test_breaking_shows_what_the_text_says(lesson, right, capsys):
    whole = told(say(lesson, "break-me", capsys))
    means = ("rewards - rewards.mean(1, keepdim=True)", "rewards - rewards.mean()")
    deviations = ("rewards.std(1, keepdim=True)", "rewards.std()")
    assert (
        told(say(lesson, "break-me", capsys, means, deviations))[0]
        == len(lesson[1]["chosen"])
        > right[0]
    )
    stopped = sum(request.stop_id is not None for request in lesson[1]["rollouts"])
    no_stop = told(
        say(lesson, "break-me", capsys, ("completion | is_stop  # 2", "completion & ~is_stop"))
    )
    assert no_stop[1] == right[1] - stopped and no_stop[2] < 1e-4
    assert told(say(lesson, "break-me", capsys, ("/ 1.0", "/ 0.7")))[2] > 0.1
    parts = [("PART_BROKEN = 16", f"PART_BROKEN = {size}") for size in (16, 5)]
    same = [told(say(lesson, "break-me", capsys, part))[3] for part in parts]
    assert same[0] == pytest.approx(same[1], abs=2e-5) == pytest.approx(whole[3], abs=2e-5)
    own = ("/ tokens  # 4", "/ int(counts.sum())")
    other = [told(say(lesson, "break-me", capsys, part, own))[3] for part in parts]
    assert abs(other[0] - other[1]) > 1e-3


# --- the trainings ---


def test_the_short_run_learns():
    said = shown(NAME, "short-run")
    first, last = map(float, re.search(r"practice: ([\d.]+) in .*, ([\d.]+) in", said).groups())
    assert last > first + 0.03


def test_the_long_run_can_be_switched_on(lesson, capsys):
    sources, names = lesson
    names = {**names, "held_out": names["held_out"][:4]}
    hasty = {"STEPS = 15": "STEPS = 1", "TESTS = 100": "TESTS = 4"}
    source = sources["short-run"]
    for old, new in hasty.items():
        assert source.count(old) == 1
        source = source.replace(old, new)
    exec(source, names)
    capsys.readouterr()
    exec(sources["long-cell"], names)
    assert capsys.readouterr().out.startswith("Off.")
    source = sources["long-cell"]
    hasty = {"LONG = False": "LONG = True", "range(3)": "range(1)"}
    hasty['STEPS = len(long_run["runs"][0]["metrics"]["reward"])'] = "STEPS = 1"
    for old, new in hasty.items():
        assert source.count(old) == 1
        source = source.replace(old, new)
    exec(source, names)
    assert re.search(r"seed 0: temperature 1 [\d.]+%, greedy [\d.]+%", capsys.readouterr().out)


# --- the widget ---


def test_every_state_of_the_widget_shows_what_plain_loops_say(lesson):
    html = lesson[1]["widget"]._repr_html_()
    shown = pictures(html)
    states = list(itertools.product(widget_rollouts.NAMES, (10, 5, 2)))
    assert (
        len(shown) == len(states) <= 60 and len(html) < 350_000
    )  # equal pictures would be stored once
    (right,) = EXPECTED[NAME]
    for (metric, points), (picture, tables) in zip(states, shown, strict=True):
        assert wrong_cells(tables, right({"metric": metric, "points": str(points)})) == [], (
            metric,
            points,
        )
        width = widget_rollouts.steps_a_point(points)
        assert picture.figcaption.text.startswith(f"{metric}: a point is {width} step")


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


def test_the_two_parts_of_the_gain_add_up_to_it(lesson, capsys):
    names = dict(lesson[1])
    for cell in ("long-results", "long-ways"):
        capsys.readouterr()
        exec(lesson[0][cell], names)
    said = capsys.readouterr().out
    parts = [float(found) for found in re.findall(r": +([+-][\d.]+) points", said)]
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
    first = json.loads(out.read_text())
    out.unlink()
    run(*options, "--out", out)  # the training and the tests are there already
    again = json.loads(out.read_text())
    assert {**first, "provenance": 0} == {**again, "provenance": 0}
    assert first["tests"]["step"] == [0, 2, 3] and first["provenance"]["command"].endswith(
        "--problems 3"
    )
    run("--speed", "--repeats", 1, "--out", tmp_path / "runs" / "speed.json")
    run("--merge", *sorted((tmp_path / "runs").glob("*.json")), "--out", tmp_path / "grpo.json")
    merged = json.loads((tmp_path / "grpo.json").read_text())
    assert merged["settings"] == small and len(merged["runs"]) == 1
    assert [line["rows"] for line in merged["speed"]["speed"]] == [1, 4]
    assert qwenlab.load("tiny-base")[0].config  # and nothing has touched the shipped model
    capsys.readouterr()
