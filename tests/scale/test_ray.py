"""The commands with actors of Ray: the records of one process, whoever is killed."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from helpers import count, gone, hear_ctrl_c

from qwenlab.evaluation import evaluate, load_problems
from qwenlab.loading import load_with_tokenizer

pytestmark = pytest.mark.skipif(
    os.environ.get("QWENLAB_SCALE") != "1" or find_spec("ray") is None,
    reason="starts Ray many times (make test-scale)",
)
PROBLEMS = 160
COMMAND = "evaluate --data tiny-test --samples 2 --temperature 1 --seed 5 --max-new-tokens 60"
EXPECTED = {"samples": 2, "temperature": 1.0, "seed": 5, "max_new_tokens": 60}


@pytest.fixture(scope="module")
def expected():
    model, tokenizer = load_with_tokenizer("tiny")
    problems = load_problems("tiny-test", PROBLEMS)
    return plain(evaluate(model, tokenizer, problems, **EXPECTED).records)


def plain(records: list[dict]) -> list[dict]:
    return [{name: record[name] for name in record if name != "seconds"} for record in records]


def start(folder: Path, *options: str) -> subprocess.Popen:
    limit = ("--limit", str(PROBLEMS), "--output", str(folder), *options)
    return subprocess.Popen(
        [sys.executable, "-m", "qwenlab", *COMMAND.split(), *limit],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        preexec_fn=hear_ctrl_c,
    )


def finish(run: subprocess.Popen) -> None:
    _, err = run.communicate()
    assert run.returncode == 0, err
    assert "Traceback" not in err


def records_in(folder: Path) -> list[dict]:
    lines = (folder / "records.jsonl").read_text(encoding="utf-8").splitlines()
    return sorted(map(json.loads, lines), key=lambda r: (r["number"], r["sample"]))


def wait_for_records(run: subprocess.Popen, folder: Path) -> None:
    path = folder / "records.jsonl"
    while not path.exists() or not path.read_bytes().count(b"\n"):
        assert run.poll() is None, run.communicate()
        time.sleep(0.01)


def processes_of(run: subprocess.Popen) -> list[psutil.Process]:
    return psutil.Process(run.pid).children(recursive=True)


def actors_of(run: subprocess.Popen) -> list[psutil.Process]:
    """Ray writes into a process's title what it is."""
    found = []
    for process in processes_of(run):
        if process.cmdline() and process.cmdline()[0].startswith("ray::MapWorker"):
            found.append(process)
    return found


def test_the_run_is_that_of_one_process(expected, tmp_path):
    """Begun in one process, extended by two actors, and complete for a third."""
    folder = tmp_path / "run"
    finish(start(folder, "--limit", "20"))
    finish(start(folder, "--ray", "2"))
    assert plain(records_in(folder)) == expected
    before = (folder / "records.jsonl").read_bytes(), (folder / "run.json").read_bytes()
    finish(start(folder))
    assert before == ((folder / "records.jsonl").read_bytes(), (folder / "run.json").read_bytes())


@pytest.mark.parametrize("case", range(count(2, 10)))
def test_an_actor_killed_at_any_moment(expected, tmp_path, case):
    rng = random.Random(case)
    run = start(tmp_path / "run", "--ray", "2")
    wait_for_records(run, tmp_path / "run")
    time.sleep(rng.uniform(0, 0.5))
    victim = rng.choice(actors_of(run))
    victim.kill()
    finish(run)
    assert plain(records_in(tmp_path / "run")) == expected


@pytest.mark.parametrize("case", range(count(2, 10)))
def test_the_command_stopped_at_any_moment(expected, tmp_path, case):
    """By Ctrl-C or a kill: all of Ray's processes end, and the same command goes on."""
    rng = random.Random(case)
    folder = tmp_path / "run"
    run = start(folder, "--ray", "2")
    wait_for_records(run, folder)
    time.sleep(rng.uniform(0, 0.5))
    others = processes_of(run)
    assert len(actors_of(run)) == 2
    run.send_signal(signal.SIGINT if case % 2 == 0 else signal.SIGKILL)
    _, err = run.communicate()
    if case % 2 == 0:
        assert run.returncode == 130 and "run the same command to resume" in err
    assert gone(others)
    assert 0 < len(records_in(folder)) < len(expected)
    finish(start(folder, "--ray", "2"))
    assert plain(records_in(folder)) == expected


def test_bad_input_is_one_line(tmp_path):
    for options, message in (
        (("--model", "./none"), "no checkpoint './none'"),
        (("--dtype", "float8"), "dtype is 'float8', expected one of"),
    ):
        run = start(tmp_path / "run", "--ray", "2", *options)
        _, err = run.communicate()
        lines = [line for line in err.splitlines() if line.startswith("qwenlab:")]
        assert run.returncode == 2 and len(lines) == 1 and message in lines[0], err
        assert not (tmp_path / "run").exists()
