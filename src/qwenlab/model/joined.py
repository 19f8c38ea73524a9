"""Projections that read the same input, computed as one matrix product."""

import torch
from torch import Tensor, nn

from qwenlab.model.linear import product


class Block:
    """The weights of several modules behind each other in one block of memory, without keeping two copies.

    Each module's own parameter is a view of its part, so training, saving and in-place changes see the published
    names. Where a parameter was given new memory (by loading, by `.to`, by a reader), the block is laid out again.
    """

    def __init__(self):
        self.block: Tensor | None = None
        self.places: list[int] = []  # where in memory each weight must begin

    def of(self, modules: list[nn.Module]) -> Tensor:
        """The weights of `modules` along their first dimension, for inference: gradients belong to the parameters."""
        weights = [module._parameters["weight"] for module in modules]
        # The block is alive, so new memory of any kind begins elsewhere.
        if self.block is None or [weight.data_ptr() for weight in weights] != self.places:
            with torch.inference_mode(False), torch.no_grad():  # the block outlives the call and may be trained
                self.block = weights[0].data if len(weights) == 1 else torch.cat(weights)
                for weight, part in zip(weights, self.block.split([len(weight) for weight in weights]), strict=True):
                    weight.data = part
            self.places = [weight.data_ptr() for weight in weights]
        return self.block


class Joined:
    """The projections `names` of one module as one product. One that is no longer a plain nn.Linear, or has a hook,
    is called by itself."""

    def __init__(self, *names: str):
        self.names, self.block = names, Block()

    def __call__(self, owner: nn.Module, x: Tensor) -> Tensor:
        """x (R, K) to the outputs of `owner`'s projections side by side (R, N1 + N2 + ...)."""
        modules = owner._modules
        projections = [modules[name] for name in self.names]
        if torch.is_grad_enabled() or not all([plain(module, nn.Linear) for module in projections]):
            outputs = [projection(x) for projection in projections]
            return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)
        return product(x, self.block.of(projections))


def plain(module: nn.Module, kind: type) -> bool:
    """Whether calling the module does nothing but what its kind does with its weight."""
    return type(module) is kind and not (
        module._forward_hooks or module._forward_pre_hooks or module._parameters.get("bias") is not None
    )
