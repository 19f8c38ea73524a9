"""Training always uses the same kernels."""

from contextlib import AbstractContextManager

from qwenlab.fast import linear


def reference_kernels() -> AbstractContextManager[None]:
    """Inside, every product is computed by F.linear, or by the kernel that QWENLAB_LINEAR names:
    kernels chosen by measurement differ in the last bits, so the same seed could give different
    weights."""
    return linear.forced_to(linear.forced() or "linear")
