"""Speed as a pass over the plain model: `optimize` gives its modules their fast classes, `restore`
their plain ones back.

Only `module.__class__` changes. The modules stay the same objects, so hooks, the caller's
references, parameters and their names all survive.
"""

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from qwenlab.fast.attention import FastAttention
from qwenlab.fast.deltanet import FastDeltaNet
from qwenlab.fast.fused import FusedOwner
from qwenlab.fast.layers import FastLayer, FastMLP, FastRotary
from qwenlab.fast.model import FastModel
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
PLAIN = {fast: plain for plain, fast in FAST.items()}

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
    """Undoes `optimize`, in place, and returns the model."""
    for module in model.modules():
        kind = type(module)
        if kind in PLAIN:
            module.__class__ = PLAIN[kind]
        elif is_parametrized(module) and kind.__base__ in PLAIN:
            # torch's parametrize made a subclass of the fast class; make the same of the plain one.
            module.__class__ = type(kind.__name__, (PLAIN[kind.__base__],), dict(vars(kind)))
        else:
            continue
        for name in ("fused", "table"):
            vars(module).pop(name, None)
    return model
