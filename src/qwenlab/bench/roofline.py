"""The best a machine could do: bytes over its measured bandwidth, or arithmetic over its measured
rate.

This is the roofline of Williams, Waterman and Patterson (Communications of the ACM 52(4), 2009) for
one decode step, whose bytes are counted as by Pope et al. (arXiv:2211.05102).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from time import perf_counter
from typing import Any

import torch

from qwenlab.bench.timing import machine_name
from qwenlab.errors import whole
from qwenlab.model.config import Config
from qwenlab.model.model import Model
from qwenlab.model.state import GROWING
from qwenlab.model.weights import without_storage


@dataclass(frozen=True)
class Machine:
    """What this machine was measured to do in one dtype: bytes read per second, floating-point
    operations per second."""

    name: str
    dtype: str
    bytes_per_second: float
    flops_per_second: float


def measure_machine(
    dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu", repeats: int = 20
) -> Machine:
    """Reads 256 MiB of memory and multiplies two square matrices, `repeats` times, and keeps the
    best time of each.

    The best and not the median, because a roof is what can be reached. Reading is tried as a sum
    and, as in decoding, as a matrix times a vector. This takes a second or two. A GPU gets larger
    inputs, because small ones are done before it is busy.
    """
    device = torch.device(device)
    megabytes = 256 if device.type == "cpu" else 4096
    side = 1024 if device.type == "cpu" else 8192
    memory = torch.ones(megabytes * 2**20 // 4 // side, side, device=device)  # float32
    vector = torch.ones(side, device=device)
    square = torch.ones(side, side, dtype=dtype, device=device)
    summing = best_seconds(memory.sum, device, repeats)
    by_vector = best_seconds(lambda: memory @ vector, device, repeats)
    multiplying = best_seconds(lambda: square @ square, device, repeats)
    return Machine(
        machine_name(device),
        str(dtype).removeprefix("torch."),
        memory.nbytes / min(summing, by_vector),
        2 * side**3 / multiplying,
    )


def best_seconds(work: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """The least seconds of `repeats` calls of `work`, after one untimed."""
    work()
    return min(clocked(work, device)[0] for _ in range(repeats))


def clocked(work: Callable[[], Any], device: torch.device) -> tuple[float, Any]:
    """The seconds that `work()` takes, and its result."""
    synchronise(device)
    began = perf_counter()
    result = work()
    synchronise(device)
    return perf_counter() - began, result


def synchronise(device: torch.device) -> None:
    """Waits for a GPU, which goes on working after a call returns, before a clock is read."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def decode_bound(
    model_or_config: Model | Config, machine: Machine, rows: int, context: int
) -> tuple[float, float]:
    """The least seconds of one decode step: (for the bytes it must move, for the arithmetic it must
    do). The longer of the two is the bound.

    model_or_config: a model, or the Config of one that computes in the machine's dtype. `rows` rows
    at once with `context` tokens each. Weights are read once for all rows, keys and values once per
    row. A DeltaNet layer's conv_state and recurrent_state are read and written back once per row,
    whatever the context. A multiplication and an addition count as two operations; a number of the
    recurrent_state takes seven, for the decay, two products with vectors and one update. Norms and
    the embedding looked up for a row are left out, because they are small.

    Raises ValueError for a machine measured in another dtype than the model computes in.
    """
    whole(rows, "rows", 1)
    whole(context, "context", 0)
    model = model_or_config
    if isinstance(model, Config):
        model = shape_of(model, machine.dtype)
    dtype = str(model.dtype).removeprefix("torch.")
    if machine.dtype != dtype:
        raise ValueError(
            f"the machine was measured in {machine.dtype}, the model computes in {dtype}"
        )
    config = model.config
    size = model.dtype.itemsize
    matrices = sum(p.numel() for p in model.parameters() if p.ndim == 2)
    if not config.tie_word_embeddings:
        matrices -= (
            config.vocab_size * config.hidden_size
        )  # a lookup reads one line of the embedding
    full = config.layer_types.count("full_attention")
    cached = 2 * full * config.num_key_value_heads * config.head_dim * context  # numbers per row
    attention = 4 * full * config.num_attention_heads * config.head_dim * context
    rewritten = 0  # bytes per row
    recurrence = 0  # operations per row
    for layer in model.new_state(1).layers:
        for name, tensor in layer.items():
            if name not in GROWING:
                rewritten += 2 * tensor.nbytes
            if name == "recurrent_state":
                recurrence += 7 * tensor.numel()
    moved = size * (matrices + rows * cached) + rows * rewritten
    compute = rows * (2 * matrices + attention + recurrence)
    return moved / machine.bytes_per_second, compute / machine.flops_per_second


@cache
def shape_of(config: Config, dtype: str) -> Model:
    """A model without storage, whose parameters can be counted."""
    with without_storage():
        return Model(config).to(getattr(torch, dtype))
