"""Projections that read the same input, computed as one matrix product.

Their weights lie one behind another in one block of memory, of which each module's own parameter is
a view: nothing is held twice, and training, saving and changes in place see the published names.

A weight is moved into its block only where it gets new memory anyway: when a model is optimised,
brought to another device or dtype, copied or unpickled. A call of the model moves nothing, so
several threads may call it at once. It looks whether each weight still is the view that it was; if
not (a parameter was replaced, or shares its memory with something else), and wherever a module does
more than multiply by its weight, the modules are called one by one, as in training.
"""

import threading
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from qwenlab.fast.linear import product
from qwenlab.model.layers import RMSNorm

LAYING_OUT = threading.Lock()
FORWARDS = {kind: kind.forward for kind in (nn.Linear, nn.Conv1d, RMSNorm)}  # as imported


def runs_plain(x: Tensor) -> bool:
    """Whether x must run through the plain code: gradients, another device, autocast, hooks on all
    modules. What follows asks of a single module only what `is_plain` does."""
    return (
        torch.is_grad_enabled()
        or not x.is_cpu
        or torch.is_autocast_enabled("cpu")
        or _has_any_global_hook()
    )


def is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a call of the module does nothing but what its kind does with its weight: no other
    class (a parametrization makes one), no replaced `forward`, no hook, no bias."""
    if type(module) is not kind or kind.forward is not FORWARDS[kind]:
        return False
    own = module.__dict__  # quicker than attributes, for each module of each step
    if own["_forward_hooks"] or own["_forward_pre_hooks"] or "forward" in own:
        return False
    if own["_backward_hooks"] or own["_backward_pre_hooks"]:
        return False
    parameters = own["_parameters"]
    return type(parameters.get("weight")) is nn.Parameter and parameters.get("bias") is None


def project(module: nn.Module, x: Tensor) -> Tensor:
    """module(x) of x (..., K); a plain nn.Linear's by the fastest kernel for so many rows."""
    if not is_plain(module, nn.Linear):
        return module(x)
    return product(x, module._parameters["weight"])


class FusedProjection:
    """The projections `names` of an owner, and the block that their weights are views of."""

    def __init__(self, *names: str):
        self.names = names
        self.block: Tensor | None = None
        self.parts: list[Tensor] = []  # the block cut up: what each weight must be

    def __reduce__(self):
        return FusedProjection, self.names  # a copy's weights have memory of their own

    def weights(self, owner: nn.Module) -> list[nn.Parameter] | None:
        """The projections' weights; None where one is no longer a plain nn.Linear."""
        weights = []
        for name in self.names:
            module = owner._modules.get(name)
            if not is_plain(module, nn.Linear):
                return None
            weights.append(module._parameters["weight"])
        return weights

    def usable(self, owner: nn.Module) -> bool:
        """Whether the block may stand for the owner's projections, which are on the CPU."""
        weights = self.weights(owner)
        return weights is not None and self.holds(weights)

    def is_laid_out(self, owner: nn.Module) -> bool:
        """The same, wherever the weights are."""
        weights = self.weights(owner)
        if weights is None or not all(weight.is_cpu for weight in weights):
            return False
        return self.holds(weights)

    def holds(self, weights: Sequence[Tensor]) -> bool:
        """Whether each weight is its part of the block: same memory, shape, strides and dtype."""
        if self.block is None:
            return False
        dtype = self.block.dtype
        for weight, part in zip(weights, self.parts, strict=True):
            if weight.dtype is not dtype or not weight.is_set_to(part):
                return False
        return True

    def lay_out(self, owner: nn.Module) -> None:
        """Moves the weights into a new block. Where that can't be, they stay where they are."""
        weights = self.weights(owner)
        self.block = None
        self.parts = []
        if weights is None or not movable(weights):
            return
        with torch.inference_mode(False), torch.no_grad():  # the block may be trained later
            block = torch.cat(list(weights))
            parts = list(block.split([len(weight) for weight in weights]))
            for weight, part in zip(weights, parts, strict=True):
                weight.data = part
        self.block = block
        self.parts = parts


def movable(weights: Sequence[Tensor]) -> bool:
    """Whether weights fit into one block, and nobody has put them where they are on purpose."""
    kinds = {(weight.dtype, weight.device, weight.shape[1:]) for weight in weights}
    if len(kinds) > 1 or not weights[0].is_cpu:
        return False
    tied = len({id(weight) for weight in weights}) < len(weights)
    shared = any(weight.is_shared() for weight in weights)  # among processes
    return not (tied or shared)


class FusedOwner(nn.Module):
    """A module with a `fused` projection. What was laid out is so again after a move or a copy."""

    NAMES: tuple[str, ...] = ()
    fused: FusedProjection

    def lay_out(self) -> None:
        fused = FusedProjection(*self.NAMES)
        with LAYING_OUT:
            fused.lay_out(self)
            self.fused = fused  # only now: a call in another thread sees it whole

    def _apply(self, fn, recurse: bool = True):  # beneath .to, .half, .cuda, .share_memory, ...
        was_laid_out = self.fused.is_laid_out(self)
        super()._apply(fn, recurse)
        if was_laid_out and not self.fused.is_laid_out(self):
            self.lay_out()
        return self

    def __setstate__(self, state: dict) -> None:
        super().__setstate__(state)
        if self.fused.block is None:  # a shallow copy shares its original's
            self.lay_out()
