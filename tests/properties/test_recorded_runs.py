"""Folders of the first edition's runs: later editions finish what was interrupted as it did, or say
in one line that they can't.

scripts/stored_runs.py has made the folders, and runs each task again with the same options.
"""

import csv
import json
import shutil
from pathlib import Path

import pytest
import torch
from helpers import difference
from safetensors.torch import load_file
from stored_runs import FAMILIES, TASKS, TORN, run

import qwenlab

RUNS = Path(__file__).resolve().parents[1] / "recordings" / "runs"
# Tasks whose folders of the first edition are refused, in one line, rather than gone on with.
REFUSED: set[str] = set()
TOLERANCE = 1e-4  # of weights and metrics; each step of the training moves a weight by 1e-3 or more
TIMES = ("second", "tokens_per")
TRAININGS = ("grpo", "distill")


@pytest.fixture(autouse=True)
def as_recorded(monkeypatch):
    """A training's folder names threads and kernel: those of the recording."""
    monkeypatch.delenv("QWENLAB_LINEAR", raising=False)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def files_of(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def without_times(record: dict) -> dict:
    return {name: value for name, value in record.items() if not any(t in name for t in TIMES)}


def lines_of(path: Path) -> list[dict]:
    """The records of a file but for their seconds, in order of step, or of problem and sample."""
    records = [without_times(json.loads(line)) for line in path.read_text("utf-8").splitlines()]
    return sorted(records, key=lambda r: (r.get("step", 0), r.get("number", 0), r.get("sample", 0)))


def check_answers(folder: Path, recorded: Path) -> None:
    """The same records and sums: what was answered, by what, and whether it is right."""
    assert lines_of(folder / "records.jsonl") == lines_of(recorded / "records.jsonl")
    # where the model lies; what the last call has sampled and answered
    this_call = ("model", "sampled_tokens", "new_answers")
    for name in ("summary.json", "votes.json"):
        assert (folder / name).exists() == (recorded / name).exists()
        if (folder / name).exists():
            ours = without_times(json.loads((folder / name).read_text(encoding="utf-8")))
            theirs = without_times(json.loads((recorded / name).read_text(encoding="utf-8")))
            assert ours.pop("errors", 0) == 0  # not counted yet when they were recorded
            for other in this_call:
                ours.pop(other, None)
                theirs.pop(other, None)
            assert ours == theirs


def check_training(folder: Path, recorded: Path) -> None:
    """The same metrics in both files, and one checkpoint with the same weights."""
    ours = lines_of(folder / "metrics.jsonl")
    theirs = lines_of(recorded / "metrics.jsonl")
    assert [list(record) for record in ours] == [list(record) for record in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert one == pytest.approx(other, rel=TOLERANCE, abs=TOLERANCE)
    with (folder / "metrics.csv").open(newline="", encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == len(theirs)
    names = sorted(path.name for path in folder.glob("step-*"))
    assert names == sorted(path.name for path in recorded.glob("step-*"))
    weights = load_file(folder / names[-1] / "model.safetensors")
    expected = load_file(recorded / names[-1] / "model.safetensors")
    assert weights.keys() == expected.keys()
    for name, tensor in weights.items():
        assert difference(tensor, expected[name]) <= TOLERANCE, name


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("kind", ["interrupted", "complete"])
def test_a_recorded_run_ends_as_it_did_or_is_refused(task, family, kind, tmp_path):
    recorded = RUNS / f"{task}-{family}-complete"
    folder = tmp_path / "run"
    shutil.copytree(RUNS / f"{task}-{family}-{kind}", folder)
    if task in REFUSED:
        before = files_of(folder)
        with pytest.raises(qwenlab.QwenlabError) as caught:
            run(task, family, RUNS, folder)
        assert str(folder) in str(caught.value) and "\n" not in str(caught.value)
        assert files_of(folder) == before
        return
    run(task, family, RUNS, folder)
    check = check_training if task in TRAININGS else check_answers
    check(folder, recorded)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("task", TASKS)
def test_the_interrupted_runs_were_half_way(task, family):
    """Else going on with them would show nothing."""
    name, _ = TASKS[task]
    done = (RUNS / f"{task}-{family}-interrupted" / name).read_text("utf-8").removesuffix(TORN)
    whole = (RUNS / f"{task}-{family}-complete" / name).read_text("utf-8")
    assert 0 < done.count("\n") < whole.count("\n")
