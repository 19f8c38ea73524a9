"""`qwenlab evaluate` and `qwenlab vote`: tables for people, records in a folder, one line for
whatever is wrong."""

import json
import os

import pytest
from forks import Forked, run_command
from test_cli import refused, write

from qwenlab.evaluation import load_problems

TINY = ("--model", "tiny", "--data", "tiny-test", "--max-new-tokens", 40)


@pytest.fixture
def data(tmp_path):
    """Six problems in a file, with subjects and levels."""
    records = [
        {
            "problem": p.problem,
            "answer": p.answer,
            "subject": "AB"[i % 2],
            "level": i // 2,
            "unique_id": f"p{i}",
        }
        for i, p in enumerate(load_problems("tiny-test", 6))
    ]
    return write(
        str(tmp_path / "six.jsonl"), "".join(json.dumps(record) + "\n" for record in records)
    )


@pytest.fixture(params=["evaluate", "vote"])
def command(request):
    return request.param


def rows(folder):
    with open(f"{folder}/records.jsonl", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def test_help_names_every_option(run, command):
    code, out, _ = run(command, "--help")
    assert code == 0
    for option in (
        "model data batch-size strategy samples max-new-tokens temperature top-k top-p seed".split()
    ):
        assert f"--{option} " in out
    for option in "no-thinking plain subject level limit output dtype device".split():
        assert f"--{option} " in out
    default = {
        "evaluate": ["default: 1]", "default: 0.0]"],
        "vote": ["default: 8]", "default: 0.9]"],
    }[command]
    assert all(text in out for text in default)


def test_evaluate_prints_its_table_and_goes_on(run):
    code, out, err = run("evaluate", *TINY, "--limit", 9, "--output", "run")
    assert code == 0 and err == "qwenlab: tiny, float32 on cpu, 9 problems, 1 thread\n"
    right = sum(row["verdict"] for row in rows("run"))
    assert out.startswith(f"accuracy    {right / 9:.3f}, 95 % interval ") and "\nsubject " in out
    assert json.loads(open("run/summary.json", encoding="utf-8").read())["accuracy"] == right / 9
    content = open("run/records.jsonl", encoding="utf-8").read()
    with open("run/records.jsonl", "w", encoding="utf-8") as file:
        file.write(content[: len(content) // 2])
    code, again, err = run(
        "evaluate", *TINY, "--limit", 9, "--output", "run", "--batch-size", "auto"
    )
    assert "\nqwenlab: batch size 9: up to " in err
    assert code == 0 and again.splitlines()[0] == out.splitlines()[0] and "batch size 9\n" in again
    assert sorted(row["number"] for row in rows("run")) == list(range(9))


def test_vote_prints_its_table(run):
    code, out, _ = run(
        "vote", *TINY, "--limit", 3, "--samples", 3, "--output", "run", "--strategy", "static"
    )
    assert code == 0 and "accuracy of the vote" in out and "9 to 3 problems" in out
    votes = json.loads(open("run/votes.json", encoding="utf-8").read())
    assert len(votes["votes"]) == 3 and len(rows("run")) == 9
    settings = json.loads(open("run/run.json", encoding="utf-8").read())
    assert (settings["samples"], settings["temperature"], settings["top_p"]) == (3, 0.9, 0.9)


def test_options_reach_the_run(run, command):
    options = [
        "--temperature",
        1,
        "--top-k",
        7,
        "--top-p",
        0.8,
        "--seed",
        4,
        "--samples",
        2,
        "--no-thinking",
    ]
    code, _, _ = run(command, *TINY, "--limit", 2, "--output", "run", *options, "--batch-size", 3)
    settings = json.loads(open("run/run.json", encoding="utf-8").read())
    expected = {
        "temperature": 1,
        "top_k": 7,
        "top_p": 0.8,
        "seed": 4,
        "samples": 2,
        "max_new_tokens": 40,
    }
    assert code == 0 and expected.items() <= settings.items()
    assert settings["thinking"] is False and settings["plain"] is False
    assert "</think>" in rows("run")[0]["prompt"]
    code, _, _ = run(
        command, *TINY, "--limit", 1, "--output", "plain", "--plain", "--dtype", "bfloat16"
    )
    assert code == 0 and rows("plain")[0]["prompt"].startswith("Problem: ")
    assert json.loads(open("plain/run.json", encoding="utf-8").read())["dtype"] == "torch.bfloat16"


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ([], ["p0", "p1", "p2", "p3", "p4", "p5"]),
        (["--subject", "B"], ["p1", "p3", "p5"]),
        (["--level", "1"], ["p2", "p3"]),
        (["--subject", "A", "--level", "2"], ["p4"]),
        (["--subject", "B", "--limit", "2"], ["p1", "p3"]),
        (["--limit", "100"], ["p0", "p1", "p2", "p3", "p4", "p5"]),
    ],
)
def test_filters(run, data, options, ids):
    code, _, _ = run(
        "evaluate",
        "--model",
        "tiny",
        "--data",
        data,
        "--max-new-tokens",
        2,
        "--output",
        "o",
        *options,
    )
    assert code == 0 and sorted(row["id"] for row in rows("o")) == ids


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data", "none.jsonl"], "none.jsonl: "),
        (["--data", "nothing"], "no problems 'nothing'"),
        (["--data", "empty.jsonl"], "empty.jsonl: no problem in it"),
        (["--data", "bad.jsonl"], "bad.jsonl line 2: "),
        (["--data", "lacks.jsonl"], "lacks.jsonl line 1: answer is missing"),
        (
            ["--subject", "Algebra"],
            "tiny-test: no problem has subject 'Algebra', expected product, ",
        ),
        (["--level", "3"], "tiny-test: no problem has level '3', expected none"),
        (["--limit", "0"], "limit"),
        (["--batch-size", "many"], "batch_size is 'many', expected a whole number of at least 1"),
        (["--batch-size", "0"], "batch_size is 0, expected a whole number of at least 1"),
        (["--batch-size", "-4"], "batch_size is '-4', expected"),
        (["--strategy", "fast"], "strategy is 'fast', expected one of"),
        (["--samples", "0"], "samples is 0"),
        (["--max-new-tokens", "-1"], "max_new_tokens of prompt 0 is -1"),
        (["--temperature", "-1"], "temperature of prompt 0 is -1.0"),
        (["--top-p", "1.5"], "top_p of prompt 0 is 1.5"),
        (["--top-k", "-1"], "top_k of prompt 0 is -1"),
        (["--seed", "-1"], "seed is -1"),
        (["--model", "none"], "no checkpoint 'none'"),
        (["--dtype", "int8"], "dtype is 'int8'"),
        (["--device", "toaster"], "device 'toaster' can't be used"),
        (["--output", "mine"], "mine: holds files but no run"),
        (["--output", "mine/thesis.tex"], "thesis.tex: a file, expected a folder"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(run, command, options, message, tmp_path, request):
    write("empty.jsonl", "\n")
    write("bad.jsonl", '{"problem": "1+1?", "answer": "2"}\n{"problem": \n')
    write("lacks.jsonl", '{"problem": "1+1?"}\n')
    (tmp_path / "mine").mkdir()
    write("mine/thesis.tex", "x")
    assert message in refused(run, command, "--limit", "2", *map(str, TINY), *options)
    assert not (tmp_path / "run").exists() and [p.name for p in (tmp_path / "mine").iterdir()] == [
        "thesis.tex"
    ]


def test_another_run_s_folder_is_refused(run, command):
    assert run(command, *TINY, "--limit", 2, "--output", "run")[0] == 0
    before = open("run/records.jsonl", encoding="utf-8").read()
    told = refused(run, command, *TINY, "--limit", 2, "--output", "run", "--seed", 1)
    assert told.startswith("run: holds another run (seed is 0 there, 1 now)")
    assert open("run/records.jsonl", encoding="utf-8").read() == before


def test_more_problems_or_samples_extend_a_run(run, command):
    short = [command, *TINY, "--temperature", 1, "--output", "run"]
    long = [command, *TINY, "--temperature", 1, "--limit", 5, "--samples", 3]
    assert run(*short, "--limit", 3, "--samples", 2)[0] == 0
    before = open("run/records.jsonl", encoding="utf-8").read()
    fewer = refused(run, *short, "--limit", 2, "--samples", 2)
    assert fewer.startswith("run: holds another run (3 problems there, 2 now)")
    code, out, err = run(*long, "--output", "run")
    grown = "3 problems there, 5 now; samples is 2 there, 3 now"
    assert code == 0 and f"qwenlab: run: {grown}: the run is extended\n" in err
    assert "qwenlab: run: 6 answers are there, 9 are left\n" in err
    assert "generation  of 9 new answers: " in out
    assert open("run/records.jsonl", encoding="utf-8").read().startswith(before)
    assert run(*long, "--output", "at once")[0] == 0
    for row in (together := rows("run")) + (at_once := rows("at once")):
        del row["seconds"]
    ordered = {"key": lambda row: (row["number"], row["sample"])}
    assert sorted(together, **ordered) == sorted(at_once, **ordered)
    _, out, err = run(*long, "--output", "run")
    assert "generation  none was needed: all answers were there" in out
    assert "extended" not in err


@pytest.mark.parametrize("output", [[], ["--output", "run"]])
def test_ctrl_c_says_how_to_go_on(tmp_path, output):
    arguments = ["evaluate", *TINY, "--batch-size", "4", *output]
    out, err, records = tmp_path / "out", tmp_path / "err", tmp_path / "run" / "records.jsonl"
    run = Forked(run_command, *arguments, folder=tmp_path, streams=(None, out, err), cwd=tmp_path)
    run.wait_until(lambda: "1000 problems" in err.read_text(encoding="utf-8"))
    run.wait_until(lambda: records.exists() or not output)
    run.interrupt()
    assert run.end() == 130 and out.read_text(encoding="utf-8") == ""
    how = "run: finished answers are saved; run the same command to resume"
    if not output:
        how = "nothing was saved: that needs --output"
    assert (
        err.read_text(encoding="utf-8").partition("\n")[2]
        == f"qwenlab: {how}\nqwenlab: interrupted\n"
    )
    assert os.path.exists(tmp_path / "run" / "records.jsonl") == bool(output)
