"""What holds while a training runs: no kernel changes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from qwenlab.fast import linear


@contextmanager
def reference_kernels() -> Iterator[None]:
    """Inside, F.linear computes every product, or what QWENLAB_LINEAR names: kernels chosen by
    measuring differ in the last bits, so the same seed wouldn't give the same weights twice."""
    before = linear.forced() or ""
    os.environ["QWENLAB_LINEAR"] = before or "linear"
    linear.known.clear()
    try:
        yield
    finally:
        os.environ["QWENLAB_LINEAR"] = before
        linear.known.clear()
