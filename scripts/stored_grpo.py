"""Make the stored results of lesson 13: `tiny-base` learns by GRPO, and unseen problems say what it
has learned.

One process with one thread a run; as many at a time as there are idle cores. A run that was stopped
goes on when the same command is given again. The files in runs/ and speed.json are parts; the last
command puts them together.

    export OMP_NUM_THREADS=1
    python scripts/stored_grpo.py --seed 0 --minutes 5 --out runs/seed-0.json   # and --seed 1, --seed 2
    python scripts/stored_grpo.py --seed 0 --minutes 1 --lr 3e-3 --out runs/high-lr.json
    python scripts/stored_grpo.py --speed --out runs/speed.json                 # on an idle machine
    python scripts/stored_grpo.py --merge runs/*.json --out src/qwenlab/teach/stored/grpo.json

Minutes are those of training. The accuracies are taken apart from them: on all of tiny-test before
and after, and every few steps on the first of its problems.
"""

import argparse
import json
import sys
from datetime import date
from pathlib import Path
from time import perf_counter

import torch

import qwenlab
from qwenlab.bench.timing import Spread, alternate, machine_name
from qwenlab.evaluation.evaluation import evaluate
from qwenlab.evaluation.problems import load_problems, problem_prompts
from qwenlab.files import write_whole
from qwenlab.training.rl import grpo

CHECKPOINT = "tiny-base"
# As in the lesson.
SETTINGS = {"num_rollouts": 8, "prompts_per_step": 12, "batch_size": 96, "max_new_tokens": 72}
WARM_UP = 10  # steps
LONGEST = 256  # tokens of an answer in a test
SEED = 1000  # of the samples in a test
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


def accuracy(model, tokenizer, problems: list, temperature: float) -> float:
    """Share of the problems that one answer each gets right."""
    options = {
        "batch_size": 128,
        "max_new_tokens": LONGEST,
        "temperature": temperature,
        "seed": SEED,
    }
    return evaluate(model, tokenizer, problems, **options).accuracy


def both(model, tokenizer, problems: list) -> dict[str, float]:
    return {
        "sampled": accuracy(model, tokenizer, problems, 1.0),
        "greedy": accuracy(model, tokenizer, problems, 0.0),
    }


def provenance(model, seconds: float) -> dict:
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
    out: Path, seed: int, minutes: float, lr: float, every: int, tests: int, problems: int
) -> dict:
    """One run: its metrics, its accuracies on the way, and those on `problems` unseen problems
    before and after.

    The training's own folder, and the accuracies so far, stand beside `out`.
    """
    work = out.with_suffix("")
    notes = work.with_name(work.name + ".tests.json")
    held_out, train_set = load_problems("tiny-test", problems), load_problems("tiny-train")
    model, tokenizer = qwenlab.load(CHECKPOINT, dtype="float32", device="cpu")
    began = perf_counter()
    done = json.loads(notes.read_text()) if notes.exists() else {}
    if "before" not in done:
        done["before"] = both(model, tokenizer, held_out)
        done["tests"] = [{"step": 0, **both(model, tokenizer, held_out[:tests])}]
    while True:
        work.parent.mkdir(parents=True, exist_ok=True)
        write_whole(notes, json.dumps(done))
        steps = done["tests"][-1]["step"] + every
        model, tokenizer = qwenlab.load(
            CHECKPOINT, dtype="float32", device="cpu"
        )  # the folder holds what it learned
        options = {
            "steps": steps,
            "minutes": minutes,
            "seed": seed,
            "folder": work,
            "save_every": every,
        }
        metrics = grpo(
            model,
            tokenizer,
            train_set,
            lr=lr,
            warm_up=WARM_UP,
            progress=True,
            **options,
            **SETTINGS,
        )
        if len(metrics) > done["tests"][-1]["step"]:
            done["tests"].append({"step": len(metrics), **both(model, tokenizer, held_out[:tests])})
        print(f"seed {seed}, step {len(metrics)}: {done['tests'][-1]}", file=sys.stderr, flush=True)
        if len(metrics) < steps:
            break
    return {
        "seed": seed,
        "lr": lr,
        "minutes": minutes,
        "problems": len(held_out),
        "before": done["before"],
        "after": both(model, tokenizer, held_out),
        "test_problems": tests,
        "tests": {
            name: [test[name] for test in done["tests"]] for name in ("step", "sampled", "greedy")
        },
        "metrics": {name: [float(f"{record[name]:.4g}") for record in metrics] for name in KEPT},
        "provenance": provenance(model, perf_counter() - began),
    }


def speed(repeats: int) -> dict:
    """Sampled tokens a second of one step's rollouts, so many rows at once."""
    model, tokenizer = qwenlab.load(CHECKPOINT, dtype="float32", device="cpu")
    problems = load_problems("tiny-train", SETTINGS["prompts_per_step"])
    prompts, seeds = problem_prompts(tokenizer, problems), [problem.number for problem in problems]
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
    spreads = {rows: Spread.of(rates) for rows, rates in readings.items()}
    table = [
        {"rows": rows, "median": s.median, "low": s.low, "high": s.high}
        for rows, s in spreads.items()
    ]
    return {
        "speed": table,
        "repeats": repeats,
        "provenance": provenance(model, perf_counter() - began),
    }


def merge(parts: list[Path]) -> dict:
    """The lesson's file from the runs and the speed."""
    found = [
        json.loads(part.read_text()) for part in parts if not part.name.endswith(".tests.json")
    ]
    runs = sorted(
        (part for part in found if "metrics" in part), key=lambda run: (run["lr"], run["seed"])
    )
    (fast,) = [part for part in found if "speed" in part]
    said = runs[0]["provenance"] | {"seconds": sum(part["provenance"]["seconds"] for part in found)}
    said["command"] += "; each run has its own"
    for part in found:
        part["provenance"] = {
            name: part["provenance"][name] for name in ("command", "machine", "date")
        }
    return {"provenance": said, "settings": SETTINGS, "speed": fast, "runs": runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seed", type=int, help="train with this seed")
    what.add_argument("--speed", action="store_true", help="measure the rollouts")
    what.add_argument(
        "--merge", type=Path, nargs="+", metavar="PART", help="put the parts together"
    )
    parser.add_argument("--out", type=Path, required=True, help="the file that is written")
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--every", type=int, default=10, help="steps between two tests")
    parser.add_argument("--tests", type=int, default=250, help="problems of such a test")
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
            asked.out, asked.seed, asked.minutes, asked.lr, asked.every, asked.tests, asked.problems
        )
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(asked.out, json.dumps(made) + "\n")
    print(f"wrote {asked.out} ({asked.out.stat().st_size / 1000:.0f} kB)")


if __name__ == "__main__":
    main()
