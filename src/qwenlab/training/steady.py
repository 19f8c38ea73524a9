"""Training always uses the same kernels."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from qwenlab.fast import linear


@contextmanager
def reference_kernels() -> Iterator[None]:
    """Inside, every product is computed by F.linear, or by the kernel that QWENLAB_LINEAR names:
    kernels chosen by measurement differ in the last bits, so the same seed could give different
    weights."""
    before = linear.forced() or ""
    os.environ["QWENLAB_LINEAR"] = before or "linear"
    linear.known.clear()
    try:
        yield
    finally:
        os.environ["QWENLAB_LINEAR"] = before
        linear.known.clear()
