"""Makes the stored measurements of the page on the four workloads: src/qwenlab/teach/stored/
batches.json.

How fast the tiny model generates with ever more rows, what pads cost, and what four rows gain in
training and in generating. On an otherwise idle machine:

    OMP_NUM_THREADS=1 python scripts/stored_batches.py --out src/qwenlab/teach/stored/batches.json
"""

import argparse
import copy
import json
import sys
from datetime import date
from pathlib import Path
from time import perf_counter

import psutil
import torch

import qwenlab
from qwenlab.bench import sweep
from qwenlab.bench.timing import alternate, machine_name
from qwenlab.evaluation.problems import load_problems, problem_prompts
from qwenlab.files import write_whole
from qwenlab.model.model import Model
from qwenlab.text.tokenizer import Tokenizer
from qwenlab.training.distillation import cut, mean_loss
from qwenlab.training.traces import Row

MODEL = "tiny"
ROWS = (16, 32, 64, 128, 256, 512, 1024)  # of the sweep
PROMPT = 32  # tokens of its prompts
NEW = 32  # tokens that each row gets, everywhere
PADDED = 64  # rows of which the pads are measured
TRAINED = 4  # rows of a training step, as in the published table
REPEATS = 5


def generating(model: Model, prompts: list[list[int]], slots: int) -> float:
    """Seconds for NEW tokens of each prompt."""
    began = perf_counter()
    qwenlab.generate(model, prompts, max_new_tokens=NEW, stop=(), strategy="static", slots=slots)
    return perf_counter() - began


def pads(model: Model, prompts: list[list[int]]) -> dict:
    """PADDED prompts of different lengths beside equally long ones with as many tokens."""
    different = prompts[:PADDED]
    ids = [token for prompt in different for token in prompt]
    width = len(ids) // PADDED
    equal = [ids[start : start + width] for start in range(0, PADDED * width, width)]
    batches = {"equal": equal, "different": different}
    took = alternate(lambda kind: generating(model, batches[kind], PADDED), list(batches), REPEATS)
    longest = max(map(len, different))
    share = 1 - len(ids) / (PADDED * longest)
    return took | {"rows": PADDED, "pad_share": share}


def rows_of_four(model: Model, prompts: list[list[int]]) -> dict:
    """Four rows in training and in generating, one by one and together; in training, NEW tokens of
    a row count, as many as are generated."""
    learner = copy.deepcopy(model).requires_grad_(True)
    asked = prompts[:TRAINED]
    answers = qwenlab.generate(model, asked, max_new_tokens=NEW, stop=()).token_ids
    rows = []
    for prompt, answer in zip(asked, answers, strict=True):
        rows.append(Row([*prompt, *answer], len(prompt)))

    def seconds(case: tuple[str, str]) -> float:
        what, way = case
        size = TRAINED if way == "together" else 1
        if what == "generating":
            return generating(model, asked, size)
        began = perf_counter()
        mean_loss(learner, cut(rows, size), 0)
        learner.zero_grad()
        return perf_counter() - began

    found = {"rows": TRAINED}
    cases = [(w, way) for w in ("training", "generating") for way in ("one by one", "together")]
    for (what, way), readings in alternate(seconds, cases, REPEATS).items():
        found.setdefault(what, {})[way] = readings
    return found


def measured(model: Model, tokenizer: Tokenizer) -> dict:
    prompts = problem_prompts(tokenizer, load_problems("tiny-test", limit=PADDED))
    points = json.loads(sweep(model, ROWS, PROMPT, NEW, repeats=REPEATS).json())["points"]
    return {
        "provenance": {
            "machine": machine_name(model.device),
            "torch": torch.__version__,
            "dtype": str(model.dtype).removeprefix("torch."),
            "model": MODEL,
            "repeats": REPEATS,
            "load": f"{psutil.getloadavg()[0]:.1f} on {psutil.cpu_count()} cores",
            "command": " ".join(["python", "scripts/stored_batches.py", *sys.argv[1:]]),
            "date": date.today().isoformat(),
        },
        "memory": psutil.virtual_memory().total,
        "context": PROMPT + NEW,
        "sweep": points,
        "pads": pads(model, prompts),
        "rows_of_four": rows_of_four(model, prompts),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    model, tokenizer = qwenlab.load(MODEL, dtype="float32")
    write_whole(asked.out, json.dumps(measured(model, tokenizer)).encode())


if __name__ == "__main__":
    main()
