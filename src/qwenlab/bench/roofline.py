"""The best a machine could do: bytes over measured bandwidth, or arithmetic over its measured rate.

The roofline of Williams, Waterman and Patterson (Communications of the ACM 52(4), 2009), for one
decode step.
"""

from dataclasses import dataclass
from time import perf_counter

import torch

from qwenlab.bench.timing import machine_name
from qwenlab.errors import whole
from qwenlab.model.state import GROWING


@dataclass(frozen=True)
class Machine:
    """What was measured on this machine, in one dtype: bytes read a second, floating-point
    operations a second."""

    name: str
    dtype: str
    bytes_per_second: float
    flops_per_second: float


def measure_machine(dtype: torch.dtype = torch.float32, device="cpu", repeats: int = 20) -> Machine:
    """Reads 256 MiB of memory and multiplies two square matrices, several times; the best of each
    counts.

    The best, not the median: a roof is what can be reached. Reading is tried as a sum and, as
    decoding does it, as a matrix times a vector. Takes a second or two. A GPU gets larger pieces:
    small ones are over before it is busy.
    """
    device = torch.device(device)
    megabytes, side = (256, 1024) if device.type == "cpu" else (4096, 8192)
    memory = torch.ones(megabytes * 2**20 // 4 // side, side, device=device)  # float32
    vector = torch.ones(side, device=device)
    square = torch.ones(side, side, dtype=dtype, device=device)
    reading = min(
        best_seconds(way, device, repeats) for way in (memory.sum, lambda: memory @ vector)
    )
    multiplying = best_seconds(lambda: square @ square, device, repeats)
    return Machine(
        machine_name(device),
        str(dtype).removeprefix("torch."),
        memory.nbytes / reading,
        2 * side**3 / multiplying,
    )


def best_seconds(work, device: torch.device, repeats: int) -> float:
    work()
    return min(clocked(work, device)[0] for _ in range(repeats))


def clocked(work, device: torch.device) -> tuple:
    """How many seconds `work()` takes, and what it returns."""
    synchronise(device)
    began = perf_counter()
    result = work()
    synchronise(device)
    return perf_counter() - began, result


def synchronise(device: torch.device) -> None:
    """A GPU works on after the call returns: wait for it before reading a clock."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def decode_bound(model, machine: Machine, rows: int, context: int) -> tuple[float, float]:
    """Least seconds of one decode step: (to move what it must read and write, to compute what it
    must compute).

    rows at once, `context` tokens behind each. Weights are read once for all rows, keys and values
    once a row. A DeltaNet layer's memory and window are read and written back, once a row, whatever
    the context. A multiplication and an addition count as two operations; a number of the memory
    takes seven: it fades, answers two vectors, takes up one product. Norms and the line of the
    embedding that a row looks up are left out: they are small. The longer of the two is the bound.
    Raises ValueError for a machine that was measured in another dtype than the model computes in.
    """
    whole(rows, "rows", 1)
    whole(context, "context", 0)
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
        )  # a lookup reads one line of the embedding, not all
    full = config.layer_types.count("full_attention")
    cached = 2 * full * config.num_key_value_heads * config.head_dim * context  # numbers a row
    attention = 4 * full * config.num_attention_heads * config.head_dim * context
    kept = [
        (name, t)
        for layer in model.new_state(1).layers
        for name, t in layer.items()
        if name not in GROWING
    ]
    rewritten = 2 * sum(t.nbytes for _, t in kept)  # bytes a row
    recurrence = 7 * sum(t.numel() for name, t in kept if name == "recurrent_state")
    moved = size * (matrices + rows * cached) + rows * rewritten
    compute = rows * (2 * matrices + attention + recurrence)
    return moved / machine.bytes_per_second, compute / machine.flops_per_second
