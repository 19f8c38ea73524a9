"""Records run folders of the first edition, interrupted and complete: tests/recordings/runs.

Two random models of some thousand parameters, one per family, evaluate, vote, and learn by GRPO and
by distillation. Each task runs twice: to its end, and until it is interrupted. Later code must
finish an interrupted run as the first edition did, so the folders are not made again. Each recorded
model keeps the first edition's tokenizer beside it; a model that is made now gets today's.

    OMP_NUM_THREADS=1 python scripts/stored_runs.py --out tests/recordings/runs
"""

import argparse
import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from stored_workloads import DENSE, HYBRID, make_model

import qwenlab
from qwenlab.evaluation import evaluate, load_problems, self_consistency
from qwenlab.training import distill, grpo, load_traces

SMALL = {
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 256,
}
SMALL_HYBRID = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 4,
    "linear_value_head_dim": 6,
}
FAMILIES = {"dense": {**DENSE, **SMALL}, "hybrid": {**HYBRID, **SMALL, **SMALL_HYBRID}}
LOUD = 5  # embeddings this many times larger make random answers of digits and stop ids
PROBLEMS = 6
GRPO_STEPS = 6
TORN = '{"step": 3, "rew'  # what a kill may leave of a line
# What is counted while a run is at work, and where it is interrupted.
TASKS = {
    "evaluate": ("records.jsonl", 3),
    "vote": ("records.jsonl", 7),
    "grpo": ("metrics.jsonl", 3),
    "distill": ("metrics.jsonl", 4),
}


def run(
    task: str,
    family: str,
    runs: Path,
    folder: Path,
    interrupt: Callable[[], None] | None = None,
) -> Any:
    """Runs `task` in `folder`, or resumes it there; `interrupt()` is called before each forward
    pass.

    `runs` has the models and the data. Returns what the task returns.
    """
    torch.set_num_threads(1)  # a training's folder names its threads
    model, tokenizer = qwenlab.load(runs / f"model-{family}", torch.float32, "cpu")
    if interrupt is not None:
        model.register_forward_pre_hook(lambda module, arguments: interrupt())
    if task == "distill":
        traces = load_traces(runs / "traces.jsonl")
        options = {"epochs": 2, "batch_size": 3, "lr": 1e-2, "held_out": 3, "seed": 1}
        return distill(model, tokenizer, traces, folder=folder, **options)
    problems = load_problems(runs / f"problems-{family}.jsonl", instruction="")
    answers = {"max_new_tokens": 2, "folder": folder}
    if task == "evaluate":
        return evaluate(model, tokenizer, problems, batch_size=2, temperature=0.8, **answers)
    if task == "vote":
        return self_consistency(model, tokenizer, problems, samples=4, batch_size=3, **answers)
    options = {"num_rollouts": 4, "prompts_per_step": 3, "batch_size": 4, "lr": 1e-3, "seed": 2}
    options |= {"steps": GRPO_STEPS, "save_every": 2}
    return grpo(model, tokenizer, problems, **options, **answers)


class Interrupt:
    """A single Ctrl-C, as soon as a file has `lines` lines."""

    def __init__(self, path: Path, lines: int) -> None:
        self.path = path
        self.lines = lines
        self.done = False

    def __call__(self) -> None:
        if self.done or not self.path.exists():
            return
        if self.path.read_text(encoding="utf-8").count("\n") >= self.lines:
            self.done = True
            signal.raise_signal(signal.SIGINT)


class Kill(Interrupt):
    """The same without finishing the step or saving anything."""

    def __call__(self) -> None:
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            super().__call__()
        finally:
            signal.signal(signal.SIGINT, before)


def write_model(family: str, folder: Path) -> None:
    """A random model of this family with the tokenizer of the shipped ones."""
    folder.mkdir(parents=True)
    model, tokenizer = qwenlab.load("tiny", "float32", "cpu")
    stop_ids = sorted(model.stop_ids)
    config = FAMILIES[family] | {"vocab_size": tokenizer.vocab_size, "eos_token_id": stop_ids}
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(model.folder / name, folder / name)
    (folder / "config.json").write_text(
        json.dumps(config, indent=2) + "\n", encoding="utf-8", newline="\n"
    )
    stops = {"eos_token_id": stop_ids}
    (folder / "generation_config.json").write_text(
        json.dumps(stops) + "\n", encoding="utf-8", newline="\n"
    )
    tensors = dict(make_model(config).named_parameters())
    tensors["model.embed_tokens.weight"][digit_ids(folder) + stop_ids] *= LOUD
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    os.chmod(folder / "model.safetensors", 0o644)


def digit_ids(folder: Path) -> list[int]:
    vocabulary = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"][
        "vocab"
    ]
    return [vocabulary[digit] for digit in "0123456789"]


def write_problems(family: str, runs: Path) -> None:
    """Problems that the model sometimes gets right, because GRPO would learn nothing otherwise."""
    model, tokenizer = qwenlab.load(runs / f"model-{family}", torch.float32, "cpu")
    asked = load_problems("tiny-train", 120)
    samples = 24
    options = {"samples": samples, "temperature": 1.0, "max_new_tokens": 2, "seed": 9}
    records = evaluate(model, tokenizer, asked, **options).records
    lines = []
    for place, problem in enumerate(asked):
        own = records[place * samples : (place + 1) * samples]
        answers = Counter(record["answer"] for record in own if record["answer"] is not None)
        answer, count = answers.most_common(1)[0] if answers else ("", 0)
        if 0.15 * samples <= count <= 0.7 * samples:
            lines.append(json.dumps({"problem": problem.problem, "answer": answer}))
    if len(lines) < PROBLEMS:
        raise SystemExit(f"{family}: {len(lines)} usable problems, expected at least {PROBLEMS}")
    text = "\n".join(lines[:PROBLEMS]) + "\n"
    (runs / f"problems-{family}.jsonl").write_text(text, encoding="utf-8", newline="\n")


def write_traces(runs: Path) -> None:
    lines = []
    for problem in load_problems("tiny-train", 18):
        content = f"\\boxed{{{problem.answer}}}"
        trace = {"problem": problem.problem, "message_content": content, "instruction": ""}
        lines.append(json.dumps(trace) + "\n")
    (runs / "traces.jsonl").write_text("".join(lines), encoding="utf-8", newline="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    out.mkdir(parents=True)
    out = out.resolve()
    os.chdir(out)  # so that a summary names the model by a path without this machine's folders
    here = Path()
    write_traces(here)
    for family in FAMILIES:
        write_model(family, here / f"model-{family}")
        write_problems(family, here)
        for task, (name, lines) in TASKS.items():
            run(task, family, here, here / f"{task}-{family}-complete")
            half = here / f"{task}-{family}-interrupted"
            kind = Interrupt if task == "distill" else Kill
            try:
                run(task, family, here, half, kind(half / name, lines))
            except KeyboardInterrupt:
                pass
            else:
                raise SystemExit(f"{half}: was not interrupted")
            if task in ("evaluate", "grpo"):
                with (half / name).open("a", encoding="utf-8", newline="\n") as file:
                    file.write(TORN)
            print(half, (half / name).read_text(encoding="utf-8").count("\n"), "lines")
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    print(f"{out}: {size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
