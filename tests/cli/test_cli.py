"""The command line: answers, the comparison with answers alone, and one line for whatever is
wrong."""

import json
import os
import signal
import stat
import subprocess
import sys
import time

import pytest
import torch
from forks import Forked, run_command
from helpers import count, hear_ctrl_c
from small_checkpoint import write_multimodal_checkpoint, write_small_checkpoint

import qwenlab
from qwenlab.bench import alone
from qwenlab.run_folder import RunFolder
from qwenlab.text import prompt_file


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(write_small_checkpoint(tmp_path_factory.mktemp("checkpoint")))


def refused(run, *arguments, status=2) -> str:
    """The one line of complaint of a command that is expected to fail."""
    code, out, err = run(*arguments)
    assert code == status and out == ""
    assert err.startswith("qwenlab: ") and "Traceback" not in err
    return err.splitlines()[-1].removeprefix("qwenlab: ")


def write(name, text) -> str:
    with open(name, "w", encoding="utf-8") as file:
        file.write(text)
    return name


def test_version_and_help(run):
    assert run("--version") == (0, f"qwenlab {qwenlab.__version__}\n", "")
    code, out, _ = run("--help")
    assert code == 0 and "generate" in out
    code, out, _ = run("generate", "--help")
    assert code == 0
    for option in (
        "--model",
        "--max-new-tokens",
        "--temperature",
        "--top-k",
        "--top-p",
        "--seed",
        "--strategy",
    ):
        assert option in out
    for option in (
        "--slots",
        "--dtype",
        "--device",
        "--no-thinking",
        "--raw",
        "--output",
        "--check-alone",
        "--invariant",
    ):
        assert option in out


def test_a_text_file_is_answered_line_by_line(run, model):
    write("p.txt", "\ufeffhello\r\n\r\nwhat is the é?\n")
    code, out, err = run("generate", "--model", model, "p.txt", "--max-new-tokens", 5)
    assert code == 0
    assert "p.txt: skipped 1 blank line" in err and "2 prompts" in err and "tokens/s" in err
    assert (
        "[line 1] " in out
        and "> hello\n" in out
        and "[line 3] " in out
        and "> what is the é?\n" in out
    )


def test_a_prompt_whose_logits_are_nan_is_named_and_the_others_are_answered(run, monkeypatch):
    (seven,) = qwenlab.load("tiny")[1].encode("7")
    embed = torch.nn.Embedding.forward
    monkeypatch.setattr(
        torch.nn.Embedding,
        "forward",
        lambda self, ids: embed(self, ids).masked_fill(ids[..., None] == seven, torch.nan),
    )
    write("p.txt", "2+2?\n7+2?\n")
    code, _, err = run("generate", "--model", "tiny", "p.txt", "--output", "a.jsonl")
    assert code == 0 and "qwenlab: request 1: its logits are NaN after 0 new tokens\n" in err
    with open("a.jsonl", encoding="utf-8") as file:
        first, second = map(json.loads, file)
    assert (
        first["finish_reason"] == "stop"
        and "\\boxed{4}" in first["answer"]
        and "error" not in first
    )
    assert (second["finish_reason"], second["answer"]) == ("error", "")
    assert second["error"] == "request 1: its logits are NaN after 0 new tokens"


def test_what_a_checkpoint_holds_beside_the_text_is_named(run, tmp_path):
    (tmp_path / "eyes").mkdir()
    write_multimodal_checkpoint(tmp_path / "eyes")
    write("p.txt", "hello\n")
    for command in (
        ["generate", "p.txt", "--max-new-tokens", 2],
        ["bench", "--batch", 1, "--repeats", 1],
    ):
        code, _, err = run(*command, "--model", "./eyes")
        assert code == 0 and "./eyes: ignored model.visual (2 tensors), mtp (2 tensors)\n" in err


def test_answers_equal_those_of_the_library(run, model):
    write(
        "p.jsonl",
        '{"prompt": "hello", "id": 7}\n\n{"messages": [{"role": "user", "content": "two\\u2028lines"}]}\n',
    )
    code, out, _ = run(
        "generate", "--model", model, "p.jsonl", "--max-new-tokens", 6, "--output", "a.jsonl"
    )
    assert (code, out) == (0, "")
    network, tokenizer = qwenlab.load(model)
    ids = [
        tokenizer.chat([{"role": "user", "content": text}]) for text in ("hello", "two\u2028lines")
    ]
    expected = qwenlab.generate(network, ids, max_new_tokens=6)
    with open("a.jsonl", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file.read().split("\n") if line]
    assert [row["token_ids"] for row in rows] == expected.token_ids
    assert [row["answer"] for row in rows] == [
        tokenizer.decode(answer) for answer in expected.token_ids
    ]
    assert [row["line"] for row in rows] == [1, 3]
    assert rows[0]["prompt"] == "hello" and rows[1]["messages"][0]["content"] == "two\u2028lines"
    assert [row["finish_reason"] for row in rows] == [request.finish_reason for request in expected]
    assert [row["prompt_tokens"] for row in rows] == [len(prompt) for prompt in ids]


def test_a_model_without_large_matrices_answers_all_the_same_when_packed(run, tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("2+2?\n3+4?\n", encoding="utf-8")
    command = ["generate", str(prompts), "--max-new-tokens", "4"]
    code, out, _ = run(*command)
    assert (code, out) == run(*command, "--pack")[:2]
    assert "qwenlab: packed: nothing" in run(*command, "--pack")[2]


def test_a_model_that_can_not_be_compiled_answers_all_the_same(run, tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("What is 2 + 3?\n", encoding="utf-8")
    command = ["generate", file, "--model", "tiny-hybrid", "--max-new-tokens", 3]
    code, out, _ = run(*command)
    compiled_code, compiled_out, err = run(*command, "--compile")
    assert (compiled_code, compiled_out) == (code, out)
    assert "qwenlab: not compiled: the model is a hybrid, expected a dense one" in err.splitlines()


def test_options_reach_generation(run, model):
    write("p.txt", "a\nb\nc\n")
    answers = {}
    for name, options in {
        "greedy": [],
        "again": ["--strategy", "static", "--slots", "2"],
        "sampled": ["--temperature", "1", "--seed", "3", "--top-k", "9", "--top-p", "0.9"],
        "sampled again": [
            "--temperature",
            "1",
            "--seed",
            "3",
            "--top-k",
            "9",
            "--top-p",
            "0.9",
            "--slots",
            "1",
        ],
        "raw": ["--raw"],
        "no thinking": ["--no-thinking"],
    }.items():
        code, _, _ = run(
            "generate",
            "--model",
            model,
            "p.txt",
            "--max-new-tokens",
            8,
            "--output",
            "a.jsonl",
            *options,
        )
        assert code == 0
        with open("a.jsonl", encoding="utf-8") as file:
            answers[name] = [json.loads(line) for line in file]
    ids = {name: [row["token_ids"] for row in rows] for name, rows in answers.items()}
    assert ids["greedy"] == ids["again"] and ids["sampled"] == ids["sampled again"] != ids["greedy"]
    lengths = {name: answers[name][0]["prompt_tokens"] for name in answers}
    assert lengths["raw"] == 1 and lengths["no thinking"] > lengths["greedy"]


@pytest.mark.parametrize(
    "options", [[], ["--temperature", "1"], ["--strategy", "static", "--slots", "2"]]
)
def test_check_alone_finds_every_answer_the_same(run, model, options):
    write("p.txt", "a\nhello there\nb c\n")
    arguments = [
        "generate",
        "--model",
        model,
        "p.txt",
        "--max-new-tokens",
        8,
        "--check-alone",
        "--output",
        "a.jsonl",
    ]
    code, out, _ = run(*arguments, *options)
    assert code == 0
    assert out.count("; same; ") == 3 and "completions that differ from those alone: 0 of 3" in out
    assert (
        "in batches: " in out and "one by one: " in out and "largest difference of logits: " in out
    )
    mask = out.partition("(0 pad, 1 real): ")[2].partition("\n")[0]
    with open("a.jsonl", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    assert (
        mask
        == "0" * (rows[1]["prompt_tokens"] - rows[0]["prompt_tokens"])
        + "1" * rows[0]["prompt_tokens"]
    )
    assert all(row["same"] and row["difference"] < 1e-5 and row["logprobs"] < 1e-5 for row in rows)
    assert rows[0]["pads"] > 0 and min(row["pads"] for row in rows) == 0


def test_invariant_completions_have_the_same_bits_alone(run, model):
    write("p.txt", "a\nhello there\nb c\n")
    arguments = ["generate", "--model", model, "p.txt", "--max-new-tokens", 8, "--invariant"]
    code, _, _ = run(*arguments, "--check-alone", "--output", "a.jsonl")
    assert code == 0
    with open("a.jsonl", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    assert [row["logprobs"] for row in rows] == [0, 0, 0]


def test_check_alone_can_fail(run, model, monkeypatch):
    """An answer that differs is shown beside the one alone, with the margin, and status 1."""
    real = qwenlab.generate

    def generate(network, ids, **options):
        result = real(network, ids, **options)
        if options.get("strategy") == "sequential" and options["max_new_tokens"] == 5:
            result[1].token_ids[2] = (result[1].token_ids[2] + 1) % 256
        return result

    monkeypatch.setattr(qwenlab, "generate", generate)
    write("p.txt", "a\nhello there\n")
    code, out, _ = run(
        "generate", "--model", model, "p.txt", "--max-new-tokens", 5, "--check-alone"
    )
    assert code == 1
    assert "; DIFFERENT from new token 2 on (alone, its two best logits there are " in out
    assert out.count("; same; ") == 1 and "completed alone:" in out
    assert "completions that differ from those alone: 1 of 2" in out


def test_comparing_in_small_rectangles_changes_nothing(model, monkeypatch):
    network, tokenizer = qwenlab.load(model)
    prompts = [tokenizer.encode(text) for text in ("a", "hello there", "the end", "é")]
    batch = qwenlab.generate(network, prompts, max_new_tokens=6)
    lone = qwenlab.generate(network, prompts, max_new_tokens=6, strategy="sequential")
    whole = alone.compare_alone(network, prompts, batch, lone)
    monkeypatch.setattr(alone, "LOGITS_BYTES", 1)
    single = alone.compare_alone(network, prompts, batch, lone)
    assert [c.pads for c in whole] == [c.pads for c in single]
    assert all(c.same and c.difference < 1e-5 for c in whole + single)


def test_the_margin_is_that_of_the_lone_row_where_the_answers_part(model):
    network, tokenizer = qwenlab.load(model)
    prompts = [tokenizer.encode(text) for text in ("a", "hello there")]
    batch = qwenlab.generate(network, prompts, max_new_tokens=5, stop=())
    lone = qwenlab.generate(network, prompts, max_new_tokens=5, stop=(), strategy="sequential")
    lone[0].token_ids[3] += 1
    lone[0].logprobs[2] += 0.5
    lone[0].logprobs[3] += 9
    parted, same = alone.compare_alone(network, prompts, batch, lone)
    read = torch.tensor([prompts[0] + batch[0].token_ids[:3]])
    best, second = network(read, last_only=True)[0].topk(2).values.tolist()
    assert (parted.same, parted.parted) == (False, 3) and parted.margin == pytest.approx(
        best - second, abs=1e-5
    )
    assert same.same and same.parted is None and same.margin is None
    assert parted.logprobs == pytest.approx(0.5, abs=1e-5) and same.logprobs < 1e-5


def test_difference_sees_a_leak():
    a, b = torch.tensor([0.5, 3.0]), torch.tensor([0.5, 4.0])
    assert alone.difference(a, b) == 0.25 and alone.difference(b, b) == 0
    assert alone.difference(torch.tensor([0.1]), torch.tensor([0.2])) == pytest.approx(0.1)
    assert alone.difference(torch.tensor([float("nan")]), b[:1]) != 0


@pytest.mark.parametrize(
    "name, content, complaint",
    [
        ("p.txt", "", "p.txt: no prompt in it"),
        ("p.txt", "\n  \n", "p.txt: no prompt in it"),
        ("p.csv", "a", "p.csv: expected a .txt (one prompt a line) or a .jsonl file"),
        ("p.jsonl", '{"prompt": "a"}\n{"prompt": ', "p.jsonl line 2: not JSON ("),
        ("p.jsonl", "[" * 100_000, "p.jsonl line 1: not JSON ("),
        ("p.jsonl", '\n"a"', 'p.jsonl line 2: expected an object with "prompt" or "messages"'),
        (
            "p.jsonl",
            '{"text": "a"}',
            'p.jsonl line 1: expected an object with "prompt" or "messages"',
        ),
        (
            "p.jsonl",
            '{"prompt": "a", "messages": []}',
            'p.jsonl line 1: expected an object with "prompt" or "messages"',
        ),
        (
            "p.jsonl",
            '{"prompt": 5}',
            "p.jsonl line 1: prompt is 5, expected a string that is not empty",
        ),
        (
            "p.jsonl",
            '{"prompt": ""}',
            "p.jsonl line 1: prompt is '', expected a string that is not empty",
        ),
        (
            "p.jsonl",
            '{"messages": []}',
            "p.jsonl line 1: messages is empty, expected at least one message",
        ),
        (
            "p.jsonl",
            '{"messages": [{"role": "user"}]}',
            "p.jsonl line 1: messages[0] has no 'content'",
        ),
    ],
)
def test_a_malformed_file_is_named_with_its_line(run, model, name, content, complaint):
    write(name, content)
    assert refused(run, "generate", "--model", model, name).startswith(complaint)


def test_files_that_cannot_be_read(run, model, tmp_path):
    assert (
        refused(run, "generate", "--model", model, "none.txt")
        == "none.txt: can't be read (No such file or directory)"
    )
    (tmp_path / "folder.txt").mkdir()
    assert (
        refused(run, "generate", "--model", model, "folder.txt")
        == "folder.txt: can't be read (Is a directory)"
    )
    (tmp_path / "latin.txt").write_bytes("good\ncaf\xe9\n".encode("latin-1"))
    assert (
        refused(run, "generate", "--model", model, "latin.txt")
        == "latin.txt line 2: not UTF-8 text (byte 0xe9)"
    )


def test_prompts_that_do_not_fit(run, model):
    write("p.txt", "short\n" + "long " * 100)
    complaint = refused(run, "generate", "--model", model, "p.txt")
    assert complaint.startswith("p.txt line 2: ") and complaint.endswith(
        "expected 1 to 255 in a context of 256"
    )
    write("p.jsonl", '{"messages": [{"role": "user", "content": "a"}]}')
    complaint = refused(run, "generate", "--model", model, "p.jsonl", "--raw")
    assert complaint == "p.jsonl line 1: messages need the chat template, which --raw leaves out"


def test_a_checkpoint_without_a_template_needs_raw(run, tmp_path):
    bare = write_small_checkpoint(tmp_path / "bare", template=None)
    write("p.txt", "a\n")
    assert "no chat template in this checkpoint" in refused(
        run, "generate", "--model", bare, "p.txt"
    )
    assert run("generate", "--model", bare, "p.txt", "--raw", "--max-new-tokens", 2)[0] == 0


@pytest.mark.parametrize(
    "options, complaint",
    [
        (["--temperature", "-1"], "temperature of prompt 0 is -1.0, expected 0 or more"),
        (["--top-p", "1.5"], "top_p of prompt 0 is 1.5, expected 0 to 1"),
        (
            ["--max-new-tokens", "-3"],
            "max_new_tokens of prompt 0 is -3, expected a whole number of at least 0",
        ),
        (["--slots", "0"], "slots is 0, expected a whole number of at least 1"),
        (
            ["--strategy", "magic"],
            "strategy is 'magic', expected one of sequential, static, early-stop, continuous",
        ),
        (["--dtype", "int8"], "dtype is 'int8', expected one of float32, bfloat16, float16, auto"),
        (["--device", "abacus"], "device 'abacus' can't be used"),
        (["--temperature", "warm"], "Invalid value for '--temperature'"),
        (["--no-such-option"], "No such option"),
        (
            ["--output", "nowhere/a.jsonl"],
            "nowhere/a.jsonl: its folder doesn't exist or isn't writable",
        ),
        (["--output", "."], ".: a folder, expected a file to write"),
    ],
)
def test_a_wrong_option_is_named(run, model, options, complaint):
    write("p.txt", "a\n")
    assert refused(run, "generate", "--model", model, "p.txt", *options).startswith(complaint)


def test_a_model_that_is_not_there(run):
    write("p.txt", "a\n")
    assert refused(run, "generate", "--model", "./nowhere", "p.txt").startswith(
        "no checkpoint './nowhere'"
    )
    assert "sing" in refused(run, "sing")


def test_without_a_name_the_model_is_tiny(run):
    write("p.txt", "a\n")
    code, _, err = run("generate", "p.txt", "--max-new-tokens", 1)
    assert code == 0 and err.startswith("qwenlab: tiny, float32")


def test_a_failure_that_is_not_the_users_is_one_line_and_status_1(run, model, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("the device\nfell off")

    monkeypatch.setattr(qwenlab, "generate", fail)
    write("p.txt", "a\n")
    assert (
        refused(run, "generate", "--model", model, "p.txt", status=1)
        == "RuntimeError: the device fell off"
    )


def test_without_a_command_the_help_is_shown(run):
    code, out, err = run()
    assert code == 0 and err == "" and "\n  generate" in out


@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", ">&-", "<&-", "2>&-"][: count(1, 4)])
def test_closed_streams_stop_nobody(model, tmp_path, closed):
    """As under cron: what there is no place for is not said, and the answers are still written."""
    (tmp_path / "p.txt").write_text("a\nb\n", encoding="utf-8")
    command = f"'{sys.executable}' -m qwenlab generate --model '{model}' p.txt --max-new-tokens 2"
    done = subprocess.run(
        f"{command} --output a.jsonl {closed}", shell=True, cwd=tmp_path, capture_output=True
    )
    assert done.returncode == 0 and done.stdout == b"" and b"Error" not in done.stderr
    assert (tmp_path / "a.jsonl").read_text(encoding="utf-8").count("\n") == 2


def test_an_answer_that_the_terminal_cannot_write_is_escaped(model, tmp_path):
    """Not an error after all the work: an ASCII terminal, or a Windows one."""
    (tmp_path / "p.txt").write_text("café 👍\n", encoding="utf-8")
    arguments = ["generate", "--model", model, "p.txt", "--max-new-tokens", "2"]
    streams = (None, tmp_path / "out", tmp_path / "err")
    variables = {"PYTHONIOENCODING": "ascii"}
    run = Forked(
        run_command, *arguments, folder=tmp_path, streams=streams, cwd=tmp_path, variables=variables
    )
    assert run.end() == 0 and "> caf\\xe9 \\U0001f44d\n" in (tmp_path / "out").read_text(
        encoding="utf-8"
    )


def test_the_answers_replace_no_pipe_no_link_and_not_the_prompts(run, model, tmp_path):
    write("p.jsonl", '{"prompt": "a"}\n')
    os.mkfifo("pipe")
    arguments = ["generate", "--model", model, "p.jsonl", "--max-new-tokens", 2, "--output"]
    assert (
        refused(run, *arguments, "pipe") == "pipe: not an ordinary file, expected a file to write"
    )
    assert stat.S_ISFIFO(os.stat("pipe").st_mode)
    assert (
        refused(run, *arguments, "./p.jsonl")
        == "p.jsonl: this is the file of prompts, expected another file to write"
    )
    assert (tmp_path / "p.jsonl").read_text(encoding="utf-8") == '{"prompt": "a"}\n'
    (tmp_path / "link.jsonl").symlink_to("target.jsonl")
    for _ in range(2):  # the target is not there, then it is
        assert run(*arguments, "link.jsonl")[0] == 0
        assert (tmp_path / "link.jsonl").is_symlink() and (tmp_path / "target.jsonl").read_text(
            encoding="utf-8"
        ).startswith('{"line"')
    for length in (254, 300):  # the first is too long only for the part that is written first
        assert refused(run, *arguments, "a" * length).endswith(
            "a: can't be written (File name too long)"
        )


def test_an_answer_file_appears_whole_or_not(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("before", encoding="utf-8")
    prompts = [prompt_file.Prompt(1, [{"role": "user", "content": "a"}])] * 2
    with pytest.raises(ValueError):
        prompt_file.write_answers(path, prompts, [], ["x"], [None])
    assert path.read_text(encoding="utf-8") == "before" and list(tmp_path.iterdir()) == [path]


def test_the_installed_command_and_ctrl_c(model, tmp_path):
    (tmp_path / "p.txt").write_text("a\nb\n" * 400, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "qwenlab",
        "generate",
        "--model",
        model,
        "p.txt",
        "--strategy",
        "sequential",
    ]
    command += ["--max-new-tokens", "200", "--output", "a.jsonl"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=hear_ctrl_c,
        encoding="utf-8",
    )
    for line in process.stderr:
        if "800 prompts" in line:
            break
    completions = tmp_path / "a.jsonl.run" / "completions.jsonl"
    while not completions.exists():  # generation has begun
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130 and out == ""
    told = "qwenlab: a.jsonl: finished completions are kept; run the same command to resume"
    assert err.splitlines() == [told, "qwenlab: interrupted"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl.run", "p.txt"]


def test_interrupted_completions_are_resumed(run, model, monkeypatch):
    write("p.txt", "a\nhello there\nb c\nthe end\n")
    arguments = ["generate", "--model", model, "p.txt", "--max-new-tokens", 6]
    arguments += ["--temperature", 1, "--slots", 2, "--output"]
    assert run(*arguments, "whole.jsonl")[0] == 0
    append = RunFolder.append

    def one_then_ctrl_c(folder, name, record):
        append(folder, name, record)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "append", one_then_ctrl_c)
        assert run(*arguments, "a.jsonl")[0] == 130
    assert not os.path.exists("a.jsonl")
    other = refused(run, *arguments, "a.jsonl", "--seed", 1)
    assert other.startswith("a.jsonl.run: holds another run (seed is 0 there, 1 now)")
    write("q.txt", "a\n")
    fewer = refused(run, "generate", "--model", model, "q.txt", *arguments[4:], "a.jsonl")
    assert fewer.startswith("a.jsonl.run: holds another run (4 prompts there, 1 now)")
    code, _, err = run(*arguments, "a.jsonl")
    assert code == 0 and "qwenlab: a.jsonl: 1 completion there, 3 left\n" in err
    with (
        open("a.jsonl", encoding="utf-8") as resumed,
        open("whole.jsonl", encoding="utf-8") as whole,
    ):
        assert resumed.read() == whole.read()
    assert not os.path.exists("a.jsonl.run")


def test_both_ways_take_turns_until_there_was_enough_time(model, monkeypatch):
    network, tokenizer = qwenlab.load(model)
    called = []

    def way(name):
        def call():
            called.append(name)
            return qwenlab.generate(network, [tokenizer.encode("a")], max_new_tokens=1)

        return call

    monkeypatch.setattr(alone, "MOST_TURNS", 3)
    monkeypatch.setattr(alone, "ENOUGH_SECONDS", float("inf"))
    results = alone.in_turns([way("batch"), way("alone")])
    assert called == ["batch", "alone", "alone", "batch", "batch", "alone"]
    assert [len(each) for each in results] == [3, 3]
    monkeypatch.setattr(alone, "ENOUGH_SECONDS", 0)
    assert [len(each) for each in alone.in_turns([way("batch"), way("alone")])] == [1, 1]
