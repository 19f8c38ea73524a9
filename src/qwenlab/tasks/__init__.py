"""Problems, what counts as their answer, evaluation and voting, and conversations."""

from qwenlab.tasks.arithmetic import arithmetic_problems
from qwenlab.tasks.evaluation import evaluate
from qwenlab.tasks.grading import extract_answer, grade
from qwenlab.tasks.problems import Problem, load_problems, problem_prompts
from qwenlab.tasks.rl import grpo
from qwenlab.tasks.voting import majority_vote, self_consistency

__all__ = [
    "Problem",
    "arithmetic_problems",
    "evaluate",
    "extract_answer",
    "grade",
    "grpo",
    "load_problems",
    "majority_vote",
    "problem_prompts",
    "self_consistency",
]
