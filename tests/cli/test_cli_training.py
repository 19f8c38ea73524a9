"""`qwenlab grpo` and `qwenlab plot`: what they write, and one clear line for what they can't do."""

import json
import sys

import pytest
import torch
from small_checkpoint import write_small_checkpoint

import qwenlab
from qwenlab.cli.main import main
from qwenlab.training.trainer import last_checkpoint, read_metrics

SMALL = "--lr 1e-3 --num-rollouts 4 --prompts-per-step 2 --batch-size 8 --max-new-tokens 24 --limit 8".split()


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as exit:
        main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return exit.value.code, captured.out, captured.err


def grpo(capsys, tmp_path, *arguments):
    return run(
        capsys, "grpo", "--model", "tiny-base", "--output", tmp_path / "run", *SMALL, *arguments
    )


def test_a_run_its_summary_and_its_pictures(tmp_path, capsys):
    status, out, err = grpo(capsys, tmp_path, "--data", "tiny-train", "--steps", 2, "--plot")
    assert status == 0 and "tiny-base, float32 on cpu, 8 problems" in err
    assert "2 steps in" in out and str(tmp_path / "run" / "step-000002") in out
    first, last = read_metrics(tmp_path / "run")
    row = next(line.split() for line in out.splitlines() if line.startswith("length"))
    assert row[1:] == [f"{first['length']:.4g}", f"{last['length']:.4g}"]
    model, tokenizer = qwenlab.load(last_checkpoint(tmp_path / "run"))
    assert (
        model.dtype == torch.float32 and len(model.stop_ids) == 2 and tokenizer.template is not None
    )
    assert (tmp_path / "run" / "metrics.png").read_bytes().startswith(b"\x89PNG")

    status, _, err = run(capsys, "plot", tmp_path / "run", "--output", tmp_path / "picture.svg")
    assert status == 0 and "picture.svg: 12 metrics of 2 steps" in err
    assert "<svg" in (tmp_path / "picture.svg").read_text(encoding="utf-8")
    for name in ("nowhere/picture.png", "picture.xyz"):
        status, _, err = run(capsys, "plot", tmp_path / "run", "--output", tmp_path / name)
        assert status == 2 and f"{name}: can't be written" in err and len(err.splitlines()) == 1

    status, out, _ = grpo(
        capsys, tmp_path, "--data", "tiny-train", "--steps", 3
    )  # more of the same run
    assert (
        status == 0 and "3 steps in" in out and read_metrics(tmp_path / "run")[:2] == [first, last]
    )


def test_options_reach_the_training(tmp_path, capsys, monkeypatch):
    from qwenlab.training import rl

    seen = {}
    monkeypatch.setattr(
        rl, "grpo", lambda *_, **options: seen.update(options) or [{"step": 0, "seconds": 1.0}]
    )
    given = [
        "--steps",
        7,
        "--minutes",
        2.5,
        "--temperature",
        0.7,
        "--clip-ratio",
        0.1,
        "--kl",
        0.05,
        "--updates",
        2,
    ]
    given += ["--warm-up", 5, "--decay-steps", 9]
    given += ["--averaging", "fixed", "--no-thinking", "--plain", "--seed", 4, "--save-every", 3]
    (tmp_path / "run").mkdir()
    status, _, _ = grpo(capsys, tmp_path, "--data", "tiny-train", *given)
    assert status == 0
    assert seen == {
        **{
            "lr": 1e-3,
            "num_rollouts": 4,
            "prompts_per_step": 2,
            "batch_size": 8,
            "max_new_tokens": 24,
            "steps": 7,
        },
        **{
            "warm_up": 5,
            "decay_steps": 9,
            "minutes": 2.5,
            "temperature": 0.7,
            "clip_ratio": 0.1,
            "kl": 0.05,
            "updates": 2,
        },
        **{"averaging": "fixed", "thinking": False, "plain": True, "seed": 4, "save_every": 3},
        **{"folder": tmp_path / "run", "progress": False},
    }
    grpo(capsys, tmp_path, "--data", "tiny-train")
    assert (seen["steps"], seen["minutes"]) == (100, None)
    grpo(capsys, tmp_path, "--data", "tiny-train", "--minutes", 5)
    assert (seen["steps"], seen["minutes"]) == (None, 5)


WRONG_DATA = {
    "empty": ("", "no problem in it"),
    "no json": ('{"problem": "1+1", "answer": "2"}\n{"problem"', "line 2"),
    "no answer": ('{"problem": "1+1"}', "line 1: answer is missing"),
    "no problem": ('{"answer": "2"}', "line 1: problem is missing"),
    "a list": ('["1+1", "2"]', "line 1"),
}


@pytest.mark.parametrize("name", WRONG_DATA)
def test_wrong_data_is_named_by_line(tmp_path, capsys, name):
    content, message = WRONG_DATA[name]
    (tmp_path / "data.jsonl").write_text(content, encoding="utf-8")
    status, out, err = grpo(capsys, tmp_path, "--data", tmp_path / "data.jsonl", "--steps", 1)
    assert status == 2 and message in err and "data.jsonl" in err and not out
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "given, message",
    [
        (["--data", "tiny-tests"], "no problems 'tiny-tests'"),
        (["--data", "tiny-train", "--averaging", "mean"], "averaging is 'mean'"),
        (["--data", "tiny-train", "--num-rollouts", "1"], "num_rollouts is 1"),
        (["--data", "tiny-train", "--steps", "x"], "'--steps'"),
        (["--data", "tiny-train", "--threads", "0"], "--threads is 0"),
        (["--data", "tiny-train", "--threads", "100000"], "--threads is 100000"),
        (["--data", "tiny-train", "--kl", "nan"], "kl is nan"),
        (["--data", "tiny-train", "--temperature", "1e300"], "temperature is 1e+300"),
        (["--data", "tiny-train", "--device", "meta"], "device 'meta' can't be used"),
        (["--data", "tiny-train", "--limit", "0"], "limit is 0"),
    ],
)
def test_wrong_options_are_one_line_and_status_2(tmp_path, capsys, given, message):
    status, out, err = grpo(capsys, tmp_path, *given)
    assert status == 2 and message in err and not out and not (tmp_path / "run").exists()
    assert len([line for line in err.splitlines() if line.startswith("qwenlab:")]) <= 2


def test_a_problem_that_leaves_no_room_is_named(tmp_path, capsys):
    (tmp_path / "data.jsonl").write_text(
        json.dumps({"problem": "1+1 " * 2000, "answer": "2", "unique_id": "long"}), encoding="utf-8"
    )
    status, _, err = grpo(capsys, tmp_path, "--data", tmp_path / "data.jsonl")
    assert status == 2 and "problem long" in err and not (tmp_path / "run").exists()


def test_another_run_s_folder_is_left_alone(tmp_path, capsys):
    model = write_small_checkpoint(tmp_path / "model")
    options = ["--data", "tiny-train", "--steps", 1]
    assert (
        run(capsys, "grpo", "--model", model, "--output", tmp_path / "run", *SMALL, *options)[0]
        == 0
    )
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    for changes, differing in (
        (["--seed", 1], "seed is"),
        (["--lr", 1e-4], "lr is"),
        (["--limit", 9], "8 problems there, 9 now)"),
    ):
        status, _, err = run(
            capsys,
            "grpo",
            "--model",
            model,
            "--output",
            tmp_path / "run",
            *SMALL,
            *options,
            *changes,
        )
        assert status == 2 and f"holds another run ({differing}" in err
    status, _, err = grpo(capsys, tmp_path, *options)  # another model
    assert status == 2 and "holds another run (model is" in err
    assert before == {
        path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()
    }


def test_a_picture_without_matplotlib_says_what_to_install(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    status, _, err = run(capsys, "plot", tmp_path)
    assert status == 1
    assert err == 'qwenlab: pictures need matplotlib: pip install "qwenlab[notebook]"\n'


def test_nothing_to_draw(tmp_path, capsys):
    status, _, err = run(capsys, "plot", tmp_path)
    assert status == 2 and "metrics.jsonl" in err
