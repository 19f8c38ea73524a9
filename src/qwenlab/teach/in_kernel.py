"""Which kernel, and which cell of its notebook, runs the code that asks."""

import sys
from typing import Any


def running_kernel() -> Any:
    """The kernel, or None outside a notebook."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None)


def running_cell() -> str | None:
    """The cell's id, or None where nobody says it: in a terminal, and where a notebook's front end
    does not send it."""
    kernel = running_kernel()
    return kernel.get_parent().get("metadata", {}).get("cellId") if kernel else None
