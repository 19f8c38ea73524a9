"""evaluate: the records are right whatever the batch, a run goes on after anything, and the numbers
add up."""

import json
import os
import random
import re
import shutil
import signal
import time
from functools import cache
from math import sqrt

import pytest
import torch
from forks import Forked
from helpers import count, with_marks

import qwenlab
from qwenlab.engine.prompts import make_requests
from qwenlab.evaluation import (
    answering,
    evaluate,
    extract_answer,
    grade,
    load_problems,
    problem_prompts,
)
from qwenlab.evaluation.evaluation import wilson
from qwenlab.evaluation.problems import Problem
from qwenlab.run_folder import RunFolder, RunFolderError

SAMPLED = {"samples": 3, "temperature": 1.0, "max_new_tokens": 60, "seed": 5}


@pytest.fixture(scope="module")
def tiny():
    return qwenlab.load("tiny")


@pytest.fixture(scope="module")
def problems():
    return load_problems("tiny-test", 60)


def plain(records):
    """Records but for their seconds."""
    return [
        {name: value for name, value in record.items() if name != "seconds"} for record in records
    ]


def written(folder):
    """The records of the file, in the order of those that `evaluate` returns."""
    with open(folder / "records.jsonl", encoding="utf-8") as file:
        return sorted(
            (json.loads(line) for line in file),
            key=lambda record: (record["number"], record["sample"]),
        )


# --- The records -----------------------------------------------------------------------------------------------------


def by_hand(model, tokenizer, problems, samples, seed, **options):
    """The slow obvious path: one prompt after the other."""
    records = []
    for problem in problems:
        (prompt,) = problem_prompts(tokenizer, [problem])
        stream = seed * 2**32 + problem.number
        result = qwenlab.generate(
            model, [prompt], n=samples, seed=[stream], strategy="sequential", **options
        )
        for sample, request in enumerate(result):
            text = tokenizer.decode(request.token_ids)
            answer = extract_answer(text)
            record = {"id": problem.id, "number": problem.number, "sample": sample}
            record |= {
                "prompt": tokenizer.decode(prompt),
                "text": text,
                "answer": answer,
                "gold": problem.answer,
            }
            record |= {"verdict": grade(answer, problem.answer)}
            stopped = request.finish_reason == "stop"
            record |= {
                "tokens": len(request.token_ids) + stopped,
                "finish_reason": request.finish_reason,
            }
            records.append(record)
    return records


@pytest.mark.parametrize(
    "options", [{"samples": 1, "temperature": 0.0, "max_new_tokens": 60, "seed": 0}, SAMPLED]
)
def test_every_batch_and_strategy_gives_the_records_of_one_after_the_other(tiny, problems, options):
    expected = by_hand(*tiny, problems[:8], **options)
    assert 0 < sum(record["verdict"] for record in expected) < len(expected)
    assert {record["finish_reason"] for record in expected} == {"stop", "length"} or options[
        "samples"
    ] == 1
    ways = [
        ("sequential", 64),
        ("static", 5),
        ("early-stop", 7),
        ("continuous", 6),
        ("continuous", 64),
    ]
    for strategy, batch_size in ways:
        result = evaluate(*tiny, problems[:8], strategy=strategy, batch_size=batch_size, **options)
        assert plain(result.records) == expected
        assert (
            list(result.records[0])[-1] == "seconds"
            and min(r["seconds"] for r in result.records) > 0
        )


def test_what_a_problem_says_does_not_depend_on_the_others(tiny, problems):
    every = evaluate(*tiny, problems[:9], **SAMPLED)
    some = evaluate(*tiny, [problems[7], problems[2]], **SAMPLED)
    assert plain(some.records) == [
        record for record in plain(every.records) if record["number"] in (2, 7)
    ]
    other = evaluate(*tiny, problems[:9], **SAMPLED | {"seed": 6})
    assert [record["text"] for record in other.records] != [
        record["text"] for record in every.records
    ]


class Scripted:
    """A tokenizer whose answers are written here: it renders every prompt as `before`, and says
    `said`."""

    def __init__(self, real, before: list[int], said: str):
        self.before, self.said = before, said
        self.template, self.control = real.template, real.control

    def chat(self, messages, thinking=True):
        return self.before

    def decode(self, ids):
        return "the prompt" if list(ids) == self.before else self.said


@pytest.mark.parametrize(
    ("before", "said", "answer"),
    [
        ("2+2?<assistant>\n", "so \\boxed{4}", "4"),
        ("2+2?<assistant>\n<think>\n", "so \\boxed{4}", None),  # still thinking
        ("2+2?<assistant>\n<think>\n", "so \\boxed{4}</think>", "4"),
        ("2+2?<assistant>\n<think>\n\n</think>\n\n", "so \\boxed{4}", "4"),
        ("2+2?<assistant>\n", "", None),
        ("2+2?<assistant>\n", "\\boxed{4", None),
    ],
)
def test_an_answer_inside_thinking_that_was_cut_off_is_none(tiny, before, said, answer):
    model, tokenizer = tiny
    problem = Problem(0, "2+2?", "4", "a")
    scripted = Scripted(tokenizer, with_marks(tokenizer, before), said)
    (record,) = evaluate(model, scripted, [problem], max_new_tokens=1).records
    assert (record["answer"], record["verdict"]) == (answer, answer == "4")


def test_a_user_s_words_open_no_thinking(tiny):
    model, tokenizer = tiny
    scripted = Scripted(tokenizer, tokenizer.encode("what is <think>?"), "so \\boxed{4}")
    (record,) = evaluate(model, scripted, [Problem(0, "2+2?", "4", "a")], max_new_tokens=1).records
    assert record["verdict"]


def test_no_new_token_is_no_answer(tiny, problems):
    result = evaluate(*tiny, problems[:3], max_new_tokens=0, samples=2)
    assert [record["text"] for record in result.records] == [""] * 6
    assert (result.accuracy, result.cut_off, result.no_answer, result.tokens_per_second) == (
        0,
        1,
        1,
        0,
    )


# --- The summary -----------------------------------------------------------------------------------------------------


def test_the_summary_is_what_plain_loops_count(tiny, problems, tmp_path):
    level = {problem.number: problem.number % 3 for problem in problems}
    leveled = [
        Problem(
            p.number,
            p.problem,
            p.answer,
            p.id,
            p.fields | {"level": level[p.number]} if p.number > 4 else {},
        )
        for p in problems[:20]
    ]
    result = evaluate(*tiny, leveled, folder=tmp_path, **SAMPLED)
    right = cut = nothing = tokens = 0
    groups = {"subject": {}, "level": {}}
    for record in result.records:
        right += record["verdict"]
        cut += record["finish_reason"] == "length"
        nothing += record["answer"] is None
        tokens += record["tokens"]
        if record["number"] > 4:
            fields = {
                "subject": problems[record["number"]].fields["subject"],
                "level": str(level[record["number"]]),
            }
            for name, value in fields.items():
                many, good = groups[name].get(value, (0, 0))
                groups[name][value] = (many + 1, good + record["verdict"])
    assert (
        result.accuracy == pytest.approx(right / 60)
        and result.cut_off == pytest.approx(cut / 60)
        and cut
    )
    assert result.no_answer == pytest.approx(nothing / 60) and nothing
    assert result.sampled_tokens == tokens
    assert result.tokens_per_second == pytest.approx(tokens / result.generation_seconds)
    p, z = right / 60, 1.959964
    middle, width = p + z * z / 40, z * sqrt(p * (1 - p) / 20 + z * z / 1600)  # 20 problems
    assert result.interval == pytest.approx(
        ((middle - width) / (1 + z * z / 20), (middle + width) / (1 + z * z / 20))
    )
    for name, group in groups.items():
        shares = {
            value: (many, pytest.approx(good / many)) for value, (many, good) in group.items()
        }
        assert result.groups[name] == shares and list(result.groups[name]) == sorted(shares)
    summary = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    assert (
        summary["accuracy"] == result.accuracy
        and summary["groups"]["level"]["0"][0] == groups["level"]["0"][0]
    )
    assert summary["records"] == "records.jsonl" and summary["model"].endswith("tiny")
    table = str(result).splitlines()
    assert f"accuracy    {right / 60:.3f}, " in table[0] and "60 to 20 problems" in table[1]
    assert [line.split() for line in table if line.startswith("level ")] == [
        ["level", "answers", "accuracy"]
    ]
    assert [line.split()[:2] for line in table[-3:]] == [
        [v, str(groups["level"][v][0])] for v in "012"
    ]


def test_grading_is_no_part_of_generation(tiny, problems, monkeypatch):
    from qwenlab.evaluation import evaluation

    monkeypatch.setattr(
        evaluation, "grade", lambda answer, gold: time.sleep(0.1) or grade(answer, gold)
    )
    began = time.perf_counter()
    result = evaluate(*tiny, problems[:10], max_new_tokens=4)
    assert result.grading_seconds >= 1
    passed = time.perf_counter() - began
    assert result.generation_seconds + result.grading_seconds <= passed  # no second counts twice


@pytest.mark.parametrize(
    ("share", "n", "low", "high"),
    [
        (0.0, 10, 0.0, 0.2775),
        (1.0, 10, 0.7225, 1.0),
        (0.5, 100, 0.4038, 0.5962),
        (0.9, 10, 0.5958, 0.9821),
    ],
)
def test_wilson(share, n, low, high):
    """Values from the published formula, worked by hand."""
    assert wilson(share, n) == pytest.approx((low, high), abs=1e-4)


# --- Memory ----------------------------------------------------------------------------------------------------------


class Small:
    """A model that runs out of memory at more than `most` rows, or in one call when `after` have
    gone well."""

    def __init__(self, model, most, after=0):
        self.model, self.most, self.after = model, most, after

    def __getattr__(self, name):
        return getattr(self.model, name)

    def compute(self, batch, **options):
        self.after -= 1
        if len(batch.input_ids) > self.most and self.after < 0:
            raise torch.OutOfMemoryError("out of memory")
        return self.model.compute(batch, **options)


@cache
def with_enough_memory(name, samples):
    """The model, its tokenizer, the options, and what they give where memory suffices."""
    model, tokenizer = qwenlab.load(name)
    options = {1: {"max_new_tokens": 60}, 3: SAMPLED}[samples]
    expected = evaluate(model, tokenizer, load_problems("tiny-test", 12), **options)
    return model, tokenizer, options, expected


# Rows that fit, calls that go well before, samples a problem. The hybrid, which is slower, has two
# below full count.
SHORT_OF_MEMORY = [(5, 1, 1), (2, 40, 3), (1, 0, 1), (4, 7, 3), (3, 23, 1), (1, 30, 3)]
OUT_OF_MEMORY = [("tiny", *case) for case in SHORT_OF_MEMORY]
OUT_OF_MEMORY += [("tiny-hybrid", *case) for case in SHORT_OF_MEMORY[: count(2, 6)]]


@pytest.mark.parametrize(("name", "most", "after", "samples"), OUT_OF_MEMORY)
def test_out_of_memory_halves_the_batch_and_loses_nothing(
    name, problems, tmp_path, caplog, samples, most, after
):
    model, tokenizer, options, expected = with_enough_memory(name, samples)
    small = Small(model, most, after)
    result = evaluate(small, tokenizer, problems[:12], batch_size=11, folder=tmp_path, **options)
    assert plain(result.records) == plain(expected.records) == plain(written(tmp_path))
    assert result.sampled_tokens == expected.sampled_tokens  # not one was sampled twice
    told = "\n".join(caplog.messages)
    said = re.findall(r"^out of memory with (\d+) .* continuing with (\d+), ", told, re.MULTILINE)
    assert said and all(int(fewer) == int(rows) // 2 for rows, fewer in said)
    assert int(said[-1][0]) > most and (after > 7 or said[0] == ("11", "5"))


def test_one_row_too_many_is_raised_and_what_was_answered_is_kept(tiny, problems, tmp_path):
    model, tokenizer = tiny
    with pytest.raises(torch.OutOfMemoryError):
        evaluate(
            Small(model, 0, 60),
            tokenizer,
            problems[:5],
            batch_size=1,
            folder=tmp_path,
            max_new_tokens=40,
        )
    assert 0 < len(written(tmp_path)) < 5
    result = evaluate(model, tokenizer, problems[:5], folder=tmp_path, max_new_tokens=40)
    assert plain(result.records) == plain(
        evaluate(model, tokenizer, problems[:5], max_new_tokens=40).records
    )


def test_auto_takes_what_memory_allows(tiny, problems, monkeypatch, caplog):
    caplog.set_level("INFO", "qwenlab")
    model, tokenizer = tiny
    requests = make_requests(model, problem_prompts(tokenizer, problems), 8, max_new_tokens=100)
    longest = max(len(request.prompt) for request in requests) + 100
    state = model.new_state(1, longest).nbytes  # what the row's keys and values take
    for free, most in [(0, 1), (3 * state, 1), (300 * state, 100), (10**12, 256)]:
        monkeypatch.setattr(answering, "free_memory", lambda device, free=free: free)
        rows = answering.rows_that_fit(model, requests)
        assert 1 <= rows <= most and (free < 10**12 or rows == 256)
        assert rows > 1 or free < 100 * state
    assert answering.rows_that_fit(model, requests[:7]) == 7
    result = evaluate(model, tokenizer, problems[:9], batch_size="auto", max_new_tokens=4)
    assert caplog.messages[-1].startswith("batch size 9: up to ")
    assert result.batch_size == 9 and "batch size 9" in str(result)
    monkeypatch.undo()
    assert 2**20 < answering.free_memory(torch.device("cpu")) < 2**50


def test_the_estimate_holds_what_a_run_takes(tiny, problems):
    """The state that a run ends with is no larger than what was counted for its rows."""
    model, tokenizer = tiny
    prompts = problem_prompts(tokenizer, problems[:8])
    engine = qwenlab.Engine(model, slots=8)
    for prompt in prompts:
        engine.submit(prompt, max_new_tokens=100, stop=())
    engine.run()
    longest = max(map(len, prompts)) + 100
    assert engine.runner.state.nbytes <= 8 * 2 * model.new_state(1, longest).nbytes


@pytest.mark.filterwarnings("ignore:request .+ its logits are NaN")
def test_nan_of_one_problem_costs_its_own_answers_only(tiny, problems, tmp_path):
    """The record says why, the summary counts it, and a run that is taken up again doesn't stop
    there."""
    model, tokenizer = tiny
    options = {"samples": 2, "max_new_tokens": 30, "temperature": 1.0}
    prompts, answers = (
        problem_prompts(tokenizer, problems[:8]),
        evaluate(model, tokenizer, problems[:8], **options),
    )
    expected = plain(answers.records)
    said = {token_id for record in expected for token_id in tokenizer.encode(record["text"])}
    places = range(len(prompts))
    others = {
        place: said.union(*(ids for i, ids in enumerate(prompts) if i != place)) for place in places
    }
    bad = next(
        place for place in places if set(prompts[place]) - others[place]
    )  # with a word of its own
    word = min(set(prompts[bad]) - others[bad])

    def poison(module, inputs, out):
        out[inputs[0] == word] = float("nan")

    hook = model.model.embed_tokens.register_forward_hook(poison)
    try:
        result = evaluate(model, tokenizer, problems[:8], folder=tmp_path, batch_size=3, **options)
        again = evaluate(model, tokenizer, problems[:8], folder=tmp_path, **options)
    finally:
        hook.remove()
    for record, right in zip(plain(result.records), expected, strict=True):
        if record["number"] != problems[bad].number:
            assert record == right
            continue
        assert (record["text"], record["answer"], record["verdict"]) == ("", None, False)
        assert (record["finish_reason"], record["tokens"]) == ("error", 0)
        assert re.fullmatch(r"request \d+: its logits are NaN after 0 new tokens", record["error"])
    assert result.errors == 2 and "; 2 ended with an error" in str(result)
    assert json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))["errors"] == 2
    assert again.records == written(tmp_path) and again.sampled_tokens == 0 and again.errors == 2
    assert answers.errors == 0 and "error" not in str(answers)


# --- A run goes on ---------------------------------------------------------------------------------------------------


def sampled_run(folder, batch_size):
    model, tokenizer = qwenlab.load("tiny")
    evaluate(
        model,
        tokenizer,
        load_problems("tiny-test", 60),
        folder=folder,
        batch_size=batch_size,
        **SAMPLED,
    )


def test_a_kill_at_any_byte_loses_nothing_and_repeats_nothing(tiny, problems, tmp_path):
    """Killed three times, each at a byte of its records: in the middle of a batch and of a
    problem's samples."""
    expected = plain(evaluate(*tiny, problems, **SAMPLED).records)
    rng = random.Random(0)
    for attempt in range(count(1, 7)):
        folder = tmp_path / str(attempt)
        for _ in range(3):
            torn = bytes_of(folder) + rng.randint(2_000, 9_000)
            batch_size = rng.choice([1, 4, 13, 64])
            killed = Forked(sampled_run, folder, batch_size, folder=folder, signal_at=0, torn=torn)
            assert killed.end() == -signal.SIGXFSZ and bytes_of(folder) == torn
        result = evaluate(*tiny, problems, folder=folder, **SAMPLED)
        assert plain(result.records) == expected == plain(written(folder))
        done = sum(record["tokens"] for record in result.records) - result.sampled_tokens
        assert done > 0  # what was there was not answered again


def bytes_of(folder):
    path = folder / "records.jsonl"
    return path.stat().st_size if path.exists() else 0


@pytest.fixture(scope="module")
def finished(tiny, problems, tmp_path_factory):
    """A run of 12 problems in a folder, to be copied: its result, and where it is."""
    folder = tmp_path_factory.mktemp("finished")
    return evaluate(*tiny, problems[:12], folder=folder, **SAMPLED), folder


@pytest.mark.parametrize(
    ("keep", "torn"), [(0, 0), (0, 1), (1, 40), (7, 0), (20, 40), (35, 1), (36, 0)]
)
def test_a_run_goes_on_from_any_record(tiny, problems, finished, tmp_path, keep, torn):
    expected, folder = finished
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "records.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 36
    path.write_bytes(b"".join(lines[:keep]) + b"".join(lines[keep : keep + 1])[:torn])
    (tmp_path / "summary.json").unlink()
    again = evaluate(
        *tiny, problems[:12], batch_size=5, strategy="early-stop", folder=tmp_path, **SAMPLED
    )
    assert plain(again.records) == plain(expected.records) == plain(written(tmp_path))
    assert path.read_bytes().startswith(b"".join(lines[:keep]))
    tokens = sum(json.loads(line)["tokens"] for line in lines[keep:])
    assert again.sampled_tokens == tokens and (tmp_path / "summary.json").exists()


def test_a_finished_run_is_read_and_its_summary_stays(tiny, problems, tmp_path):
    first = evaluate(*tiny, problems[:5], folder=tmp_path, max_new_tokens=40)
    summary = (tmp_path / "summary.json").read_text(encoding="utf-8")
    again = evaluate(*tiny, problems[:5], folder=tmp_path, max_new_tokens=40)
    assert again.records == first.records and again.sampled_tokens == 0
    assert (tmp_path / "summary.json").read_text(encoding="utf-8") == summary


def test_a_folder_of_the_caller_s_is_used_and_left_open(tiny, problems, tmp_path):
    with RunFolder(tmp_path, {"mine": 1}) as folder:
        evaluate(*tiny, problems[:3], folder=folder, max_new_tokens=4)
        folder.append("more.jsonl", {})
        assert len(folder.records("records.jsonl")) == 3


@pytest.mark.parametrize(
    "change",
    [
        {"max_new_tokens": 5},
        {"temperature": 0.5},
        {"top_k": 3},
        {"top_p": 0.5},
        {"seed": 1},
        {"thinking": False},
        {"plain": True},
    ],
)
def test_another_run_is_refused(tiny, problems, tmp_path, change):
    evaluate(*tiny, problems[:2], folder=tmp_path, max_new_tokens=4)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(RunFolderError, match=rf"holds another run \({next(iter(change))} is "):
        evaluate(*tiny, problems[:2], folder=tmp_path, **{"max_new_tokens": 4} | change)
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


def test_other_problems_or_weights_are_another_run(tiny, problems, tmp_path):
    model, tokenizer = tiny
    evaluate(model, tokenizer, problems[:2], folder=tmp_path, max_new_tokens=4)
    changed = [problems[0], Problem(1, problems[1].problem, "7", problems[1].id)]
    for others in (problems[:1], problems[1:2], problems[1::-1], changed):
        with pytest.raises(RunFolderError, match=r"holds another run \(.*problems"):
            evaluate(model, tokenizer, others, folder=tmp_path, max_new_tokens=4)
    other, _ = qwenlab.load("tiny")
    with torch.no_grad():
        for parameter in other.parameters():
            parameter += 1e-6
    with pytest.raises(RunFolderError, match="weights is"):
        evaluate(other, tokenizer, problems[:2], folder=tmp_path, max_new_tokens=4)
    with pytest.raises(RunFolderError, match="dtype is"):
        evaluate(
            *qwenlab.load("tiny", dtype="bfloat16"), problems[:2], folder=tmp_path, max_new_tokens=4
        )


def test_a_full_disk_keeps_the_records_and_a_larger_one_goes_on(
    tiny, problems, finished, tmp_path, monkeypatch
):
    expected, _ = finished
    write, left = RunFolder.append, [17]

    def full(folder, name, record):
        left[0] -= 1
        if left[0] < 0:
            folder.files[name].close()
            folder.files[name] = open("/dev/full", "wb", buffering=0)
        write(folder, name, record)

    monkeypatch.setattr(RunFolder, "append", full)
    monkeypatch.setattr(
        os, "truncate", lambda *arguments: None
    )  # of a device there's nothing to take back
    with pytest.raises(RunFolderError, match=r"No space left on device.*records before are safe"):
        evaluate(*tiny, problems[:12], folder=tmp_path, **SAMPLED)
    monkeypatch.undo()
    assert len(written(tmp_path)) == 17
    result = evaluate(*tiny, problems[:12], folder=tmp_path, **SAMPLED)
    assert plain(result.records) == plain(expected.records) == plain(written(tmp_path))


def test_ctrl_c_closes_the_bar_and_keeps_the_records(tiny, problems, tmp_path, capsys, monkeypatch):
    write, left = RunFolder.append, [9]

    def interrupted(folder, name, record):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        write(folder, name, record)

    monkeypatch.setattr(RunFolder, "append", interrupted)
    with pytest.raises(KeyboardInterrupt):
        evaluate(*tiny, problems[:12], folder=tmp_path, progress=True, **SAMPLED)
    monkeypatch.undo()
    err = capsys.readouterr().err
    assert err.endswith("\n") and "accuracy " in err and "tokens/s" in err and "9/36" in err
    assert len(written(tmp_path)) == 9
    evaluate(*tiny, problems[:12], folder=tmp_path, progress=True, **SAMPLED)
    assert "9/36" in capsys.readouterr().err.split("\r")[1]  # it starts from there


# --- Wrong input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"problems": []},
            "0 problems with 0 numbers, expected at least 1 problem, each with its own number",
        ),
        (
            {"problems": [Problem(1, "a", "1", "a"), Problem(1, "b", "1", "b")]},
            "2 problems with 1 numbers",
        ),
        (
            {"problems": [Problem(0, "a " * 5000, "1", "long")]},
            "problem long: .* leave no room in a context of 4096",
        ),
        ({"batch_size": 0}, "batch_size is 0, expected a whole number of at least 1"),
        ({"batch_size": "many"}, "batch_size is 'many', expected"),
        ({"strategy": "fast"}, "strategy is 'fast', expected one of sequential"),
        ({"samples": 0}, "samples is 0, expected a whole number of at least 1"),
        ({"max_new_tokens": -1}, "max_new_tokens of prompt 0 is -1"),
        ({"temperature": -1.0}, "temperature of prompt 0 is -1.0, expected 0 or more"),
        ({"top_p": 2.0}, "top_p of prompt 0 is 2.0, expected 0 to 1"),
        ({"top_k": -1}, "top_k of prompt 0 is -1"),
        ({"seed": -1}, "seed is -1, expected a whole number of at least 0"),
    ],
)
def test_wrong_options_are_named_before_anything_is_made(tiny, problems, tmp_path, change, message):
    options = {"problems": problems[:2], "folder": tmp_path / "run"} | change
    with pytest.raises(ValueError, match=message) as caught:
        evaluate(*tiny, **options)
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()
