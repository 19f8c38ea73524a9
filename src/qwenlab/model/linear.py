"""Matrix products of few rows: joined where several read the same input, by the kernel that is fastest here."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def project(x: Tensor, weight: Tensor) -> Tensor:
    """x (R, K) times weight (N, K) transposed: (R, N)."""
    return F.linear(x, weight)


class Joined:
    """Several projections of one input as one product, without keeping two copies of their weights.

    The weights lie behind each other in one block of memory, and each projection's own parameter is a view of its
    part, so training, saving and in-place changes see the published names. Where a parameter was given new memory
    (by loading, by `.to`, by a reader), the block is laid out again at the next call.
    """

    def __init__(self, *projections: nn.Linear):
        self.projections = projections
        self.block: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """x (R, K) to the projections' outputs side by side (R, N1 + N2 + ...)."""
        if torch.is_grad_enabled():  # gradients belong to the parameters, which the block is not
            return torch.cat([F.linear(x, projection.weight) for projection in self.projections], dim=-1)
        return project(x, self.weights())

    def weights(self) -> Tensor:
        block = self.block
        if block is not None:
            place = block.data_ptr()
            for projection in self.projections:
                weight = projection.weight
                if weight.data_ptr() != place or weight.dtype != block.dtype:
                    break
                place += weight.nbytes
            else:
                return block
        with torch.inference_mode(False), torch.no_grad():  # the block outlives the call and may be trained
            self.block = torch.cat([projection.weight for projection in self.projections])
            parts = self.block.split([projection.out_features for projection in self.projections])
            for projection, part in zip(self.projections, parts, strict=True):
                projection.weight.data = part
        return self.block
