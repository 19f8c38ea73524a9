"""A weight once more, in the order in which oneDNN's kernels read it.

A product by oneDNN puts the matrix into blocks that suit the processor, at every call. Packed once
and kept, it skips that: on a CPU with AVX-512 products with 4 to 64 rows took half to two thirds of
the time. The price is memory, since the weight itself stays as well.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

PACKED_FOR = 16  # rows; the layout hardly depends on it and serves any number
SAMPLES = 64  # numbers of a weight that are compared before each product


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


def place_of(weight: Tensor) -> tuple:
    """Where the numbers are, and how they are to be read."""
    return weight.data_ptr(), weight.dtype, weight.stride()


def sample_of(weight: Tensor) -> Tensor:
    """SAMPLES numbers (or as many as there are), spread over rows and columns: a view of a
    contiguous weight (N, K)."""
    count = min(SAMPLES, weight.numel())
    step = (weight.numel() - 1) // count or 1
    if step > 1 and step % 2 == 0:  # which might see the same few columns only
        step -= 1
    return weight.detach().as_strided((count,), (step,))


class Packed:
    """The packed copy of a weight (N, K), for as long as the weight is what it was.

    parts: parameters that are views of the weight, through which it may be changed. A deep copy or
    a pickle is empty and stands for nothing.
    """

    def __init__(self, weight: Tensor | None = None, parts: Sequence[Tensor] = ()) -> None:
        self.copy = None
        if weight is not None:
            self.copy = reordered(weight)
            self.place = place_of(weight)
            self.version = weight._version
            self.sample = sample_of(weight).clone()
            self.parts = [(part, part._version) for part in parts]

    def stands_for(self, weight: Tensor) -> bool:
        """Whether the weight still has the memory, dtype and numbers that were packed.

        PyTorch counts changes in place, but not those by a fused optimizer or through
        `weight.data`, and memory that was freed may be given to the weight again. So a sample of
        the numbers is compared as well: it notices whatever changes the weight as a whole.
        """
        if self.copy is None or self.place != place_of(weight):
            return False
        if weight._version != self.version:
            return False
        if any(part._version != version for part, version in self.parts):
            return False
        return torch.equal(sample_of(weight), self.sample)

    def product(self, x: Tensor) -> Tensor:
        """x (rows, K) to (rows, N)."""
        return packed_product(x, self.copy)

    def __reduce__(self) -> tuple:
        return Packed, ()
