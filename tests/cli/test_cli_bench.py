"""`qwenlab bench`: a table for people, then one line of JSON for machines, and one line for
whatever is wrong."""

import json

import pytest
import torch

from qwenlab.cli.main import main
from qwenlab.loading import BFLOAT16_INSTRUCTIONS

QUICK = ["--batch", "1,3", "--prompt-tokens", "4", "--new-tokens", "3", "--repeats", "2"]


@pytest.fixture
def run(capsys):
    """Runs `qwenlab bench` with these options; its status, stdout and stderr."""

    def run(*options):
        with pytest.raises(SystemExit) as end:
            main(["bench", *options])
        return end.value.code, *capsys.readouterr()

    return run


def test_a_table_and_then_one_line_of_json(run):
    status, out, err = run("--model", "tiny", *QUICK)
    assert status == 0
    *table, last = out.splitlines()
    found = json.loads(last)
    assert (
        found["model"] == "tiny" and found["dtype"] == "float32" and found["parameters"] == 545_856
    )
    assert (found["prompt_tokens"], found["new_tokens"], found["repeats"]) == (4, 3, 2)
    assert [point["batch_size"] for point in found["points"]] == [1, 3]
    assert all(point["step_s"]["low"] > 0 for point in found["points"])
    assert found["machine"] in table[0] and found["torch_version"] in table[0]
    assert [line.split()[0] for line in table[-2:]] == ["1", "3"] and "tokens/s" in table[-3]
    assert "6/6" in err and "{" not in err  # the bar: two sizes, one warm-up and two repeats each


def test_dtype_and_threads_are_taken(run):
    status, out, _ = run("--model", "tiny", *QUICK, "--dtype", "bfloat16", "--threads", "1")
    found = json.loads(out.splitlines()[-1])
    assert status == 0 and found["dtype"] == "bfloat16" and found["machine"].endswith(", 1 thread")


@pytest.mark.parametrize("instructions", [True, False])
def test_an_automatic_dtype_is_said_in_one_line_with_the_reason(run, monkeypatch, instructions):
    for test in BFLOAT16_INSTRUCTIONS.values():
        monkeypatch.setattr(torch.cpu, test, lambda: instructions, raising=False)
    command = ("--model", "tiny", *QUICK, "--dtype", "auto", "--device", "cpu")
    status, out, err = run(*command)
    expected = "float32, because this CPU has neither avx512_bf16 nor AMX"
    if instructions:
        expected = "bfloat16, because this CPU has avx512_bf16"
    assert status == 0 and f"qwenlab: --dtype auto: {expected}" in err.splitlines()
    assert json.loads(out.splitlines()[-1])["dtype"] == expected.partition(",")[0]


def test_several_dtypes_are_measured_one_after_the_other(run):
    status, out, _ = run("--model", "tiny", *QUICK, "--dtype", "float32, bfloat16")
    lines = out.splitlines()
    found = [json.loads(line) for line in lines if line.startswith("{")]
    assert status == 0 and [sweep["dtype"] for sweep in found] == ["float32", "bfloat16"]
    assert lines[len(lines) // 2 - 1].startswith("{") and lines[-1].startswith(
        "{"
    )  # a table, its line, the next
    assert [line.split()[3] for line in lines if " parameters in " in line] == [
        "float32,",
        "bfloat16,",
    ]


def test_help_names_every_option(run):
    status, out, _ = run("--help")
    assert status == 0
    for name in (
        "model",
        "batch",
        "prompt-tokens",
        "new-tokens",
        "repeats",
        "threads",
        "dtype",
        "device",
    ):
        assert f"--{name}" in out


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (
            ["--batch", "1,two"],
            "--batch is '1,two', expected whole numbers separated by commas: 1,2,4,8",
        ),
        (["--batch", ""], "--batch is '', expected whole numbers separated by commas: 1,2,4,8"),
        (["--batch", "0"], "a batch size is 0, expected a whole number of at least 1"),
        (["--batch", "2,2"], "batch_sizes is [2, 2], expected at least one size and none twice"),
        (["--prompt-tokens", "0"], "prompt_tokens is 0, expected a whole number of at least 1"),
        (["--new-tokens", "1"], "new_tokens is 1, expected a whole number of at least 2"),
        (["--new-tokens", "99999"], "new ones: expected at most"),
        (["--repeats", "0"], "repeats is 0, expected a whole number of at least 1"),
        (["--threads", "0"], "--threads is 0, expected a whole number of at least 1"),
        (["--dtype", "int8"], "dtype is 'int8', expected one of float32, bfloat16, float16, auto"),
        (
            ["--dtype", "float32,int8"],
            "dtype is 'int8', expected one of float32, bfloat16, float16, auto",
        ),
        (["--device", "abacus"], "device 'abacus' can't be used"),
        (["--model", "./nowhere"], "no checkpoint './nowhere'"),
        (["--repeats", "often"], "--repeats"),
        (["a-file"], "unexpected extra argument"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(run, options, complaint):
    status, out, err = run("--model", "tiny", *QUICK, *options)
    assert status == 2 and out == ""
    (line,) = [line for line in err.splitlines() if line.strip()]
    assert line.startswith("qwenlab: ") and complaint in line


def test_without_a_model_it_is_tiny(run):
    status, out, err = run("--help")
    assert status == 0 and "[default: tiny]" in out and err == ""
