"""A weight once more, in the order in which oneDNN's kernels read it.

A product by oneDNN puts the matrix into blocks that suit the processor, at every call. Packed once
and kept, it skips that: on a CPU with AVX-512 products with 4 to 64 rows took half to two thirds of
the time. The price is memory, since the weight itself stays as well.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

PACKED_FOR = 16  # rows; the layout hardly depends on it and serves any number


def can_pack() -> bool:
    """Whether this PyTorch has oneDNN and its operations."""
    names = ("_linear_pointwise", "_reorder_linear_weight")
    known = all(hasattr(torch.ops.mkldnn, name) for name in names)
    return known and torch.backends.mkldnn.is_available()


def reordered(weight: Tensor) -> Tensor:
    """The packed copy of a weight (N, K)."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach(), PACKED_FOR)


def packed_product(x: Tensor, reordered_weight: Tensor) -> Tensor:
    """x (rows, K) to (rows, N)."""
    return torch.ops.mkldnn._linear_pointwise(x, reordered_weight, None, "none", [], "")


class Packed:
    """The packed copy of a weight (N, K), for as long as the weight is what it was.

    parts: parameters that are views of the weight, through which it may be changed. A deep copy or
    a pickle is empty and stands for nothing.
    """

    def __init__(self, weight: Tensor | None = None, parts: Sequence[Tensor] = ()) -> None:
        self.copy = None
        if weight is not None:
            self.copy = reordered(weight)
            self.place = (weight.data_ptr(), weight.dtype)
            self.version = weight._version
            self.parts = [(part, part._version) for part in parts]

    def stands_for(self, weight: Tensor) -> bool:
        """Whether the weight still has the memory, dtype and numbers that were packed. A change
        through `weight.data` is not noticed, because PyTorch doesn't count it."""
        if self.copy is None or self.place != (weight.data_ptr(), weight.dtype):
            return False
        if weight._version != self.version:
            return False
        return all(part._version == version for part, version in self.parts)

    def product(self, x: Tensor) -> Tensor:
        """x (rows, K) to (rows, N)."""
        return packed_product(x, self.copy)

    def __reduce__(self) -> tuple:
        return Packed, ()
