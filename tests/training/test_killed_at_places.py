"""GRPO killed at an operation on a file that is chosen by its count, not by the clock: it ends as
one that was not."""

import json
import subprocess
import sys

import pytest
from helpers import FULL
from small_checkpoint import write_small_checkpoint

# One process imports everything, and each run is a fork of it. Asked for a folder and a place (-1:
# nowhere), it dies by SIGKILL right before that operation, or tells the operations of a run that
# came to its end.
PROGRAM = """
import json, os, signal, sys
import torch
torch.set_num_threads(1)
import qwenlab
from qwenlab.evaluation import load_problems
from qwenlab.training import grpo, rl

model_folder = sys.argv[1]
problems = load_problems("tiny-train", 4)
rl.reward = lambda tokenizer, request, problem: float(sum(request.token_ids) % 2)
CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "shutil.rmtree")

def run(folder, place):
    seen = []
    def count(event, arguments):
        written = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if written or event in CHANGES:
            if len(seen) == place:
                os.kill(os.getpid(), signal.SIGKILL)
            seen.append(event)
    model, tokenizer = qwenlab.load(model_folder, torch.float32, "cpu")
    sys.addaudithook(count)
    options = {"num_rollouts": 2, "prompts_per_step": 2, "max_new_tokens": 4, "save_every": 1}
    grpo(model, tokenizer, problems, steps=3, lr=1e-3, folder=folder, **options)
    return seen

for line in sys.stdin:
    folder, place = json.loads(line)
    reader, writer = os.pipe()
    if not os.fork():
        os.write(writer, json.dumps(run(folder, place)).encode())
        os._exit(0)
    os.close(writer)
    _, status = os.wait()
    with open(reader) as told:
        print(json.dumps([status, told.read()]), flush=True)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Runs GRPO in a folder: the signal that ended it, and its operations on files if none did."""
    model = write_small_checkpoint(tmp_path_factory.mktemp("model"))
    command = [sys.executable, "-c", PROGRAM, str(model)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:

        def run(folder, place=-1):
            process.stdin.write(json.dumps([str(folder), place]) + "\n")
            process.stdin.flush()
            status, told = json.loads(process.stdout.readline())
            return status, json.loads(told or "[]")

        yield run
        process.stdin.close()


def contents(folder):
    """Every file in the folder: its bytes, or only that it is there where its times may differ."""
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*")}
    timed = ("metrics.jsonl", "metrics.csv")
    return {
        name: path.is_file() and path.name not in timed and path.read_bytes()
        for name, path in files.items()
    }


def test_a_grpo_run_killed_at_any_operation_ends_with_the_files_of_one_that_was_not(run, tmp_path):
    status, operations = run(tmp_path / "whole")
    expected = contents(tmp_path / "whole")
    assert status == 0 and "step-000003" in expected and "step-000002" not in expected
    # A new checkpoint has its name by a rename; what follows removes the one before.
    around = [
        i for i, name in enumerate(operations) if "shutil.rmtree" in (name, operations[i - 1])
    ]
    for place in range(len(operations)) if FULL else around[-3:]:
        folder = tmp_path / f"killed at {place}"
        assert run(folder, place)[0] == 9
        assert run(folder)[0] == 0
        assert contents(folder) == expected, (
            f"killed right before operation {place}, {operations[place]}"
        )
