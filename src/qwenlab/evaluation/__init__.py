"""What a benchmark needs: problems and their grading, evaluation, voting."""

from qwenlab.evaluation.answers import extract_answer
from qwenlab.evaluation.arithmetic import arithmetic_conversations, arithmetic_problems
from qwenlab.evaluation.endpoints import Endpoints
from qwenlab.evaluation.evaluation import evaluate
from qwenlab.evaluation.grading import grade
from qwenlab.evaluation.problems import Problem, load_problems, problem_prompts
from qwenlab.evaluation.ray_actors import RayActors
from qwenlab.evaluation.voting import majority_vote, self_consistency

__all__ = [
    "Endpoints",
    "Problem",
    "RayActors",
    "arithmetic_conversations",
    "arithmetic_problems",
    "evaluate",
    "extract_answer",
    "grade",
    "load_problems",
    "majority_vote",
    "problem_prompts",
    "self_consistency",
]
