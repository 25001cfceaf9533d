"""Pure arithmetic of the policy update: advantages, surrogate losses, KL, and their composition to objectives."""

from rlvr_jax.objectives import advantages, kl, losses
from rlvr_jax.objectives.filters import Overlong, informative
from rlvr_jax.objectives.objective import KL, Loss, Objective, rollout_signals, using
from rlvr_jax.objectives.registry import OBJECTIVES, named_objective

__all__ = [
    "KL",
    "OBJECTIVES",
    "Loss",
    "Objective",
    "Overlong",
    "advantages",
    "informative",
    "kl",
    "losses",
    "named_objective",
    "rollout_signals",
    "using",
]
