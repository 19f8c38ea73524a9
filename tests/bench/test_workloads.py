"""`compare_workloads` and `qwenlab table`: the same work both ways, published rows beside ours, one
line for errors."""

import json
import sys
from subprocess import CompletedProcess

import pytest
from forks import Forked

from qwenlab.bench import compare_workloads, workloads
from qwenlab.bench.timing import Spread
from qwenlab.bench.workloads import PUBLISHED, Comparison, Run, report, work
from qwenlab.cli.main import main

COMMON = {
    "model": "tiny",
    "problems": 8,
    "data": "tiny-test",
    "cap": 24,
    "dtype": None,
    "device": None,
}


@pytest.mark.parametrize("task", PUBLISHED)
def test_both_ways_do_the_same_work(task):
    single, batched = (work(task=task, batch=batch, **COMMON) for batch in (1, 4))
    assert single["tokens"] == batched["tokens"] > 8
    for told in (single, batched):
        assert 0 < told["seconds"] and 2**26 < told["loaded"] <= told["memory"] < 2**33
        assert told["dtype"] == "float32" and "thread" in told["machine"]


def made(seconds):
    """A comparison with these seconds, two a task, and a gigabyte of memory a second."""
    runs = []
    for (task, published), pair in zip(PUBLISHED.items(), seconds, strict=True):
        for batch, took in zip((1, published.batch), pair, strict=True):
            runs.append(Run(task, batch, Spread(took, took, took), 100, int(took * 10**9), 10**9))
    return Comparison("tiny", runs, "a machine, 2 threads", "2.13.0", "float32", 128, 256, 1)


def test_the_table_has_ours_beside_the_published_rows():
    table = str(made([(90.0, 9.0), (20.0, 10.0), (30.0, 7.5), (8.0, 8.0)])).splitlines()
    rows = [line.split() for line in table[table.index("") + 2 :]]
    assert len(rows) == 8
    assert (
        rows[1] == "evaluation batched 64 9.00 9.0 (9.0–9.0) 10.0x 960 5.6x 6504 1.6x 23.4".split()
    )
    assert (
        rows[2][:4] == ["self-consistency", "one", "by", "one"]
        and rows[2][-5:] == "15120 1.0x 20448 1.0x 1.8".split()
    )
    assert rows[5] == "grpo batched 4 7.50 7.5 (7.5–7.5) 4.0x 1140 3.6x 1386 2.8x 44.9".split()
    assert (
        rows[7] == "distillation batched 4 8.00 8.0 (8.0–8.0) 1.0x 546 1.2x 1692 1.2x 8.3".split()
    )


def report_of(asked):
    sys.argv = ["-c", asked]
    report()


@pytest.fixture
def forked(monkeypatch, tmp_path):
    """Runs begin in forks, which need no imports."""

    def run(command, env, **_):
        out, err = tmp_path / "out", tmp_path / "err"
        process = Forked(report_of, command[-1], folder=tmp_path / "run", streams=(None, out, err))
        status = process.end()
        return CompletedProcess(
            command, status, out.read_text(encoding="utf-8"), err.read_text(encoding="utf-8")
        )

    monkeypatch.setattr(workloads.subprocess, "run", run)


def run(capsys, *options):
    with pytest.raises(SystemExit) as end:
        main(["table", *options])
    return end.value.code, *capsys.readouterr()


def test_the_command_prints_a_table_and_a_line_of_json(capsys):
    options = [
        "--tasks",
        "evaluation",
        "--problems",
        "4",
        "--max-new-tokens",
        "8",
        "--batch-size",
        "2",
        "--threads",
        "1",
    ]
    status, out, _ = run(capsys, "--model", "tiny", *options)
    *table, last = out.splitlines()
    found = json.loads(last)
    assert (
        status == 0
        and [r["batch"] for r in found["runs"]] == [1, 2]
        and found["machine"].endswith(", 1 thread")
    )
    assert found["runs"][0]["tokens"] == found["runs"][1]["tokens"]
    assert table[0].startswith("tiny: ") and table[-1].split()[:3] == ["evaluation", "batched", "2"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--tasks", "sleep"],
            "tasks has ['sleep'], expected some of evaluation, self-consistency, grpo, distillation",
        ),
        (["--problems", "3"], "problems is 3, expected a whole number of at least 4"),
        (["--repeats", "0"], "repeats is 0, expected a whole number of at least 1"),
        (
            ["--data", "x.csv", "--tasks", "evaluation"],
            "evaluation at batch 1: no problems 'x.csv': expected tiny-test",
        ),
    ],
)
def test_wrong_options_are_one_line(capsys, options, said, forked):
    status, out, err = run(capsys, "--model", "tiny", *options)
    assert status == 2 and out == "" and f"qwenlab: {said}" in err.splitlines()[-1]


def test_a_model_that_is_not_there_is_one_line(forked):
    with pytest.raises(ValueError, match="evaluation at batch 1: no checkpoint 'nope'"):
        compare_workloads("nope", tasks=["evaluation"])
