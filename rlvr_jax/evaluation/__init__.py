"""Accuracy on held-out questions, with intervals."""

from rlvr_jax.evaluation.evaluate import Evaluation, evaluate

__all__ = ["Evaluation", "evaluate"]
