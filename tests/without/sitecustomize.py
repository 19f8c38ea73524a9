"""Python imports this at every start with this folder on PYTHONPATH."""

import simulated  # noqa: F401
