"""Problems, what counts as their answer, and conversations."""

from qwenlab.tasks.arithmetic import Problem, arithmetic_problems
from qwenlab.tasks.grading import extract_answer

__all__ = ["Problem", "arithmetic_problems", "extract_answer"]
