"""Problems, what counts as their answer, and conversations."""

from qwenlab.tasks.arithmetic import ArithmeticProblem, arithmetic_problems
from qwenlab.tasks.grading import extract_answer, grade
from qwenlab.tasks.problems import Problem, load_problems, problem_prompts

__all__ = [
    "ArithmeticProblem",
    "Problem",
    "arithmetic_problems",
    "extract_answer",
    "grade",
    "load_problems",
    "problem_prompts",
]
