"""GRPO killed at an operation on a file that is chosen by its count, not by the clock: it ends as
one that was not."""

import signal

import pytest
import torch
from forks import Forked
from helpers import FULL
from small_checkpoint import write_small_checkpoint

import qwenlab
from qwenlab.evaluation import load_problems
from qwenlab.training import grpo, rl


def odd(tokenizer, request, problem) -> float:
    return float(sum(request.token_ids) % 2)


def short_run(model_folder, folder):
    model, tokenizer = qwenlab.load(model_folder, torch.float32, "cpu")
    rl.reward = odd
    options = {"num_rollouts": 2, "prompts_per_step": 2, "max_new_tokens": 4, "save_every": 1}
    problems = load_problems("tiny-train", 4)
    grpo(model, tokenizer, problems, steps=3, lr=1e-3, folder=folder, **options)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    return write_small_checkpoint(tmp_path_factory.mktemp("model"))


def contents(folder):
    """Every file in the folder: its bytes, or only that it is there where its times may differ."""
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*")}
    timed = ("metrics.jsonl", "metrics.csv")
    return {
        name: path.is_file() and path.name not in timed and path.read_bytes()
        for name, path in files.items()
    }


def test_a_grpo_run_killed_at_any_operation_ends_with_the_files_of_one_that_was_not(
    model_folder, tmp_path
):
    whole = Forked(short_run, model_folder, tmp_path / "whole", folder=tmp_path / "whole")
    assert whole.end() == 0
    expected, operations = contents(tmp_path / "whole"), whole.places
    assert "step-000003" in expected and "step-000002" not in expected
    # A new checkpoint has its name by a rename; what follows removes the one before.
    around = [
        i for i, name in enumerate(operations) if "shutil.rmtree" in (name, operations[i - 1])
    ]
    for place in range(len(operations)) if FULL else around[-3:]:
        folder = tmp_path / f"killed at {place}"
        killed = Forked(short_run, model_folder, folder, folder=folder, signal_at=place)
        assert killed.end() == -signal.SIGKILL
        assert Forked(short_run, model_folder, folder, folder=folder).end() == 0
        assert contents(folder) == expected, (
            f"killed right before operation {place}, {operations[place]}"
        )
