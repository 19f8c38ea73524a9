"""Speed as a pass over the plain model: `optimize` gives its modules their fast classes, `restore`
their plain ones back.

Only `module.__class__` changes. The modules stay the same objects, so hooks, the caller's
references, parameters and their names all survive.
"""

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from qwenlab.fast.attention import FastAttention
from qwenlab.fast.deltanet import FastDeltaNet
from qwenlab.fast.fused import FusedOwner
from qwenlab.fast.graphs import BUCKETS, CompiledModel, Graphs, refusal
from qwenlab.fast.layers import FastLayer, FastMLP, FastRotary
from qwenlab.fast.linear import SMALL_BYTES, packed_copy
from qwenlab.fast.model import FastModel
from qwenlab.fast.packed import Packed, can_pack
from qwenlab.model.attention import Attention
from qwenlab.model.deltanet import DeltaNet
from qwenlab.model.layers import MLP, Rotary
from qwenlab.model.model import Layer, Model

FAST = {
    Attention: FastAttention,
    DeltaNet: FastDeltaNet,
    Layer: FastLayer,
    MLP: FastMLP,
    Model: FastModel,
    Rotary: FastRotary,
}
PLAIN = {fast: plain for plain, fast in FAST.items()} | {CompiledModel: Model}

# glibc's malloc learns from freed blocks of up to 32 MiB; a block has a header besides.
LARGEST_LEARNT = 31 * 2**20  # bytes


def optimize(model: Model) -> Model:
    """Makes inference on a CPU faster, in place, and returns the model.

    Logits stay those of the plain model within 1e-5, whatever is done to the weights afterwards.
    Where a gradient is needed, and where a module has hooks, was replaced or parametrized, or uses
    an attention function other than sdpa, the plain code runs. Weights that were replaced since,
    by `load_state_dict(assign=True)` for instance, are fused by another call.
    """
    for module in model.modules():
        if type(module) in FAST:
            module.__class__ = FAST[type(module)]
        if isinstance(module, FusedOwner) and not module.is_laid_out():
            module.lay_out()
    keep_freed_memory()
    return model


@torch.no_grad()
def compile(
    model: Model,
    rows: int = BUCKETS[-1],
    backend: str = "inductor",
    on_progress: Callable[[int], None] | None = None,
) -> Model:
    """Compiles a model's decode step on a CPU, in place, and returns the model.

    Afterwards a step of one token for each of at most `rows` rows (1, 2 or 4) is a graph by
    torch.compile; anything else runs as `optimize` makes it, which is as fast for more rows. In
    float32, ids stay the same and logits within 1e-5; in bfloat16 and float16 both may differ by
    that dtype's rounding. Compiling takes seconds to a minute for each of 1, 2 and
    4 rows; a later process finds most of it in PyTorch's cache on disk. `on_progress(rows)` is
    called before each. `backend` is torch.compile's.

    Weights may change afterwards, but not the numbers that modules hold, such as `eps`. Training,
    hooks, replaced modules and a reader's attention run as before, and `restore` undoes it. Where
    compiling isn't possible (a hybrid, a GPU, no C++ compiler), this warns in one line and the
    model stays as it is. Raises ValueError for another number of rows.
    """
    if rows not in BUCKETS:
        raise ValueError(f"rows is {rows}, expected one of {', '.join(map(str, BUCKETS))}")
    reason = refusal(model, backend)
    if reason is None:
        optimize(model)
        graphs = Graphs(model, backend)
        try:
            for bucket in BUCKETS[: BUCKETS.index(rows) + 1]:
                if on_progress:
                    on_progress(bucket)
                graphs.add(bucket, model)
        except Exception as problem:  # of many kinds: PyTorch's, the compiler's, the linker's
            first_line = str(problem).strip().partition("\n")[0]
            reason = f"{type(problem).__name__}: {first_line}"
    if reason is not None:
        warnings.warn(f"not compiled: {reason}", stacklevel=2)
        return model
    model.graphs = graphs
    model.__class__ = CompiledModel
    return model


def pack(model: Model, least_bytes: int = SMALL_BYTES) -> Model:
    """Keeps a second copy of each matrix of at least `least_bytes`, in the order in which oneDNN
    reads it, and returns the model: faster for about 2 to 256 rows, and the weights take twice the
    memory.

    Which kernel computes is still chosen by measuring, for each number of rows. A packed copy is no
    longer used once its weight is changed in place, replaced, moved or cast; another call packs it
    anew. PyTorch doesn't count what a fused optimizer or an assignment into `weight.data` changes:
    that is noticed by a sample of the numbers, so call `pack` again after a change of a few only.
    Copies and pickles of the model have none, and `restore` drops them. On another
    device than a CPU, in another dtype than float32 or bfloat16, or where PyTorch lacks oneDNN,
    this warns in one line and the model stays as it is.
    """
    reason = None
    if model.device.type != "cpu":
        reason = f"the model is on {model.device}, expected a CPU"
    elif model.dtype not in (torch.float32, torch.bfloat16):
        reason = f"the model is in {model.dtype}, expected torch.float32 or torch.bfloat16"
    elif not can_pack():
        reason = "this PyTorch has no oneDNN"
    if reason is not None:
        warnings.warn(f"not packed: {reason}", stacklevel=2)
        return model
    optimize(model)
    for weight, parts in matrices_of(model):
        readable = weight.is_contiguous() and not weight.is_inference()
        if readable and weight.nbytes >= least_bytes:
            weight.packed = Packed(weight, parts)
    return model


def unpack(model: nn.Module) -> None:
    """Drops what `pack` keeps, and only that."""
    for weight, _ in matrices_of(model):
        vars(weight).pop("packed", None)


def packed_bytes(model: nn.Module) -> int:
    """The bytes that the packed copies of a model's weights take; 0 without any. Copies that are no
    longer right are dropped."""
    return sum(weight.nbytes for weight, _ in matrices_of(model) if packed_copy(weight))


def matrices_of(model: nn.Module) -> list[tuple[torch.Tensor, Sequence[torch.Tensor]]]:
    """Each matrix that a product reads, with the parameters that are parts of it: a block of fused
    projections, a projection, or the head."""
    found: dict[int, tuple[torch.Tensor, Sequence[torch.Tensor]]] = {}
    fused = set()
    for module in model.modules():
        if isinstance(module, FusedOwner) and module.is_laid_out():
            weights = module.weights()
            found[id(module.fused.block)] = (module.fused.block, weights)
            fused.update(map(id, weights))
        elif isinstance(module, Model) and module.lm_head is None:
            weight = module.model.embed_tokens.weight
            found[id(weight)] = (weight, ())
    for module in model.modules():
        if isinstance(module, nn.Linear) and id(module.weight) not in fused:
            found[id(module.weight)] = (module.weight, ())
    return list(found.values())


def keep_freed_memory() -> None:
    """Lets the process keep the memory of temporaries from one layer to the next.

    glibc gives free memory at the heap's end back to the system as soon as it is more than twice
    the largest block freed so far. A prefill's temporaries are just that large, so each layer gave
    its memory back and the next one had it zeroed again: the 0.8B hybrid's prefill of 4 x 64 tokens
    took 1.2 times as long. One large block, freed once, raises the limit to 62 MiB. Other
    allocators take no notice.
    """
    torch.empty(LARGEST_LEARNT, dtype=torch.uint8, device="cpu")  # freed at once


def restore(model: nn.Module) -> nn.Module:
    """Undoes `optimize`, `compile` and `pack`, in place, and returns the model."""
    unpack(model)
    for module in model.modules():
        kind = type(module)
        if kind in PLAIN:
            module.__class__ = PLAIN[kind]
        elif is_parametrized(module) and kind.__base__ in PLAIN:
            # torch's parametrize made a subclass of the fast class; make the same of the plain one.
            module.__class__ = type(kind.__name__, (PLAIN[kind.__base__],), dict(vars(kind)))
        else:
            continue
        for name in ("fused", "table", "graphs"):
            vars(module).pop(name, None)
    return model
