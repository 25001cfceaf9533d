"""Graded rollouts, and accuracy on held-out questions with intervals."""

from rlvr_jax.evaluation.comparison import McNemarTest, compare_evaluations, mcnemar_test, require_same_questions
from rlvr_jax.evaluation.evaluate import evaluate, held_out_rows
from rlvr_jax.evaluation.evaluation import Evaluation, checksums
from rlvr_jax.evaluation.folder import EvaluationFolder, read_evaluation
from rlvr_jax.evaluation.rollout import REWARD, GradedRollouts, Pending, Roller

__all__ = [
    "REWARD",
    "Evaluation",
    "EvaluationFolder",
    "GradedRollouts",
    "McNemarTest",
    "Pending",
    "Roller",
    "checksums",
    "compare_evaluations",
    "evaluate",
    "held_out_rows",
    "mcnemar_test",
    "read_evaluation",
    "require_same_questions",
]
