"""Graded rollouts, and accuracy on held-out questions with intervals."""

from rlvr_jax.evaluation.evaluate import Evaluation, evaluate
from rlvr_jax.evaluation.rollout import GradedRollouts, Roller

__all__ = ["Evaluation", "GradedRollouts", "Roller", "evaluate"]
