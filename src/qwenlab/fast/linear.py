"""A few rows times a matrix, by whichever kernel is fastest for so many rows on this machine.

A processor has several ways to compute the same product, and some take more than twice the time for
four rows that they take for one: then batching seems to lose. So when rows of a number first meet a
matrix of a shape, each way is tried for some milliseconds and the quickest is kept. `F.linear` is
the reference, which gradients and GPUs always use. The ways differ in the last bits only.

The environment variable QWENLAB_LINEAR = linear, turned, shared or onednn forces one; with linear
nothing is measured. `table()` tells what was chosen.
"""

import os
from time import perf_counter

import torch
import torch.nn.functional as F
from torch import Tensor

STEPS = (2, 3, 4, 8, 16, 32, 64)  # numbers of rows; those between count as the next
MOST = 256  # rows: up to here they count as the last step, beyond it the ways hardly differ
COLD = (
    64 * 2**20
)  # bytes, more than caches hold: a large model's matrix has left them when its turn comes again
SMALL = 2**20  # bytes: a matrix below belongs to a model that stays in the caches
SECONDS = 20e-3  # for one number of rows and one shape
GAIN = 0.95  # another way must take at most this share of the reference's time


def turned(x: Tensor, weight: Tensor) -> Tensor:
    """The matrix first: another kernel of the same library."""
    return (weight @ x.T).T.contiguous()


def shared(x: Tensor, weight: Tensor) -> Tensor:
    """The rows shared out among the threads, as one batch of smaller products:
    small matrices gain."""
    rows = len(x)
    parts = max(1, min(torch.get_num_threads(), rows // 2))
    if rows % parts:
        x = F.pad(x, (0, 0, 0, -rows % parts))
    out = torch.bmm(x.view(parts, -1, x.shape[1]), weight.T.expand(parts, -1, -1)).view(
        -1, len(weight)
    )
    return out[:rows] if rows % parts else out


def onednn(x: Tensor, weight: Tensor) -> Tensor:
    """By oneDNN, as in compiled models, where PyTorch's own choice is MKL."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")


KERNELS = {"linear": F.linear, "turned": turned, "shared": shared}
if torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise"):
    KERNELS["onednn"] = onednn

chosen: dict[str, str] = {}  # what `describe` says of rows and matrix: the kernel's name
known: dict[tuple, str] = {}  # the same by what is quick to look up


def forced() -> str | None:
    """The kernel that QWENLAB_LINEAR names. Raises ValueError for one that is not there."""
    name = os.environ.get("QWENLAB_LINEAR") or None
    if name is not None and name not in KERNELS:
        raise ValueError(f"QWENLAB_LINEAR is {name!r}, expected one of {', '.join(KERNELS)}")
    return name


def product(x: Tensor, weight: Tensor) -> Tensor:
    """x (..., K) times weight (N, K) to (..., N), for inference on a CPU."""
    rows = x.numel() // x.shape[-1]
    key = (rows, weight.shape, weight.dtype, torch.get_num_threads())
    name = known.get(key)
    if name is None:
        name = known[key] = choose(rows, weight)
    if name == "linear" or x.dim() == 2:
        return KERNELS[name](x, weight)
    out = KERNELS[name](x.reshape(rows, -1), weight)  # (rows, N)
    return out.view(*x.shape[:-1], -1)


def choose(rows: int, weight: Tensor) -> str:
    """The kernel's name for so many rows of this matrix: forced, chosen before, or measured now."""
    if weight.device.type != "cpu":
        return "linear"
    if forced():
        return forced()
    if rows == 1 or rows > MOST:
        return "linear"
    rows = next((step for step in STEPS if step >= rows), STEPS[-1])
    what = describe(rows, weight)
    if what not in chosen:
        chosen[what] = measure(rows, weight)
    return chosen[what]


def describe(rows: int, weight: Tensor) -> str:
    outputs, inputs = weight.shape
    dtype = str(weight.dtype).removeprefix("torch.")
    return f"{rows} rows, {outputs} x {inputs}, {dtype}, {torch.get_num_threads()} threads"


def measure(rows: int, weight: Tensor) -> str:
    """Tries the kernels in turn on matrices of ones, of `weight`'s shape (at most a quarter of COLD
    large)."""
    outputs = min(len(weight), COLD // 4 // (weight.shape[1] * weight.itemsize) or 1)
    size = outputs * weight.shape[1] * weight.itemsize
    matrices = weight.new_ones(1 if size < SMALL else COLD // size, outputs, weight.shape[1])
    x = weight.new_ones(rows, weight.shape[1])
    seconds = {name: [] for name in KERNELS}
    began = perf_counter()
    calls = 0
    while calls < 4 * len(KERNELS) or (
        perf_counter() - began < SECONDS and calls < 20 * len(KERNELS)
    ):
        name = list(KERNELS)[calls % len(KERNELS)]
        start = perf_counter()
        try:
            KERNELS[name](x, matrices[calls % len(matrices)])
            seconds[name].append(perf_counter() - start)
        except RuntimeError:  # a kernel that doesn't know this dtype or machine
            seconds[name].append(float("inf"))
        calls += 1
    least = {
        name: min(times) for name, times in seconds.items()
    }  # others on the machine only ever add
    best = min(least, key=least.get)
    return best if least[best] < GAIN * least["linear"] else "linear"


def table() -> str:
    """What was chosen so far in this process: a line for every matrix, a column for every number of
    rows."""
    if forced():
        return f"{forced()}, forced by QWENLAB_LINEAR"
    matrices: dict[str, dict[str, str]] = {}
    for what, name in chosen.items():
        rows, matrix = what.split(" rows, ")
        matrices.setdefault(matrix, {})[rows] = name
    lines = [f"{'rows':36}" + "".join(f"{step:>8}" for step in STEPS)]
    for matrix, names in matrices.items():
        lines.append(f"{matrix:36}" + "".join(f"{names.get(str(step), '-'):>8}" for step in STEPS))
    return "\n".join(lines)


def record() -> dict[str, str]:
    """The same for a program: what a timing keeps beside its figures."""
    return {"forced": forced()} if forced() else dict(chosen)
