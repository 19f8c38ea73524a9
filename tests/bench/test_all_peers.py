"""peers --table: all sides in one run, an optional third peer, and one table that says the same as
its JSON."""

import json
from itertools import cycle
from typing import ClassVar

import pytest
import torch
from helpers import SHAPE

from qwenlab import bench
from qwenlab.bench import all_peers, beside, llama
from qwenlab.bench.twins import SHAPES
from qwenlab.cli.main import main
from qwenlab.errors import QwenlabError

pytest.importorskip("transformers")


class Fake:
    """A third side whose speed depends on the threads in a known way, and whose rows all differ
    from everybody's."""

    closed = 0
    seen: ClassVar[list] = []

    def __init__(self, model):
        self.model = model

    def run(self, prompts, new_tokens, threads):
        Fake.seen.append((len(prompts), new_tokens, threads))
        seconds = 0.5 if threads == 1 else 1.0
        return 1.0, 1.0 + seconds * (new_tokens - 1), [[-1] * new_tokens for _ in prompts]

    def close(self):
        Fake.closed += 1


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
    monkeypatch.setitem(SHAPES, "small", {**SHAPE, **rope})
    unit = bench.Machine("a machine", "float32", 1e6, 1e9)
    half = bench.Machine("a machine", "bfloat16", 1e6, 1e9)
    by_dtype = {torch.float32: unit, torch.bfloat16: half}
    monkeypatch.setattr(all_peers, "measure_machine", by_dtype.get)
    seconds = cycle([1.0, 3.0])  # for one token, then for all: no test depends on a real clock
    monkeypatch.setattr(beside, "clocked", lambda work, device: (next(seconds), work()))
    monkeypatch.setattr(llama, "why_not", lambda: "llama.cpp is absent")
    Fake.closed = 0
    Fake.seen = []


@pytest.fixture
def third(monkeypatch):
    monkeypatch.setattr(llama, "why_not", lambda: None)
    monkeypatch.setattr(llama, "Llama", Fake)


SIZES = {"batch_sizes": (1, 3), "prompt_tokens": 4, "new_tokens": 12, "repeats": 1}


def test_a_third_peer_takes_turns_with_the_others_and_is_closed(third):
    made = bench.peer_table(["small"], ["float32", "bfloat16"], **SIZES)
    assert [(line.dtype, line.batch_size) for line in made.lines] == [
        ("float32", 1),
        ("float32", 3),
        ("bfloat16", 1),
        ("bfloat16", 3),
    ]
    seconds = 0.5 if torch.get_num_threads() == 1 else 1.0
    for line in made.lines:
        assert list(line.cells) == ["transformers", "qwenlab", "qwenlab, packed", "llama.cpp"]
        assert line.cells["llama.cpp"].rate.median == line.batch_size / seconds
        assert line.cells["llama.cpp"].alike == 0
        assert line.cells["transformers"].alike == line.batch_size
        assert line.cells["transformers"].ratio.median == 1.0
    assert made.lines[1].cells["qwenlab"].alike == 3
    assert Fake.closed == 2 and made.notes == []


def test_tiny_is_tried_with_one_thread_and_all_and_the_better_counts(third):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        made = bench.peer_table(
            ["tiny"],
            ["float32"],
            set_threads=torch.set_num_threads,
            **{**SIZES, "batch_sizes": [1]},
        )
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert {threads for _, _, threads in Fake.seen} == {1, 2}
    assert made.lines[0].cells["llama.cpp"].threads == 1


def test_the_number_of_threads_is_restored_after_a_failure(third, monkeypatch):
    before = torch.get_num_threads()

    def fail(*_):
        raise QwenlabError("llama.cpp ended: no")

    monkeypatch.setattr(Fake, "run", fail)
    with pytest.raises(QwenlabError, match=r"llama\.cpp ended: no"):
        bench.peer_table(
            ["small"],
            ["float32"],
            threads=before + 1,
            set_threads=torch.set_num_threads,
            **SIZES,
        )
    assert torch.get_num_threads() == before and Fake.closed == 1


def test_the_command_prints_the_table_its_json_and_what_is_absent(capsys):
    options = "--shape small --dtype float32 --batch 1,3 --prompt-tokens 4 --new-tokens 12"
    with pytest.raises(SystemExit) as end:
        main(["peers", "--table", *options.split(), "--repeats", "1", "--threads", "1"])
    out, err = capsys.readouterr()
    *table, last = out.splitlines()
    found = json.loads(last)
    assert end.value.code == 0 and "qwenlab: small in float32" in err and "12/12" in err
    assert "\n".join(table) == all_peers.text_of(found)
    assert "llama.cpp is absent" in table and found["notes"] == ["llama.cpp is absent"]
    assert table[-1] in all_peers.verdicts(found)
    assert found["machine"] in table[0] and found["versions"]["transformers"] in table[0]
    head = next(place for place, row in enumerate(table) if row.split()[:1] == ["shape"])
    rows = iter(table[head + 1 :])
    for line in found["lines"]:
        assert list(line["cells"]) == ["transformers", "qwenlab", "qwenlab, packed"]
        for name, cell in line["cells"].items():
            row = next(rows)
            ratio = cell["ratio"]
            assert f" {name} " in row
            assert f"{ratio['median']:.2f} ({ratio['low']:.2f}–{ratio['high']:.2f})" in row
            assert row.split()[-3:] == [str(cell["alike"]), "of", str(line["batch_size"])]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ("--shape huge", "shape is 'huge', expected one of tiny, 0.6b, 0.8b, small"),
        ("--dtype float16", "dtype is 'float16', expected one of float32, bfloat16"),
        ("--model tiny", "--table measures shapes on the CPU, expected no --model or --device"),
        ("--new-tokens 1", "new_tokens is 1, expected a whole number of at least 2"),
        ("--batch 2,2", "batch_sizes is [2, 2], expected at least one size and none twice"),
    ],
)
def test_wrong_input_is_one_line(capsys, options, complaint):
    with pytest.raises(SystemExit) as end:
        main(["peers", "--table", *options.split()])
    out, err = capsys.readouterr()
    assert (end.value.code, out) == (2, "")
    assert err.splitlines()[-1] == f"qwenlab: {complaint}"


def test_a_missing_llama_is_named_with_its_remedy(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(llama, "find_spec", lambda name: None)
    assert llama.why_not().endswith("not installed: pip install llama-cpp-python gguf")


def test_a_child_that_ends_is_one_line(monkeypatch, tmp_path):
    child = tmp_path / "child.py"
    child.write_text("import sys; sys.exit('no such file')", encoding="utf-8")
    monkeypatch.setattr(llama, "CHILD", child)
    monkeypatch.setattr(llama, "write_gguf", lambda model, path: None)
    side = llama.Llama(None)
    with pytest.raises(QwenlabError, match=r"llama\.cpp ended: no such file"):
        side.run([[1]], 2, 1)
    side.close()


def test_a_verdict_follows_from_the_spreads():
    def line(ours, theirs):
        cells = {}
        for name, (low, high) in {"qwenlab": ours, "llama.cpp": theirs}.items():
            cells[name] = {"rate": {"median": low, "low": low, "high": high}}
        return {"shape": "small", "dtype": "float32", "batch_size": 4, "cells": cells}

    def said(ours, theirs):
        (sentence,) = all_peers.verdicts({"lines": [line(ours, theirs)]})
        return sentence

    assert "faster than llama.cpp in 1: small float32 at 4." in said((3, 4), (1, 2))
    assert "slower than llama.cpp" in said((1, 2), (3, 4))
    assert "within the spread of llama.cpp" in said((1, 3), (2, 4))


@pytest.mark.skipif(llama.why_not() is not None, reason="needs llama-cpp-python and gguf")
def test_llama_decodes_the_same_model():
    ours, _ = all_peers.load_twins("tiny", None, "float32", "cpu")
    side = llama.Llama(ours.model)
    try:
        _, _, ids = side.run([[5, 6, 7], [8]], 6, 1)
    finally:
        side.close()
    assert ids == ours.generate([[5, 6, 7], [8]], 6)
