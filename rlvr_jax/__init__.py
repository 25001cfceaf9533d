"""Reinforcement learning with verifiable rewards in JAX.

This import is light: it gives the pure functions of `rlvr_jax.objectives` and `rlvr_jax.starvation` and touches
no device. The rest is imported by name: `rlvr_jax.models`, `rlvr_jax.sampling`, `rlvr_jax.training`, ...
"""

from rlvr_jax.objectives import (
    OBJECTIVES,
    Loss,
    Objective,
    aggregate,
    group_mean,
    group_mean_std,
    half_reference,
    kl_in_loss,
    named_objective,
    policy_gradient,
    ppo_clip,
    sign,
    weighted_mean,
)
from rlvr_jax.starvation import (
    Degeneracy,
    Interval,
    bernoulli_prediction,
    degeneracy,
    mean_interval,
    share_interval,
    zero_advantage_share,
)

__version__ = "0.1.0"

__all__ = [
    "OBJECTIVES",
    "Degeneracy",
    "Interval",
    "Loss",
    "Objective",
    "aggregate",
    "bernoulli_prediction",
    "degeneracy",
    "group_mean",
    "group_mean_std",
    "half_reference",
    "kl_in_loss",
    "mean_interval",
    "named_objective",
    "policy_gradient",
    "ppo_clip",
    "share_interval",
    "sign",
    "weighted_mean",
    "zero_advantage_share",
]
