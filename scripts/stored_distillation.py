"""Makes the stored results of lesson 14: `tiny-base` learns from the traces of `tiny`, measured on
unseen problems.

The traces are made once. Then each run is one process with one thread; run as many at a time as
there are idle cores. The files in runs/ are parts, which the last command merges.

    export OMP_NUM_THREADS=1
    python scripts/stored_distillation.py --traces runs/distillation
    python scripts/stored_distillation.py --traces runs/distillation --seed 0 \\
        --out runs/distillation-0.json                                  # and seeds 1 and 2
    python scripts/stored_distillation.py --merge runs/distillation-*.json \\
        --out src/qwenlab/teach/stored/distillation.json

A run ends after its epochs, so it is the same on every machine, however fast. The accuracies are
measured on all of tiny-test, before and after.
"""

import argparse
import json
import sys
from datetime import date
from pathlib import Path
from time import perf_counter

import torch

import qwenlab
from qwenlab.bench.timing import machine_name
from qwenlab.evaluation.evaluation import evaluate
from qwenlab.evaluation.problems import Problem, load_problems
from qwenlab.files import write_whole
from qwenlab.model.model import Model
from qwenlab.text.tokenizer import Tokenizer
from qwenlab.training.distillation import distill
from qwenlab.training.traces import TRACES, load_traces, make_traces

TEACHER = "tiny"
STUDENT = "tiny-base"
LONGEST = 160  # tokens of an answer, in a trace or a test
# As in the lesson.
SETTINGS = {"batch_size": 16, "lr": 2e-3, "held_out": 64}
EPOCHS = 12  # some five minutes


def right(model: Model, tokenizer: Tokenizer, problems: list[Problem]) -> float:
    """The share of the problems whose greedy answer is right."""
    return evaluate(model, tokenizer, problems, batch_size=128, max_new_tokens=LONGEST).accuracy


def provenance(seconds: float, model: Model) -> dict:
    return {
        "machine": machine_name(model.device),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "dtype": str(model.dtype).removeprefix("torch."),
        "teacher": TEACHER,
        "student": STUDENT,
        "command": " ".join(["python", "scripts/stored_distillation.py", *sys.argv[1:]]),
        "date": date.today().isoformat(),
        "seconds": round(seconds),
    }


def train(folder: Path, seed: int, epochs: float, problems: int) -> dict:
    """One run: held-out loss and greedy accuracy before and after, steps, tokens and seconds of
    training."""
    began = perf_counter()
    traces = load_traces(folder / TRACES)
    model, tokenizer = qwenlab.load(STUDENT, dtype="float32", device="cpu")
    tests = load_problems("tiny-test", problems)
    before = right(model, tokenizer, tests)
    options = {"epochs": epochs, "seed": seed, "progress": True}
    run = distill(model, tokenizer, traces, **options, **SETTINGS)
    losses = list(run.losses.values())
    return {
        "seed": seed,
        "epochs": epochs,
        "problems": len(tests),
        "traces": len(traces),
        "before": before,
        "after": right(model, tokenizer, tests),
        "loss_before": losses[0],
        "loss_after": losses[-1],
        "losses": {"step": list(run.losses), "loss": [float(f"{loss:.4g}") for loss in losses]},
        "steps": len(run.metrics),
        "tokens": sum(step["tokens"] for step in run.metrics),
        "padded": run.padded,
        "seconds": sum(step["seconds"] for step in run.metrics),
        "provenance": provenance(perf_counter() - began, model),
    }


def merge(parts: list[Path]) -> dict:
    """The lesson's file from those of the runs."""
    runs = []
    for part in parts:
        runs.append(json.loads(part.read_text(encoding="utf-8")))
    runs.sort(key=lambda run: run["seed"])
    whole = dict(runs[0]["provenance"])
    whole["command"] = " ".join(["python", "scripts/stored_distillation.py", *sys.argv[1:]])
    whole["seconds"] = sum(run["provenance"]["seconds"] for run in runs)
    return {"provenance": whole, "settings": SETTINGS, "runs": runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--traces",
        type=Path,
        metavar="FOLDER",
        help="folder of the teacher's traces; without --seed, they are made there",
    )
    parser.add_argument("--seed", type=int, help="train with this seed")
    parser.add_argument("--merge", type=Path, nargs="+", metavar="PART", help="merge the parts")
    parser.add_argument("--out", type=Path, help="the file to write")
    parser.add_argument("--epochs", type=float, default=EPOCHS, help="over the traces")
    parser.add_argument(
        "--limit", type=int, help="problems of the teacher (default: all of tiny-train)"
    )
    parser.add_argument(
        "--problems", type=int, default=1000, help="problems of the tests before and after"
    )
    asked = parser.parse_args()
    if asked.merge is None and asked.traces is None:
        parser.error("expected --traces or --merge")
    if (asked.merge is not None or asked.seed is not None) and asked.out is None:
        parser.error("expected --out")
    if asked.merge is None and asked.seed is None:
        teacher, tokenizer = qwenlab.load(TEACHER, dtype="float32", device="cpu")
        problems = load_problems("tiny-train", asked.limit)
        made = make_traces(
            teacher, tokenizer, problems, asked.traces, max_new_tokens=LONGEST, progress=True
        )
        print(f"{len(made)} traces of {len(problems)} problems")
        return
    made = (
        merge(asked.merge)
        if asked.merge
        else train(asked.traces, asked.seed, asked.epochs, asked.problems)
    )
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(asked.out, json.dumps(made) + "\n")
    print(f"wrote {asked.out} ({asked.out.stat().st_size / 1000:.0f} kB)")


if __name__ == "__main__":
    main()
