"""Problems, what counts as their answer, and conversations."""

from qwenlab.tasks.arithmetic import ArithmeticProblem, arithmetic_problems
from qwenlab.tasks.distillation import distill
from qwenlab.tasks.grading import extract_answer, grade
from qwenlab.tasks.problems import Problem, load_problems, problem_prompts
from qwenlab.tasks.traces import load_traces, make_traces

__all__ = [
    "ArithmeticProblem",
    "Problem",
    "arithmetic_problems",
    "distill",
    "extract_answer",
    "grade",
    "load_problems",
    "load_traces",
    "make_traces",
    "problem_prompts",
]
