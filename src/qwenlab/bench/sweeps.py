"""Throughput over batch size, the curve that shows how many rows are worthwhile."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch

from qwenlab.bench.timing import Spread, alternate, in_columns, machine_name
from qwenlab.engine.generation import generate
from qwenlab.engine.results import Stats
from qwenlab.errors import whole
from qwenlab.fast import linear
from qwenlab.model.model import Model


@dataclass(frozen=True)
class Point:
    """One batch size. `tokens_per_second` counts all sampled tokens over the whole run,
    `decode_tokens_per_second` those after the first over the decode steps. `first_token_s` is the
    prefill and `step_s` one decode step, in seconds."""

    batch_size: int
    tokens_per_second: Spread
    decode_tokens_per_second: Spread
    first_token_s: Spread
    step_s: Spread


@dataclass(frozen=True)
class Sweep:
    """The points, and everything needed to repeat them. `print(sweep)` prints a table;
    `sweep.json()` is one line."""

    points: list[Point]
    machine: str
    torch_version: str
    dtype: str
    parameters: int
    prompt_tokens: int
    new_tokens: int
    repeats: int
    kernels: dict[str, str]  # "rows, matrix, dtype, threads": the kernel that computes it

    def __str__(self) -> str:
        table = [["rows", "tokens/s", "decode tokens/s", "first token, ms", "a step, ms"]]
        for p in self.points:
            rates = [f"{p.tokens_per_second:.0f}", f"{p.decode_tokens_per_second:.0f}"]
            table.append([str(p.batch_size), *rates, in_ms(p.first_token_s), in_ms(p.step_s)])
        lines = [
            f"{self.machine}, torch {self.torch_version}",
            f"{self.parameters:,} parameters in {self.dtype}, {self.prompt_tokens} prompt tokens "
            f"and {self.new_tokens} new ones per row",
            f"median of {self.repeats} (lowest–highest)",
            "",
        ]
        return "\n".join(lines + in_columns(table))

    def json(self) -> str:
        """Everything as one line of JSON; in seconds and tokens per second."""
        return json.dumps(asdict(self))


def in_ms(spread: Spread) -> str:
    """Seconds as milliseconds, to three significant digits."""
    ms = Spread(spread.median * 1e3, spread.low * 1e3, spread.high * 1e3)
    return f"{ms:.{0 if ms.median >= 100 else 1 if ms.median >= 10 else 2}f}"


def sweep(
    model: Model,
    batch_sizes: Sequence[int] = (1, 2, 4, 8, 16, 32, 64),
    prompt_tokens: int = 32,
    new_tokens: int = 32,
    *,
    repeats: int = 5,
    warm_up: int = 1,
    seed: int = 0,
    progress: bool = False,
) -> Sweep:
    """Measures generation at each batch size, with prompts of random ids of one length and no stop
    ids.

    Batch sizes take turns, forwards and backwards, so that a machine whose speed drifts cannot
    favour one end. The host waits for the device at every step, so that prefill and decode are
    timed correctly on a GPU too.

    It computes in the model's own dtype, so measure every dtype you consider (`qwenlab bench
    --dtype float32,bfloat16`). A single row mostly waits for the weights, and bfloat16 halves their
    bytes. Many rows mostly multiply, and a CPU without bfloat16 arithmetic has to convert first:
    there the best dtype for one row may be the worst for many.

    Raises ValueError for sizes below 1, fewer than 2 new tokens, or rows longer than the context.
    """
    sizes = distinct(batch_sizes)
    total = whole(prompt_tokens, "prompt_tokens", 1) + whole(new_tokens, "new_tokens", 2)
    limit = model.config.max_position_embeddings
    if total > limit:
        raise ValueError(
            f"{prompt_tokens} prompt tokens and {new_tokens} new ones: "
            f"expected at most {limit} together"
        )
    generator = torch.Generator().manual_seed(seed)
    prompts = torch.randint(
        model.config.vocab_size, (max(sizes), prompt_tokens), generator=generator
    ).tolist()

    def run(size: int) -> Stats:
        return generate(
            model, prompts[:size], max_new_tokens=new_tokens, stop=(), strategy="static", slots=size
        ).stats

    readings = alternate(run, sizes, repeats, warm_up, progress)
    points = []
    for size, stats in readings.items():
        decode_rates = []
        step_seconds = []
        for s in stats:  # the first token of each row comes from its prefill
            decode_rates.append((s.sampled_tokens - size) / s.decode_seconds)
            step_seconds.append(s.decode_seconds / (new_tokens - 1))
        point = Point(
            size,
            Spread.of(s.tokens_per_second for s in stats),
            Spread.of(decode_rates),
            Spread.of(s.prefill_seconds for s in stats),
            Spread.of(step_seconds),
        )
        points.append(point)
    parameters = sum(p.numel() for p in model.parameters())
    dtype = str(model.dtype).removeprefix("torch.")
    about = (
        machine_name(model.device),
        torch.__version__,
        dtype,
        parameters,
        prompt_tokens,
        new_tokens,
        repeats,
    )
    return Sweep(points, *about, linear.record())


def distinct(batch_sizes: Sequence[int]) -> list[int]:
    """The batch sizes as a list; ValueError for one below 1 or above a million, named twice, or
    none at all."""
    sizes = [whole(size, "a batch size", 1, 10**6) for size in batch_sizes]
    if not sizes or len(set(sizes)) != len(sizes):
        raise ValueError(f"batch_sizes is {sizes}, expected at least one size and none twice")
    return sizes
