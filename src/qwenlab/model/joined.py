"""Projections that read the same input, computed as one matrix product.

Their weights lie behind each other in one block of memory, of which each module's own parameter is
a view: nothing is held twice, and training, saving and changes in place see the published names.

A weight is moved into its block only where PyTorch gives it new memory anyway: when a model is
made, filled from a file, brought to another device or dtype, copied or unpickled. A call of the
model moves nothing, so several threads may call it at once. It looks whether each weight still is
the view that it was. If not (a parameter was replaced, or its memory is somebody else's too), and
wherever a module does more than multiply by its weight, the modules are called one by one, as in
training.
"""

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from qwenlab.model.linear import product

FORWARDS = {kind: kind.forward for kind in (nn.Linear, nn.Conv1d)}  # as they are when imported


def plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a call of the module does nothing but what its kind does with its weight.

    Not so with another class (a parametrization makes one), a replaced `forward`, a hook, a bias, a
    weight that is no plain parameter."""
    if type(module) is not kind or kind.forward is not FORWARDS[kind]:
        return False
    own = module.__dict__  # quicker than attributes, for each module of each step
    if own["_forward_hooks"] or own["_forward_pre_hooks"] or "forward" in own:
        return False
    if own["_backward_hooks"] or own["_backward_pre_hooks"] or _has_any_global_hook():
        return False
    parameters = own["_parameters"]
    return type(parameters.get("weight")) is nn.Parameter and parameters.get("bias") is None


def project(module: nn.Module, x: Tensor) -> Tensor:
    """module(x) of x (R, K), a plain nn.Linear's by the quickest kernel for so many rows."""
    if torch.is_grad_enabled() or not plain(module, nn.Linear):
        return module(x)
    return product(x, module._parameters["weight"])


class Joined:
    """The modules `names` of an owner, and the block that their weights are views of."""

    def __init__(self, *names: str):
        self.names = names
        self.block: Tensor | None = None
        self.parts: list[Tensor] = []  # the block cut up: what each weight must be

    def __reduce__(self):
        return type(self), self.names  # a copy's weights have memory of their own

    def modules(self, owner: nn.Module) -> list[nn.Module]:
        """What the owner calls by these names; a plain function counts too."""
        found = [owner._modules.get(name) for name in self.names]  # quicker than attributes
        return found if None not in found else [getattr(owner, name) for name in self.names]

    def weights(self, owner: nn.Module) -> list[Tensor | None]:
        return [getattr(module, "weight", None) for module in self.modules(owner)]

    def __call__(self, owner: nn.Module, x: Tensor) -> Tensor:
        """x (R, K) to the outputs of `owner`'s projections side by side (R, N1 + N2 + ...)."""
        modules = self.modules(owner)
        if self.usable(modules, nn.Linear):
            return product(x, self.block)
        return torch.cat([project(module, x) for module in modules], dim=-1)

    def usable(self, modules: list[nn.Module], kind: type[nn.Module]) -> bool:
        """Whether the block may stand for the modules. Gradients belong to the parameters."""
        if torch.is_grad_enabled() or not all([plain(module, kind) for module in modules]):
            return False
        return self.holds([module._parameters["weight"] for module in modules])

    def holds(self, weights: list[Tensor]) -> bool:
        """Whether each weight is its part of the block: same memory, shape, strides and dtype."""
        if not self.parts:
            return False
        dtype = self.block.dtype
        for weight, part in zip(weights, self.parts, strict=True):
            if weight.dtype is not dtype or not weight.is_set_to(part):
                return False
        return True

    def is_laid_out(self, owner: nn.Module) -> bool:
        """The same, whatever stands in the place of a weight."""
        if self.block is None:
            return False
        weights, device = self.weights(owner), self.block.device
        here = [type(weight) is nn.Parameter and weight.device == device for weight in weights]
        return all(here) and self.holds(weights)

    def lay_out(self, owner: nn.Module) -> None:
        """Moves the weights into a new block. Where that can't be, they stay where they are."""
        weights = self.weights(owner)
        self.block, self.parts = None, []
        if not movable(weights):
            return
        with torch.inference_mode(False), torch.no_grad():  # the block may be trained later
            self.block = torch.cat(weights)
            self.parts = list(self.block.split([len(weight) for weight in weights]))
            for weight, part in zip(weights, self.parts, strict=True):
                weight.data = part


def movable(weights: list[Tensor | None]) -> bool:
    """Whether weights fit into one block, and nobody has put them where they are on purpose."""
    if not all(type(weight) is nn.Parameter for weight in weights):
        return False
    kinds = {(weight.dtype, weight.device, weight.shape[1:]) for weight in weights}
    tied = len({id(weight) for weight in weights}) < len(weights)
    shared = any(weight.is_cpu and weight.is_shared() for weight in weights)  # among processes
    return len(kinds) == 1 and not (tied or shared or weights[0].is_meta)


class Owner(nn.Module):
    """A module that has `Joined`s. What was laid out is so again after a move, a copy, a pickle."""

    def joined_ones(self) -> list[Joined]:
        return [value for value in self.__dict__.values() if isinstance(value, Joined)]

    def lay_out(self) -> None:
        for joined in self.joined_ones():
            joined.lay_out(self)

    def _apply(self, fn, recurse: bool = True):  # beneath .to, .half, .cuda, .share_memory_, ...
        held = [joined for joined in self.joined_ones() if joined.is_laid_out(self)]
        super()._apply(fn, recurse)
        for joined in held:
            if not joined.is_laid_out(self):
                joined.lay_out(self)
        return self

    def __setstate__(self, state: dict) -> None:
        super().__setstate__(state)
        for joined in self.joined_ones():
            if joined.block is None:  # a shallow copy shares its original's
                joined.lay_out(self)
