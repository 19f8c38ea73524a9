"""What people batch for: problems and their grading, evaluation, voting, GRPO, distillation, conversations."""

from qwenlab.tasks.arithmetic import arithmetic_problems
from qwenlab.tasks.distillation import distill
from qwenlab.tasks.evaluation import evaluate
from qwenlab.tasks.grading import extract_answer, grade
from qwenlab.tasks.problems import Problem, load_problems, problem_prompts
from qwenlab.tasks.rl import grpo
from qwenlab.tasks.traces import load_traces, make_traces
from qwenlab.tasks.voting import majority_vote, self_consistency

__all__ = [
    "Problem",
    "arithmetic_problems",
    "distill",
    "evaluate",
    "extract_answer",
    "grade",
    "grpo",
    "load_problems",
    "load_traces",
    "majority_vote",
    "make_traces",
    "problem_prompts",
    "self_consistency",
]
