"""GRPO, distillation, and the traces that distillation learns from."""

from qwenlab.training.distillation import distill
from qwenlab.training.rl import grpo
from qwenlab.training.traces import load_traces, make_traces

__all__ = ["distill", "grpo", "load_traces", "make_traces"]
