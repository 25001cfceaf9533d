"""Pure arithmetic of the policy update: advantages, surrogate losses, KL, aggregation."""

from rlvr_jax.objectives.advantages import group_mean, group_mean_std, half_reference, sign
from rlvr_jax.objectives.kl import kl_in_loss
from rlvr_jax.objectives.losses import aggregate, policy_gradient, ppo_clip, weighted_mean
from rlvr_jax.objectives.objective import OBJECTIVES, Loss, Objective, named_objective

__all__ = [
    "OBJECTIVES",
    "Loss",
    "Objective",
    "aggregate",
    "group_mean",
    "group_mean_std",
    "half_reference",
    "kl_in_loss",
    "named_objective",
    "policy_gradient",
    "ppo_clip",
    "sign",
    "weighted_mean",
]
