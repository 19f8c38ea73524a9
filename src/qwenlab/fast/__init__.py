"""What makes the plain model fast on a CPU. One call does it, another undoes it, and the logits
stay those of the plain model."""

from qwenlab.fast.swap import compile, optimize, pack, packed_bytes, restore, unpack

__all__ = ["compile", "optimize", "pack", "packed_bytes", "restore", "unpack"]
