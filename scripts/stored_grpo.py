"""Makes the stored results of lesson 13: `tiny-base` learns by GRPO, measured on unseen problems.

Each run is one process with one thread; run as many at a time as there are idle cores. A run that
was stopped resumes when the same command is given again. The files in runs/ and speed.json are
parts, which the last command merges.

    export OMP_NUM_THREADS=1
    python scripts/stored_grpo.py --seed 0 --out runs/seed-0.json               # and seeds 1, 2
    python scripts/stored_grpo.py --seed 0 --steps 90 --lr 3e-3 --out runs/high-lr.json
    python scripts/stored_grpo.py --speed --out runs/speed.json                 # on an idle machine
    python scripts/stored_grpo.py --merge runs/*.json --out src/qwenlab/teach/stored/grpo.json

The learning rate falls to 0 over the steps, so a run is the same however fast the machine is. The
accuracies are measured on all of tiny-test before and after, and every few steps on the first of
its problems. So are the ways in which the answers set out, since leaving the short cut is most of
what is learned.
"""

import argparse
import json
import sys
from dataclasses import asdict
from datetime import date
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from tiny_traces import SHORT_CUT, WAYS

import qwenlab
from qwenlab.bench.timing import Spread, alternate, machine_name
from qwenlab.evaluation.evaluation import Evaluation, evaluate
from qwenlab.evaluation.problems import Problem, load_problems, problem_prompts
from qwenlab.files import write_whole
from qwenlab.model.model import Model
from qwenlab.text.tokenizer import Tokenizer
from qwenlab.training.rl import grpo
from qwenlab.training.trainer import read_metrics

CHECKPOINT = "tiny-base"
# As in the lesson.
SETTINGS = {"num_rollouts": 8, "prompts_per_step": 12, "batch_size": 96, "max_new_tokens": 72}
WARM_UP = 10  # steps
LONGEST = 256  # tokens of an answer in a test
SEED = 1000  # of the samples in a test
NO_WAY = "none"  # of an answer that names no way
BATCHES = (1, 4, 8, 64)  # whose speed is measured
KEPT = (
    "reward",
    "cut_off",
    "length",
    "silent",
    "ratio",
    "gradient_norm",
    "rollout_seconds",
    "training_seconds",
)


def measure(model: Model, tokenizer: Tokenizer, problems: list[Problem]) -> dict[str, Any]:
    """The accuracy of sampled and of greedy answers, one to each problem, and the ways of both."""
    tested = {"ways": {}}
    for kind, temperature in (("sampled", 1.0), ("greedy", 0.0)):
        answers = evaluate(
            model,
            tokenizer,
            problems,
            batch_size=128,
            max_new_tokens=LONGEST,
            temperature=temperature,
            seed=SEED,
        )
        tested[kind] = answers.accuracy
        tested["ways"][kind] = ways(answers)
    return tested


def ways(answers: Evaluation) -> dict[str, dict[str, int]]:
    """How many answers set out in each way, which they name first, and how many of those are
    right."""
    found = {way: {"answers": 0, "right": 0} for way in [*WAYS, NO_WAY]}
    for record in answers.records:
        named = record["text"].removeprefix("<think>").strip().split("\n")[0]
        counts = found[named if named in WAYS else NO_WAY]
        counts["answers"] += 1
        counts["right"] += int(record["verdict"])
    return found


def on_the_way(
    model: Model, tokenizer: Tokenizer, problems: list[Problem], step: int
) -> dict[str, float]:
    """The accuracies at a step, and the share of the sampled answers that take the short cut."""
    tested = measure(model, tokenizer, problems)
    return {
        "step": step,
        "sampled": tested["sampled"],
        "greedy": tested["greedy"],
        "short_cut": tested["ways"]["sampled"][SHORT_CUT]["answers"] / len(problems),
    }


def provenance(model: Model, seconds: float) -> dict:
    return {
        "machine": machine_name(model.device),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "dtype": str(model.dtype).removeprefix("torch."),
        "checkpoint": CHECKPOINT,
        "command": " ".join(
            ["python", "scripts/stored_grpo.py", *sys.argv[1 : sys.argv.index("--out")]]
        ),
        "date": date.today().isoformat(),
        "seconds": round(seconds),
    }


def train(
    out: Path, seed: int, steps: int, lr: float, every: int, tests: int, problems: int
) -> dict:
    """One run: its metrics, its accuracies on the way, and those on `problems` unseen problems
    before and after.

    The training's own folder and the accuracies so far are written beside `out`.
    """
    work = out.with_suffix("")
    notes = work.with_name(work.name + ".tests.json")
    held_out = load_problems("tiny-test", problems)
    train_set = load_problems("tiny-train")
    model, tokenizer = qwenlab.load(CHECKPOINT, dtype="float32", device="cpu")
    began = perf_counter()
    done = json.loads(notes.read_text(encoding="utf-8")) if notes.exists() else {}
    if "before" not in done:
        done["before"] = measure(model, tokenizer, held_out)
        done["tests"] = [on_the_way(model, tokenizer, held_out[:tests], 0)]
    work.parent.mkdir(parents=True, exist_ok=True)
    write_whole(notes, json.dumps(done))
    trained = done["tests"][-1]["step"]
    while trained < steps:
        trained = min(trained + every, steps)
        # A fresh model, because the folder holds what was learned.
        model, tokenizer = qwenlab.load(CHECKPOINT, dtype="float32", device="cpu")
        learn(model, tokenizer, train_set, work, steps=trained, decay_steps=steps, lr=lr, seed=seed)
        done["tests"].append(on_the_way(model, tokenizer, held_out[:tests], trained))
        if trained == steps:
            done["after"] = measure(model, tokenizer, held_out)
        write_whole(notes, json.dumps(done))
        print(f"seed {seed}, step {trained}: {done['tests'][-1]}", file=sys.stderr, flush=True)
    metrics = read_metrics(work)
    history = {name: [] for name in done["tests"][0]}
    for test in done["tests"]:
        for name, values in history.items():
            values.append(test[name])
    kept = {name: [] for name in KEPT}
    for record in metrics:
        for name, values in kept.items():
            values.append(float(f"{record[name]:.4g}"))
    return {
        "seed": seed,
        "lr": lr,
        "problems": len(held_out),
        "before": done["before"],
        "after": done["after"],
        "test_problems": tests,
        "tests": history,
        "metrics": kept,
        "provenance": provenance(model, perf_counter() - began),
    }


def learn(
    model: Model,
    tokenizer: Tokenizer,
    problems: list[Problem],
    folder: Path,
    **options: int | float,
) -> None:
    """Goes on with the run in `folder` and saves it at the last step."""
    grpo(
        model,
        tokenizer,
        problems,
        warm_up=WARM_UP,
        folder=folder,
        save_every=options["steps"],
        progress=True,
        **options,
        **SETTINGS,
    )


def speed(repeats: int) -> dict:
    """Sampled tokens per second of one step's rollouts, at each number of rows."""
    model, tokenizer = qwenlab.load(CHECKPOINT, dtype="float32", device="cpu")
    problems = load_problems("tiny-train", SETTINGS["prompts_per_step"])
    prompts = problem_prompts(tokenizer, problems)
    seeds = [problem.number for problem in problems]
    options = {
        "n": SETTINGS["num_rollouts"],
        "max_new_tokens": SETTINGS["max_new_tokens"],
        "temperature": 1.0,
    }

    def rollouts(rows: int) -> float:
        return qwenlab.generate(
            model, prompts, seed=seeds, slots=rows, **options
        ).stats.tokens_per_second

    began = perf_counter()
    readings = alternate(rollouts, BATCHES, repeats, progress=True)
    table = []
    for rows, rates in readings.items():
        table.append({"rows": rows, **asdict(Spread.of(rates))})
    return {
        "speed": table,
        "repeats": repeats,
        "provenance": provenance(model, perf_counter() - began),
    }


def merge(parts: list[Path]) -> dict:
    """The lesson's file from those of the runs and of the speed."""
    runs = []
    speeds = []
    for path in parts:
        if path.name.endswith(".tests.json"):
            continue
        part = json.loads(path.read_text(encoding="utf-8"))
        (runs if "metrics" in part else speeds).append(part)
    runs.sort(key=lambda run: (run["lr"], run["seed"]))
    (fast,) = speeds
    whole = dict(runs[0]["provenance"])
    whole["command"] += "; each run has its own"
    whole["seconds"] = 0
    for part in [*runs, fast]:
        made = part["provenance"]
        whole["seconds"] += made["seconds"]
        part["provenance"] = {name: made[name] for name in ("command", "machine", "date")}
    return {"provenance": whole, "settings": SETTINGS, "speed": fast, "runs": runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seed", type=int, help="train with this seed")
    what.add_argument("--speed", action="store_true", help="measure the rollouts")
    what.add_argument("--merge", type=Path, nargs="+", metavar="PART", help="merge the parts")
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    parser.add_argument("--steps", type=int, default=400, help="of training")
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--every", type=int, default=10, help="steps between two tests")
    parser.add_argument("--tests", type=int, default=250, help="problems in each of these tests")
    parser.add_argument(
        "--problems", type=int, default=1000, help="problems of the tests before and after"
    )
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    if asked.merge:
        made = merge(asked.merge)
    elif asked.speed:
        made = speed(asked.repeats)
    else:
        made = train(
            asked.out, asked.seed, asked.steps, asked.lr, asked.every, asked.tests, asked.problems
        )
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(asked.out, json.dumps(made) + "\n")
    print(f"wrote {asked.out} ({asked.out.stat().st_size / 1000:.0f} kB)")


if __name__ == "__main__":
    main()
