"""Projections that read the same input, computed as one matrix product.

Fused means concatenated here (vLLM: merged, or packed): one product, not PyTorch's one kernel for
several operations. The weights are contiguous in one block of memory, of which each module's own
parameter is a view: nothing is held twice, and training, saving and changes in place see the
published names.

A weight is moved into its block only where it gets new memory anyway: when a model is optimised,
brought to another device or dtype, copied or unpickled. A call of the model moves nothing, so
several threads may call it at once. It checks that each weight still is a view of its part of the
block. If one isn't (because a parameter was replaced, or shares its memory with something else), or
if a module does more than multiply by its weight, the modules are called one by one, as in
training.

Here and in the other files of `fast`, what every layer reads at every step comes straight from the
dictionaries of nn.Module (`_modules`, `_parameters`), because an attribute would go through
nn.Module.__getattr__: about 650 ns a read instead of 40 (Python 3.11 on a shared CPU).
"""

import threading
from collections.abc import Callable, Sequence
from operator import eq

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from qwenlab.fast.linear import product
from qwenlab.model.attention import Attention
from qwenlab.model.deltanet import DeltaNet
from qwenlab.model.layers import MLP, RMSNorm, Rotary
from qwenlab.model.model import Layer, Model

LAYING_OUT = threading.Lock()


def own_forward(kind: type[nn.Module]) -> Callable | None:
    """Detects classes patched before import: the `forward` that a class was written with, or None
    if it has been replaced, as the globals of a function from another module show."""
    return kind.forward if kind.forward.__globals__["__name__"] == kind.__module__ else None


KINDS = (nn.Linear, nn.Conv1d, RMSNorm, Attention, DeltaNet, MLP, Rotary, Layer, Model)
FORWARDS = {kind: own_forward(kind) for kind in KINDS}


def runs_plain(x: Tensor, kind: type[nn.Module]) -> bool:
    """Whether x must run through the plain code of a `kind`: its `forward` was replaced, x needs a
    gradient, x is not on the CPU, autocast is on, or a global hook is registered. `is_plain` makes
    the same check for a submodule."""
    return (
        kind.forward is not FORWARDS[kind]
        or x.requires_grad
        or not x.is_cpu
        or torch.is_autocast_enabled("cpu")
        or _has_any_global_hook()
    )


def is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a call of the module does nothing but what its kind does with its weight: no other
    class (a parametrization makes one), no replaced `forward`, no hook, no bias, no gradient."""
    if type(module) is not kind or kind.forward is not FORWARDS[kind]:
        return False
    own = module.__dict__
    if own["_forward_hooks"] or own["_forward_pre_hooks"] or "forward" in own:
        return False
    if own["_backward_hooks"] or own["_backward_pre_hooks"]:
        return False
    parameters = own["_parameters"]
    weight = parameters.get("weight")
    if type(weight) is not nn.Parameter or parameters.get("bias") is not None:
        return False
    return not (weight.requires_grad and torch.is_grad_enabled())


def apply_linear(module: nn.Module, x: Tensor) -> Tensor:
    """module(x) for x (..., K); a plain nn.Linear runs the fastest kernel for that many rows."""
    if not is_plain(module, nn.Linear):
        return module(x)
    return product(x, module._parameters["weight"])


class Fused:
    """A block of memory (N1 + N2 + ..., K) and its parts, one for each projection's weight (N, K).

    A deep copy or a pickle of it holds nothing and is `stale`: the copied weights have memory of
    their own.
    """

    def __init__(self, block: Tensor | None = None, parts: Sequence[Tensor] = ()):
        self.block = block
        self.parts = parts
        self.stale = False

    def __reduce__(self) -> tuple:
        return Fused, (), {"stale": True}


class FusedOwner(nn.Module):
    """A module with projections NAMES whose weights may lie in one block."""

    NAMES: tuple[str, ...] = ()
    fused = Fused()  # replaced as a whole, never changed: a call reads it once, whatever others do

    def fused_weight(self) -> Tensor | None:
        """The block that stands for all projections; None where they must be called one by one."""
        fused = self.fused
        for name, part in zip(self.NAMES, fused.parts, strict=False):  # no parts: no block either
            module = self._modules.get(name)
            if not is_plain(module, nn.Linear) or not is_part(module._parameters["weight"], part):
                return None
        return fused.block

    def weights(self) -> list[nn.Parameter]:
        """The projections' weights; an empty list where one is no longer an nn.Linear's."""
        weights = []
        for name in self.NAMES:
            module = self._modules.get(name)
            if type(module) is not nn.Linear:
                return []
            weight = module._parameters.get("weight")
            if type(weight) is not nn.Parameter:
                return []
            weights.append(weight)
        return weights

    def lay_out(self) -> None:
        """Moves the weights into a new block. Where that can't be, they stay where they are."""
        with LAYING_OUT:
            weights = self.weights()
            if not movable(weights):
                self.fused = Fused()
                return
            with torch.inference_mode(False), torch.no_grad():  # the block may be trained later
                block = torch.cat(weights)
                parts = block.split(list(map(len, weights)))
                for weight, part in zip(weights, parts, strict=True):
                    weight.data = part
            self.fused = Fused(block, parts)

    def is_laid_out(self) -> bool:
        weights = self.weights()
        if len(weights) != len(self.fused.parts) or not all(weight.is_cpu for weight in weights):
            return False
        return len(weights) > 0 and all(map(is_part, weights, self.fused.parts))

    def _apply(self, fn: Callable, recurse: bool = True) -> "FusedOwner":
        # Called by .to, .half, .cuda, .share_memory, ...
        before = addresses(self.weights())
        super()._apply(fn, recurse)
        after = addresses(self.weights())
        if self.is_laid_out():
            return self
        self.fused = Fused()  # a block that is no longer the weights' memory would waste memory
        stayed = any(map(eq, before, after))
        if len(before) == len(after) > 0 and not stayed:
            self.lay_out()  # all their memory is new, so nothing else refers to it yet
        return self

    def _load_from_state_dict(
        self, state_dict: dict, prefix: str, local_metadata: dict, *others
    ) -> None:
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *others)
        if local_metadata.get("assign_to_params_buffers", False):
            # The weights are about to become the given tensors, which may be others' too; the
            # block would hold the old ones' memory.
            self.fused = Fused()

    def __setstate__(self, state: dict) -> None:
        super().__setstate__(state)
        if self.fused.stale:  # a shallow copy shares its original's
            self.lay_out()


def is_part(weight: Tensor, part: Tensor) -> bool:
    """Whether a weight is its part of the block: same memory, shape, strides and dtype."""
    return weight.dtype is part.dtype and weight.is_set_to(part)


def movable(weights: Sequence[Tensor]) -> bool:
    """Whether the weights fit into one block and nobody has deliberately put them where they
    are."""
    kinds = {(weight.dtype, weight.device, weight.shape[1:]) for weight in weights}
    if len(kinds) != 1 or not weights[0].is_cpu:
        return False
    tied = len(set(map(id, weights))) < len(weights)
    shared = any(weight.is_shared() for weight in weights)  # among processes
    return not (tied or shared)


def addresses(weights: Sequence[Tensor]) -> list[tuple]:
    """Where each weight is kept, and as what. Changes whenever a weight is reallocated or cast."""
    return [(weight.device, weight.dtype, weight.data_ptr()) for weight in weights]
