"""Reinforcement learning with verifiable rewards in JAX.

This import is light: it gives the pure functions of `rlvr_jax.objectives` and `rlvr_jax.starvation` and touches
no device. The rest is imported by name: `rlvr_jax.models`, `rlvr_jax.sampling`, `rlvr_jax.training`, ...
"""

from rlvr_jax import starvation
from rlvr_jax.objectives import (
    KL,
    OBJECTIVES,
    Loss,
    Objective,
    Overlong,
    advantages,
    kl,
    losses,
    named_objective,
    using,
)
from rlvr_jax.starvation import pass_at_k

__version__ = "0.1.0"

__all__ = [
    "KL",
    "OBJECTIVES",
    "Loss",
    "Objective",
    "Overlong",
    "advantages",
    "kl",
    "losses",
    "named_objective",
    "pass_at_k",
    "starvation",
    "using",
]
