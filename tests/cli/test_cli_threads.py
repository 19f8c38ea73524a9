"""`--threads`: a number, or what a short measurement of the loaded model finds better."""

import json
import re

import pytest
import torch
from small_checkpoint import write_small_checkpoint

from qwenlab.cli import threads

TRAINING = ["--data", "tiny-train", "--limit", 4, "--output", "run", "--lr", 1e-3]
TRAINING += ["--num-rollouts", 2, "--prompts-per-step", 2, "--batch-size", 4, "--max-new-tokens", 8]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(write_small_checkpoint(tmp_path_factory.mktemp("checkpoint")))


@pytest.fixture
def cores(monkeypatch):
    """Two cores, of which one is quicker; gives the list of (rows, numbers) that were timed."""
    timed = []

    def seconds(model, rows, numbers):
        timed.append((rows, sorted(numbers)))
        return {2: 0.015, 1: 0.01234}

    monkeypatch.setattr(threads, "step_seconds", seconds)
    torch.set_num_threads(2)
    return timed


def write_prompts(number: int) -> None:
    with open("p.txt", "w", encoding="utf-8") as file:
        file.write("a\n" * number)


def test_the_quicker_number_is_taken_and_both_times_are_shown(run, model):
    torch.set_num_threads(2)
    write_prompts(3)
    code, _, err = run("generate", "--model", model, "p.txt", "--max-new-tokens", 2)
    line = err.splitlines()[0]
    found = re.search(
        r"3 prompts, (\d) threads? \((\S+) ms per step; (\d) threads?: (\S+) ms\)$", line
    )
    assert code == 0 and found, line
    number, ours, other, theirs = map(float, found.groups())
    assert {number, other} == {1, 2} and (ours <= theirs or number == 1)
    assert torch.get_num_threads() == number


def test_it_is_timed_at_the_command_s_batch_size(run, model, cores):
    write_prompts(3)
    small = ["--model", model, "--max-new-tokens", 2]
    problems = [*small, "--data", "tiny-test", "--limit", 4]
    runs = {
        2: ["generate", "p.txt", *small, "--slots", 2],
        3: ["generate", "p.txt", *small],
        4: ["evaluate", *problems, "--batch-size", "auto"],
        5: ["vote", *problems, "--batch-size", 5],
        6: ["bench", "--model", model, "--batch", "1,6", "--new-tokens", 2, "--repeats", 1],
    }
    for rows, arguments in runs.items():
        torch.set_num_threads(2)
        code, _, err = run(*arguments)
        assert code == 0 and cores.pop() == (rows, [1, 2])
        assert "1 thread (12.3 ms per step; 2 threads: 15.0 ms)\n" in err
        assert torch.get_num_threads() == 1


@pytest.mark.parametrize(("both", "number"), [(0.5, 2), (0.99, 1), (1.0, 1), (2.0, 1)])
def test_all_cores_must_be_worth_it(run, model, monkeypatch, both, number):
    monkeypatch.setattr(threads, "step_seconds", lambda *_: {2: both, 1: 1.0})
    torch.set_num_threads(2)
    write_prompts(1)
    assert run("generate", "--model", model, "p.txt", "--max-new-tokens", 2)[0] == 0
    assert torch.get_num_threads() == number


def test_a_number_is_taken_without_a_measurement(run, model, cores):
    write_prompts(1)
    options = ["--max-new-tokens", 2, "--threads", 2]
    code, _, err = run("generate", "--model", model, "p.txt", *options)
    assert code == 0 and "1 prompt, 2 threads\n" in err
    assert torch.get_num_threads() == 2 and not cores


def test_with_one_core_there_is_nothing_to_measure(run, model, cores):
    torch.set_num_threads(1)
    write_prompts(1)
    code, _, err = run("generate", "--model", model, "p.txt", "--max-new-tokens", 2)
    assert code == 0 and "1 prompt, 1 thread\n" in err and not cores


@pytest.mark.parametrize("text", ["many", "1.5", "0", "-2", "100000"])
def test_anything_else_is_refused_in_one_line(run, model, text):
    write_prompts(1)
    code, out, err = run("generate", "--model", model, "p.txt", "--threads", text)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("qwenlab: --threads is ") and text in line and "expected" in line


def test_a_training_is_resumed_with_the_number_it_was_started_with(run, cores):
    start = ["grpo", "--model", "tiny-base", *TRAINING]
    assert run(*start, "--steps", 1, "--threads", 2)[0] == 0
    code, out, err = run(*start, "--steps", 2)
    assert code == 0 and "2 steps in" in out and not cores
    assert "2 threads (as recorded in run)\n" in err and torch.get_num_threads() == 2
    code, _, err = run(*start, "--steps", 3, "--threads", 1)
    assert code == 2 and "holds another run (threads is 2 there, 1 now)" in err


def test_a_chosen_number_is_recorded_and_resumed(run, cores):
    start = ["grpo", "--model", "tiny-base", *TRAINING]
    code, _, err = run(*start, "--steps", 1)
    assert code == 0 and "1 thread (12.3 ms per step; 2 threads: 15.0 ms)\n" in err
    with open("run/run.json", encoding="utf-8") as file:
        assert json.load(file)["threads"] == 1
    torch.set_num_threads(2)
    code, _, err = run(*start, "--steps", 2)
    assert code == 0 and "1 thread (as recorded in run)\n" in err and cores == [(4, [1, 2])]


def test_a_record_that_is_no_number_is_another_run(run, cores):
    start = ["grpo", "--model", "tiny-base", *TRAINING, "--steps", 1]
    assert run(*start)[0] == 0
    with open("run/run.json", encoding="utf-8") as file:
        settings = json.load(file)
    for wrong in ("many", -1, 10**9):
        with open("run/run.json", "w", encoding="utf-8") as file:
            json.dump(settings | {"threads": wrong}, file)
        code, _, err = run(*start)
        assert code == 2 and f"holds another run (threads is {wrong!r} there, 1 now)" in err


def test_every_command_that_computes_has_the_option(run):
    for command in "generate chat evaluate vote grpo traces distill bench table peers".split():
        code, out, _ = run(command, "--help")
        described = out.partition("\n  --threads ")[2].partition("\n  --")[0]
        assert code == 0 and "[default: auto]" in " ".join(described.split()), command
