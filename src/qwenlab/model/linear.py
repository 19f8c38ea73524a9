"""Projections that read the same input, computed as one matrix product."""

import torch
from torch import Tensor, nn


class Joined:
    """Several projections of one module as one product, without keeping two copies of their weights.

    The weights lie behind each other in one block of memory, and each projection's own parameter is a view of its
    part, so training, saving and in-place changes see the published names. Where a parameter was given new memory
    (by loading, by `.to`, by a reader), the block is laid out again at the next call. A projection that is no longer
    a plain nn.Linear, or has a hook, is called by itself.
    """

    def __init__(self, *names: str):
        self.names = names
        self.block: Tensor | None = None

    def __call__(self, owner: nn.Module, x: Tensor) -> Tensor:
        """x (R, K) to the outputs of `owner`'s projections side by side (R, N1 + N2 + ...)."""
        projections = [owner._modules[name] for name in self.names]
        # Gradients belong to the parameters, which the block is not.
        if torch.is_grad_enabled() or not all(map(plain, projections)):
            return torch.cat([projection(x) for projection in projections], dim=-1)
        return nn.functional.linear(x, self.weights(projections))

    def weights(self, projections: list[nn.Linear]) -> Tensor:
        """The block, laid out again if a projection's weight is not where it should be."""
        block = self.block
        if block is not None:
            place = block.data_ptr()
            for projection in projections:
                weight = projection.weight
                if weight.data_ptr() != place or weight.dtype != block.dtype:
                    break
                place += weight.nbytes
            else:
                return block
        with torch.inference_mode(False), torch.no_grad():  # the block outlives the call and may be trained
            self.block = torch.cat([projection.weight for projection in projections])
            parts = self.block.split([len(projection.weight) for projection in projections])
            for projection, part in zip(projections, parts, strict=True):
                projection.weight.data = part
        return self.block


def plain(module: nn.Module) -> bool:
    """Whether calling the module is nothing but the product with its weight."""
    return type(module) is nn.Linear and not module._forward_hooks and not module._forward_pre_hooks
