"""The four workloads one by one and batched, on this machine, beside figures published for two
other machines.

Each run has a process of its own, so that its peak memory is its own too.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

import psutil
import torch

from qwenlab.bench.roofline import synchronise
from qwenlab.bench.timing import Spread, alternate, in_columns, machine_name
from qwenlab.engine.generation import generate
from qwenlab.errors import QwenlabError, failure, whole

STATUS = Path("/proc/self/status")
GB = 10**9


@dataclass(frozen=True)
class Published:
    """What rasbt/reasoning-from-scratch (GitHub) reports for Qwen3-0.6B: minutes one by one and
    batched on two machines, and gigabytes one by one and batched. A second table there gives 185.4
    and 14.6 minutes (batch 128) for evaluation on the H100."""

    batch: int
    h100: tuple[float, float]
    spark: tuple[float, float]
    gigabytes: tuple[float, float]


PUBLISHED = {
    "evaluation": Published(64, (90.0, 16.0), (174.7, 108.4), (1.8, 23.4)),
    "self-consistency": Published(3, (252.0, 129.0), (340.8, 243.3), (1.8, 2.5)),
    "grpo": Published(4, (68.0, 19.0), (63.7, 23.1), (43.4, 44.9)),
    "distillation": Published(4, (10.9, 9.1), (32.8, 28.2), (8.3, 8.3)),
}


@dataclass(frozen=True)
class Run:
    """One task in one mode. `seconds`: of the work alone. `tokens`: sampled, or trained on.
    `memory`: peak bytes of the process, or of the GPU; `loaded`: the same before the work began."""

    task: str
    batch: int
    seconds: Spread
    tokens: int
    memory: int
    loaded: int


@dataclass(frozen=True)
class Comparison:
    """The runs, two per task, one by one first. `print(comparison)` prints a table; `json()` is one
    line."""

    model: str
    runs: list[Run]
    machine: str
    torch_version: str
    dtype: str
    problems: int
    max_new_tokens: int
    repeats: int

    def __str__(self) -> str:
        head = ["task", "mode", "batch", "memory, GB", "time, s", "gain"]
        table = [[*head, "H100, s", "gain", "DGX Spark, s", "gain", "memory, GB"]]
        for single, batched in zip(self.runs[::2], self.runs[1::2], strict=True):
            theirs = PUBLISHED[single.task]
            for i, run in enumerate((single, batched)):
                ours = [
                    single.task,
                    ("one by one", "batched")[i],
                    str(run.batch),
                    f"{run.memory / GB:.2f}",
                ]
                ours += [f"{run.seconds:.1f}", gain(single.seconds.median, run.seconds.median)]
                for minutes in (theirs.h100, theirs.spark):
                    ours += [f"{60 * minutes[i]:.0f}", gain(minutes[0], minutes[i])]
                table.append([*ours, f"{theirs.gigabytes[i]:.1f}"])
        lines = [
            f"{self.model}: {self.machine}, torch {self.torch_version}, {self.dtype}; median of "
            f"{self.repeats} (lowest–highest)",
            f"{self.problems} problems, at most {self.max_new_tokens} new tokens per answer; a "
            "quarter of the problems for self-consistency and grpo",
            "memory: the peak of the process, or of the GPU; on the right, published: Qwen3-0.6B, "
            f"rasbt/reasoning-from-scratch, evaluation at batch {PUBLISHED['evaluation'].batch}",
        ]
        return "\n".join([*lines, "", *in_columns(table)])

    def json(self) -> str:
        return json.dumps(asdict(self))


def gain(before: float, after: float) -> str:
    return f"{before / after:.1f}x"


def compare_workloads(
    model: str = "tiny",
    problems: int = 128,
    *,
    data: str = "tiny-test",
    tasks: Sequence[str] = tuple(PUBLISHED),
    batch_size: int = 64,
    max_new_tokens: int = 256,
    repeats: int = 1,
    threads: int | None = None,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    progress: bool = False,
) -> Comparison:
    """Times each task one by one and batched, with the same work both ways.

    evaluation answers `problems` problems of `data` greedily, `batch_size` at once.
    self-consistency draws 3 samples for a quarter of them, grpo trains one step on 4 rollouts of
    each of those, and distillation trains an epoch on the model's own answers in steps of 4 rows;
    these three use the batch sizes of the published table. Modes take turns. Loading, the traces
    and a first short answer are not timed. Each run loads its own model, so the checkpoint is not
    changed. `threads`: of each process on a CPU (None: PyTorch's own choice).

    Raises ValueError for an unknown task or a count below 1 (problems: 4), and QwenlabError with
    the message of a run that failed.
    """
    whole(problems, "problems", 4)
    whole(repeats, "repeats", 1)
    whole(batch_size, "batch_size", 2)
    unknown = [task for task in tasks if task not in PUBLISHED]
    if unknown or not tasks:
        raise ValueError(
            f"tasks has {unknown or 'nothing'}, expected some of {', '.join(PUBLISHED)}"
        )
    common = {
        "model": model,
        "problems": problems,
        "data": data,
        "cap": whole(max_new_tokens, "max_new_tokens", 1),
    }
    common |= {
        "dtype": dtype and str(dtype).removeprefix("torch."),
        "device": device and str(device),
    }
    environment = os.environ | {"PYTHONIOENCODING": "utf-8"}
    if threads is not None:
        number = str(whole(threads, "threads", 1))
        environment |= {"OMP_NUM_THREADS": number, "MKL_NUM_THREADS": number}
    cases = []
    for task in tasks:
        cases += [(task, 1), (task, batch_size if task == "evaluation" else PUBLISHED[task].batch)]

    def run(case: tuple[str, int]) -> dict:
        return in_a_process(case, common, environment)

    readings = alternate(run, cases, repeats, warm_up=0, progress=progress)
    runs = []
    for (task, batch), reports in readings.items():
        seconds = Spread.of(report["seconds"] for report in reports)
        memory = max(report["memory"] for report in reports)
        runs.append(Run(task, batch, seconds, reports[0]["tokens"], memory, reports[0]["loaded"]))
    about = next(iter(readings.values()))[0]
    return Comparison(
        model,
        runs,
        about["machine"],
        torch.__version__,
        about["dtype"],
        problems,
        max_new_tokens,
        repeats,
    )


def in_a_process(case: tuple[str, int], common: dict, environment: dict[str, str]) -> dict:
    """What `work` reports of a task at a batch size. Raises QwenlabError with the last line that
    the process printed."""
    asked = json.dumps(common | dict(zip(("task", "batch"), case, strict=True)))
    program = "from qwenlab.bench.workloads import report; report()"
    command = [sys.executable, "-c", program, asked]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, encoding="utf-8")
    if run.returncode:
        lines = run.stderr.strip().splitlines() or [f"status {run.returncode}"]
        error = QwenlabError(f"{case[0]} at batch {case[1]}: {lines[-1].removeprefix('qwenlab: ')}")
        raise error if run.returncode == error.status else failure(error)
    return json.loads(run.stdout.splitlines()[-1])


def work(
    *,
    task: str,
    batch: int,
    model: str,
    problems: int,
    data: str,
    cap: int,
    dtype: str | None,
    device: str | None,
) -> dict:
    """One task at one batch size in this process: seconds, tokens, and bytes of memory, both before
    and at the peak."""
    from qwenlab.evaluation import evaluate, load_problems, self_consistency
    from qwenlab.evaluation.problems import problem_prompts
    from qwenlab.loading import load_with_tokenizer
    from qwenlab.training import distill, grpo
    from qwenlab.training.traces import Trace

    dtype = dtype or ("float32" if task in ("grpo", "distillation") else None)
    network, tokenizer = load_with_tokenizer(model, dtype, device)
    asked = load_problems(data, limit=problems)
    few = asked[: len(asked) // 4]
    traces = []
    prompts = problem_prompts(tokenizer, asked)
    if task == "distillation":
        answers = generate(network, prompts, max_new_tokens=cap, slots=16)
        for problem, request in zip(asked, answers, strict=True):
            traces.append(Trace(problem, tokenizer.decode(request.token_ids) or "?"))
    generate(network, prompts[:batch], max_new_tokens=2)
    synchronise(network.device)
    loaded = peak_memory(network.device)
    began = perf_counter()
    match task:
        case "evaluation":
            done = evaluate(network, tokenizer, asked, batch_size=batch, max_new_tokens=cap)
            tokens = done.sampled_tokens
        case "self-consistency":
            done = self_consistency(
                network, tokenizer, few, samples=3, batch_size=batch, max_new_tokens=cap
            )
            tokens = done.evaluation.sampled_tokens
        case "grpo":
            options = {"num_rollouts": 4, "prompts_per_step": len(few), "max_new_tokens": cap}
            (record,) = grpo(network, tokenizer, few, steps=1, lr=1e-6, batch_size=batch, **options)
            tokens = round(record["length"] * 4 * len(few))
        case "distillation":
            done = distill(network, tokenizer, traces, batch_size=4, micro_batch=batch, held_out=0)
            tokens = sum(record["tokens"] for record in done.metrics)
    synchronise(network.device)
    seconds = perf_counter() - began
    about = {
        "machine": machine_name(network.device),
        "dtype": str(network.dtype).removeprefix("torch."),
    }
    return about | {
        "seconds": seconds,
        "tokens": tokens,
        "memory": peak_memory(network.device),
        "loaded": loaded,
    }


def peak_memory(device: torch.device) -> int:
    """Peak bytes so far: on a GPU those that PyTorch reserved there, else those of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    if STATUS.exists():  # getrusage may give the figure of the process that started this one
        return int(re.search(r"VmHWM:\s*(\d+) kB", STATUS.read_text(encoding="utf-8"))[1]) * 1024
    memory = psutil.Process().memory_info()
    if hasattr(memory, "peak_wset"):  # Windows
        return memory.peak_wset
    import resource  # a Mac, which counts bytes

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def report() -> None:
    """The child's side of `in_a_process`: prints a line of JSON, or a line with what is wrong."""
    try:
        print(json.dumps(work(**json.loads(sys.argv[1]))))
    except (ValueError, MemoryError, torch.OutOfMemoryError) as problem:
        print("qwenlab:", " ".join(str(problem).split()) or type(problem).__name__, file=sys.stderr)
        sys.exit(getattr(problem, "status", 2) if isinstance(problem, ValueError) else 1)
