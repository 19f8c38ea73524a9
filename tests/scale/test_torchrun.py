"""The command under torchrun: what it prints, a rank that is killed, Ctrl-C, and what resumes."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from helpers import FULL, count, gone, hear_ctrl_c
from safetensors.torch import load_file

from qwenlab.scale.ranks import LOST
from qwenlab.training.trainer import METRICS, last_checkpoint, read_metrics

pytestmark = pytest.mark.skipif(
    not (FULL or os.environ.get("QWENLAB_SCALE") == "1"),
    reason="starts torchrun many times (QWENLAB_FULL=1, or make test-scale)",
)
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
STEPS = 12
OPTIONS = "--model tiny-base --data tiny-train --limit 20 --lr 1e-3 --num-rollouts 4"
OPTIONS += " --prompts-per-step 3 --batch-size 8 --max-new-tokens 24 --save-every 3"


def torchrun(folder: Path, *changes: str, command: str = "grpo") -> subprocess.Popen:
    options = f"{OPTIONS} --steps {STEPS}".split() if command == "grpo" else []
    return subprocess.Popen(
        [*TORCHRUN, "-m", "qwenlab", command, *options, "--output", str(folder), *changes],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        preexec_fn=hear_ctrl_c,
    )


def finished(folder: Path, *changes: str) -> str:
    run = torchrun(folder, *changes)
    out, err = run.communicate()
    assert run.returncode == 0, err
    return out


def own_lines(err: str) -> list[str]:
    return [line for line in err.splitlines() if line.startswith("qwenlab:")]


def ranks_of(run: subprocess.Popen) -> dict[int, psutil.Process]:
    found = {}
    for process in psutil.Process(run.pid).children(recursive=True):
        variables = process.environ()
        if "qwenlab" in process.cmdline() and "RANK" in variables:
            found.setdefault(int(variables["RANK"]), process)  # a rank comes before its children
    return found


def wait_for_steps(run: subprocess.Popen, folder: Path, steps: int) -> None:
    metrics = folder / METRICS
    while not metrics.exists() or metrics.read_bytes().count(b"\n") < steps:
        assert run.poll() is None, run.communicate()
        time.sleep(0.01)


def check_end(folder: Path, whole: Path) -> None:
    """All steps, each once, and the weights of the run that nothing disturbed, bit by bit."""
    assert [record["step"] for record in read_metrics(folder)] == list(range(STEPS))
    ours = load_file(last_checkpoint(folder) / "model.safetensors")
    theirs = load_file(last_checkpoint(whole) / "model.safetensors")
    assert ours.keys() == theirs.keys()
    assert all(ours[name].equal(theirs[name]) for name in ours)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    out = finished(folder)
    assert out.count("the model:") == 1 and out.count(f"{STEPS} steps in") == 1
    return folder


@pytest.mark.parametrize("case", range(count(2, 10)))
def test_a_rank_killed_at_any_moment(whole, tmp_path, case):
    rng = random.Random(case)
    victim = case % 2
    folder = tmp_path / "run"
    run = torchrun(folder)
    wait_for_steps(run, folder, rng.randrange(STEPS - 2))
    time.sleep(rng.uniform(0, 0.5))
    processes = ranks_of(run)
    assert sorted(processes) == [0, 1]
    pid = processes[victim].pid
    processes[victim].kill()
    assert gone([*processes.values(), psutil.Process(run.pid)])
    _, err = run.communicate()
    assert run.returncode == 1
    assert f"(exitcode: -9) local_rank: {victim} (pid: {pid})" in err
    assert f"Signal 9 (SIGKILL) received by PID {pid}" in err
    assert own_lines(err).count(f"qwenlab: {LOST}") <= 1
    assert "Traceback" not in err.partition("torch/distributed/run.py")[0].partition("Traceback")[2]
    finished(folder)
    check_end(folder, whole)


def test_ctrl_c_ends_the_step_and_saves(whole, tmp_path):
    folder = tmp_path / "run"
    run = torchrun(folder)
    wait_for_steps(run, folder, 2)
    run.send_signal(signal.SIGINT)
    _, err = run.communicate()
    assert run.returncode != 0
    done = len(read_metrics(folder))
    assert 2 <= done < STEPS and last_checkpoint(folder).name == f"step-{done:06}"
    assert sum("the same settings resume from there" in line for line in own_lines(err)) == 1
    finished(folder)
    check_end(folder, whole)


@pytest.mark.parametrize(
    "changes, message",
    [
        (("--data", "tiny-tests"), "no problems 'tiny-tests'"),
        (("--steps", "x"), "'--steps'"),
        (("--prompts-per-step", "1"), "prompts_per_step is 1, expected at least one group"),
        (("--seed", "3"), "holds another run (seed is 0 there, 3 now)"),
    ],
)
def test_bad_input_is_one_line_said_once(whole, changes, message):
    before = {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}
    run = torchrun(whole, *changes)
    out, err = run.communicate()
    assert run.returncode == 1 and not out  # torchrun's own; its report has that of the command
    assert "exitcode  : 2" in err and "exitcode  : 1 " not in err
    lines = own_lines(err)
    assert sum(message in line for line in lines) == 1 and len(lines) <= 2
    assert before == {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}


def test_other_commands_are_refused(tmp_path):
    run = torchrun(tmp_path / "run", "--data", "tiny-test", command="evaluate")
    _, err = run.communicate()
    expected = "qwenlab: evaluate runs in one process; torchrun is for grpo and distill"
    assert own_lines(err) == [expected] and not (tmp_path / "run").exists()
