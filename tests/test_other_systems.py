"""What Linux has and Windows lacks is used where it is there; without it everything works too."""

import ast
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from helpers import gone

import qwenlab
from qwenlab.cli.main import app, main

SOURCE = Path(qwenlab.__file__).parents[1]
WITHOUT = Path(__file__).with_name("without")  # its sitecustomize is read by every process
PROGRAM = r"""
import json, os
import psutil, torch
import qwenlab
from qwenlab.bench.workloads import peak_memory
from qwenlab.evaluation import evaluate, grade, load_problems
from qwenlab.training import distill, grpo
from qwenlab.run_folder import RunFolder, RunFolderError
from qwenlab.evaluation import symbolic
from qwenlab.evaluation.symbolic import WORKER
from qwenlab.training.traces import Trace
from qwenlab.teach import check

torch.set_num_threads(1)

def allow_seconds(seconds):  # for one comparison: none is late because the machine is busy
    symbolic.LIMIT = seconds
    symbolic.Budget.__init__.__defaults__ = (seconds,)

told = {}
model, tokenizer = qwenlab.load("tiny", "float32", "cpu")
problems = load_problems("tiny-train", 8)

options = {"max_new_tokens": 60, "folder": "evaluated"}
records = evaluate(model, tokenizer, problems[:3], **options).records
again = evaluate(model, tokenizer, problems[:3], **options)
told["records"] = len(records)
told["goes on"] = again.records == records and again.sampled_tokens == 0

sizes = {"num_rollouts": 2, "prompts_per_step": 2, "max_new_tokens": 8}
told["grpo"] = len(grpo(model, tokenizer, problems, steps=2, lr=1e-5, folder="trained", **sizes))
traces = [Trace(problem, f"\\boxed{{{problem.answer}}}") for problem in problems]
sizes = {"batch_size": 2, "held_out": 4}
told["distill"] = len(distill(model, tokenizer, traces, folder="distilled", **sizes).metrics)
answers = (lambda sequences, pad_id: qwenlab.left_pad(sequences, pad_id), len)
told["check"] = [check("left-pad", answer).ok for answer in answers]
told["memory"] = peak_memory(model.device)

allow_seconds(60.0)
told["grades"] = [grade("x+1", "1+x"), grade("x+1", "2+x")]
first = psutil.Process(WORKER.process.pid)
told["children"] = len(first.children())
allow_seconds(1.0)
told["endless"] = grade("2^{2^{2^{2^{2^{2}}}}}", "2")
told["ended"] = not first.is_running()
allow_seconds(60.0)
told["grades after"] = [grade("x+1", "1+x"), grade("x+1", "2+x")]

with RunFolder("one", {}):
    try:
        RunFolder("one", {})
    except RunFolderError as problem:
        told["second"] = str(problem)
RunFolder("one", {}).close()

told["orphan"] = WORKER.process.pid
WORKER.process.stdin.write(json.dumps([1.0, "2^{2^{2^{2^{2^{2}}}}}", "2"]).encode() + b"\n")
print(json.dumps(told), flush=True)
os._exit(0)  # as if it were killed: nobody is left to end the worker
"""


def without_encoding(path: Path) -> list[str]:
    """The calls in a file that read or write text in the system's own encoding, or may."""
    found = []
    for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        function = getattr(call, "func", None)
        method = getattr(function, "attr", getattr(function, "id", None))
        if method not in ("read_text", "write_text", "open", "run", "Popen"):
            continue
        given = {keyword.arg for keyword in call.keywords}
        first, second, *_ = [*map(ast.unparse, call.args), "'r'", "'r'"]
        mode = second if isinstance(function, ast.Name) else first
        own_encoding = {
            "read_text": not call.args,
            "write_text": len(call.args) == 1,
            "open": mode.strip("'") in ("r", "w", "a", "x", "r+", "w+", "a+"),
            "run": "text" in given,
            "Popen": "text" in given,
        }
        if own_encoding[method] and not {"encoding", None} & given:
            found.append(f"{path.name}:{call.lineno}: {ast.unparse(function)}")
    return found


def test_text_is_utf_8_on_every_system():
    """Windows' own encoding lacks most letters."""
    root = Path(__file__).parents[1]
    folders = (root / name for name in ("src", "scripts", "tests"))
    files = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    assert [call for path in files for call in without_encoding(path)] == []


@pytest.mark.parametrize(
    "text",
    [
        "open(name)",
        "open(name, 'w')",
        "path.open('a')",
        "path.open()",
        "path.read_text()",
        "path.write_text('x')",
        "subprocess.run(command, text=True)",
    ],
)
def test_what_would_differ_is_found(text, tmp_path):
    (tmp_path / "program.py").write_text(text, encoding="utf-8")
    assert len(without_encoding(tmp_path / "program.py")) == 1


@pytest.fixture(scope="module")
def told(tmp_path_factory) -> dict:
    """What the program tells in a process without all that Windows lacks."""
    path = os.pathsep.join([str(WITHOUT), str(SOURCE)])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path_factory.mktemp("runs"),
        env=os.environ | {"PYTHONPATH": path, "QWENLAB_WITHOUT": "posix"},
        capture_output=True,
        text=True,
        timeout=300,
        encoding="utf-8",
    )
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_evaluation_and_training_need_neither_fork_nor_unix_modules(told):
    assert told["records"] == 3 and told["goes on"]
    assert told["grpo"] == told["distill"] == 2


def test_answers_to_exercises_are_checked(told):
    assert told["check"] == [True, False]


def test_memory_is_measured(told):
    assert 2**20 < told["memory"] < 2**50


def test_grading_needs_neither_fork_nor_signals(told):
    assert told["grades"] == told["grades after"] == [True, False]
    assert told["children"] == 0


def test_a_comparison_that_does_not_end_is_ended_with_its_process(told):
    assert told["endless"] is False
    assert told["ended"]


def test_a_comparison_that_does_not_end_is_ended_when_nobody_is_left_to_do_it(told):
    try:
        orphan = psutil.Process(told["orphan"])
    except psutil.NoSuchProcess:
        return
    try:
        assert gone([orphan])
    finally:
        if orphan.is_running():
            orphan.kill()  # it would take all memory


def test_a_run_s_folder_belongs_to_one_at_a_time(told):
    assert "another process is using it" in told["second"]


@pytest.mark.parametrize(
    "command", [[], *([each.callback.__name__] for each in app.registered_commands)]
)
def test_a_terminal_with_windows_own_letters_shows_every_help(command, monkeypatch):
    said = io.BytesIO()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.TextIOWrapper(said, "cp1252", write_through=True))
    with pytest.raises(SystemExit) as end:
        main([*command, "--help"])
    assert end.value.code == 0 and b"Usage: qwenlab" in said.getvalue()
