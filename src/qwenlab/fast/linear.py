"""A few rows times a matrix, by whichever kernel is fastest for that many rows on this machine.

A CPU has several ways to compute the same product. Some take more than twice as long for four rows
as for one, so that batching seems to lose, and some read the matrix of a single row at less than
half the memory's speed. Therefore, when a number of rows first meets a matrix of a given shape,
each kernel is timed for some milliseconds and the fastest is kept. `F.linear` is the reference,
which gradients and GPUs always use.

**What this means for results.** Kernels differ in the last bits only, but the choice is made by the
clock, so two processes may choose differently, and a run that is resumed may differ from an
uninterrupted one in the last bit of a log-probability (greedy ids and finish reasons don't, but for
exact ties). Where that matters, set the environment variable QWENLAB_LINEAR to linear, transposed,
shared, onednn or by_row before the first call: it forces one kernel for every product, and nothing
is measured. Training does so by itself (`forced_to`). `table()` shows what was chosen, and
`record()` gives it to a program: `bench` stores it with its timings.
"""

import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import perf_counter

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import TMonitor

from qwenlab.fast.packed import Packed, packed_product, reordered

ROW_COUNTS = (1, 2, 3, 4, 8, 16, 32, 64)  # those measured; the counts between them use the next
MAX_ROWS = 256  # up to here the last measurement counts; beyond it the kernels hardly differ
# More than caches hold: a large model's matrix has left them when its turn comes again.
COLD_BYTES = 64 * 2**20
SMALL_BYTES = 2**20  # a smaller matrix belongs to a model that stays in the caches
MEASURE_SECONDS = 20e-3  # for one number of rows and one shape
MAX_SHARE = 0.95  # another kernel must take at most this share of the reference's time


def measured_for(rows: int) -> int:
    """The number of rows whose measurement counts for `rows`; 0 where nothing is measured."""
    if rows < 1 or rows > MAX_ROWS:
        return 0
    for count in ROW_COUNTS:
        if count >= rows:
            return count
    return ROW_COUNTS[-1]


BLOCKS_UP_TO = 4  # rows
MEASURED_FOR = [measured_for(rows) for rows in range(MAX_ROWS + 1)]


def transposed(x: Tensor, weight: Tensor) -> Tensor:
    """(W x^T)^T: the matrix comes first, which is another kernel of the same library. For a few
    rows it comes in blocks, as one batch of smaller products, because then the threads share out
    even the product with a single row; for more, each block would prepare x anew."""
    if len(x) > BLOCKS_UP_TO:
        return (weight @ x.T).T.contiguous()
    blocks = math.gcd(len(weight), 4 * torch.get_num_threads())
    matrices = weight.view(blocks, -1, weight.shape[1])  # (blocks, N / blocks, K)
    out = torch.bmm(matrices, x.T.expand(blocks, -1, -1))  # (blocks, N / blocks, rows)
    return out.view(len(weight), len(x)).T.contiguous()


def shared(x: Tensor, weight: Tensor) -> Tensor:
    """The rows shared out among the threads, as one batch of smaller products: faster for small
    matrices."""
    rows = len(x)
    parts = max(1, min(torch.get_num_threads(), rows // 2))
    if rows % parts:
        x = F.pad(x, (0, 0, 0, -rows % parts))
    x = x.view(parts, -1, x.shape[1])  # (parts, rows / parts, K)
    out = torch.bmm(x, weight.T.expand(parts, -1, -1))  # (parts, rows / parts, N)
    return out.view(-1, len(weight))[:rows]


def onednn(x: Tensor, weight: Tensor) -> Tensor:
    """By oneDNN, as in compiled models, where PyTorch's own choice is MKL."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")


def by_row(x: Tensor, weight: Tensor) -> Tensor:
    """Each row as a vector, by PyTorch's own kernel, which in bfloat16 reads more than twice as
    fast as oneDNN's. It is taken only while oneDNN is switched off, in the whole process, and so
    not where another thread might notice: then F.linear computes."""
    if others_might_compute():
        return F.linear(x, weight)
    before = torch._C._get_mkldnn_enabled()
    try:
        torch._C._set_mkldnn_enabled(False)
        return torch.stack([torch.mv(weight, row) for row in x])
    finally:
        torch._C._set_mkldnn_enabled(before)


def others_might_compute() -> bool:
    """Whether there is another thread of Python. The one that redraws tqdm's bars doesn't count."""
    if threading.active_count() == 1:
        return False
    return sum(not isinstance(thread, TMonitor) for thread in threading.enumerate()) > 1


BY_ROW_AT_MOST = 2  # more rows would read the matrix too often
KERNELS = {"linear": F.linear, "transposed": transposed, "shared": shared, "by_row": by_row}
if torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise"):
    KERNELS["onednn"] = onednn

chosen: dict[str, str] = {}  # the kernel's name by what `describe` says of rows and matrix
known: dict[tuple, str] = {}  # the same by what is quick to look up
forcing: ContextVar[str | None] = ContextVar("forcing", default=None)


def forced() -> str | None:
    """The kernel that `forced_to` or QWENLAB_LINEAR names. Raises ValueError if it is not there."""
    name = forcing.get() or os.environ.get("QWENLAB_LINEAR") or None
    if name is not None and name not in KERNELS:
        raise ValueError(f"QWENLAB_LINEAR is {name!r}, expected one of {', '.join(KERNELS)}")
    return name


@contextmanager
def forced_to(name: str) -> Iterator[None]:
    """Inside, this kernel computes every product of this thread, and nothing is measured."""
    before = forcing.set(name)
    try:
        yield
    finally:
        forcing.reset(before)


def product(x: Tensor, weight: Tensor) -> Tensor:
    """x (..., K) times weight (N, K) to (..., N); F.linear where a gradient is needed."""
    if x.requires_grad or (weight.requires_grad and torch.is_grad_enabled()):
        return F.linear(x, weight)
    shape = weight.shape
    rows = x.numel() // shape[1]
    measured = MEASURED_FOR[rows] if rows <= MAX_ROWS else 0
    packed = packed_copy(weight) if rows > 1 else None  # one row reads faster without
    key = (measured, shape, weight.dtype, torch.get_num_threads(), packed is None)
    name = forcing.get() or known.get(key)
    if name is None:
        name = known[key] = choose(rows, weight, packed)
    if name == "packed":
        return packed.product(x.reshape(rows, -1)).view(*x.shape[:-1], -1)
    if name == "linear" or x.dim() == 2:
        return KERNELS[name](x, weight)
    out = KERNELS[name](x.reshape(rows, -1), weight)  # (rows, N)
    return out.view(*x.shape[:-1], -1)


def packed_copy(weight: Tensor) -> Packed | None:
    """What `fast.pack` has put beside the weight; dropped if the weight isn't the same any more."""
    packed = weight.__dict__.get("packed")
    if packed is None or packed.stands_for(weight):
        return packed
    weight.__dict__.pop("packed", None)  # another thread may have been first
    return None


def choose(rows: int, weight: Tensor, packed: Packed | None = None) -> str:
    """The kernel for that many rows of this matrix, by name: forced, chosen before, or measured."""
    if weight.device.type != "cpu":
        return "linear"
    if forced():
        return forced()
    rows = measured_for(rows)
    if rows == 0:
        return "linear"
    what = describe(rows, weight) + (", packed" if packed else "")
    if what not in chosen:
        chosen[what] = measure(rows, weight, packed is not None)
    return chosen[what]


def describe(rows: int, weight: Tensor) -> str:
    outputs, inputs = weight.shape
    dtype = str(weight.dtype).removeprefix("torch.")
    return f"{rows} rows, {outputs} x {inputs}, {dtype}, {torch.get_num_threads()} threads"


def measure(rows: int, weight: Tensor, with_packed: bool = False) -> str:
    """Times the kernels in turn on matrices of ones, of `weight`'s shape but at most a quarter of
    COLD_BYTES large, and returns the fastest one's name."""
    outputs = min(len(weight), COLD_BYTES // 4 // (weight.shape[1] * weight.itemsize) or 1)
    size = outputs * weight.shape[1] * weight.itemsize
    copies = 1 if size < SMALL_BYTES else COLD_BYTES // size
    matrices = weight.new_ones(copies, outputs, weight.shape[1])
    x = weight.new_ones(rows, weight.shape[1])
    names = [name for name in KERNELS if name != "by_row" or by_row_may_gain(rows, weight)]
    packed = [reordered(matrix) for matrix in matrices] if with_packed else []
    if packed:
        names.append("packed")
    seconds = {name: [] for name in names}
    began = perf_counter()
    calls = 0
    while calls < 4 * len(names) or (
        perf_counter() - began < MEASURE_SECONDS and calls < 20 * len(names)
    ):
        name = names[calls % len(names)]
        start = perf_counter()
        try:
            if name == "packed":
                packed_product(x, packed[calls % len(packed)])
            else:
                KERNELS[name](x, matrices[calls % len(matrices)])
            seconds[name].append(perf_counter() - start)
        except RuntimeError:  # a kernel that doesn't know this dtype or machine
            seconds[name].append(float("inf"))
        calls += 1
    # The least of each, because other work on the machine only ever adds.
    least = {name: min(times) for name, times in seconds.items()}
    best = min(least, key=least.get)
    return best if least[best] < MAX_SHARE * least["linear"] else "linear"


def by_row_may_gain(rows: int, weight: Tensor) -> bool:
    return rows <= BY_ROW_AT_MOST and weight.dtype is torch.bfloat16


def table() -> str:
    """What was chosen so far in this process: a line for each matrix, a column for each number of
    rows."""
    if forced():
        return f"{forced()}, forced by QWENLAB_LINEAR"
    matrices: dict[str, dict[str, str]] = {}
    for what, name in chosen.items():
        rows, matrix = what.split(" rows, ")
        matrices.setdefault(matrix, {})[rows] = name
    lines = [f"{'rows':36}" + "".join(f"{count:>11}" for count in ROW_COUNTS)]
    for matrix, names in matrices.items():
        cells = [names.get(str(count), "-") for count in ROW_COUNTS]
        lines.append(f"{matrix:36}" + "".join(f"{cell:>11}" for cell in cells))
    return "\n".join(lines)


def record() -> dict[str, str]:
    """The same for a program: what a timing stores beside its figures."""
    return {"forced": forced()} if forced() else dict(chosen)
