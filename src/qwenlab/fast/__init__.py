"""What makes the plain model quick on a CPU: one call, undone by another, and one property that
holds it."""

from qwenlab.fast.swap import optimize, restore

__all__ = ["optimize", "restore"]
