"""The science of silent groups: degeneracy, its prediction, and honest intervals."""

from rlvr_jax.starvation.degeneracy import Degeneracy, bernoulli_prediction, degeneracy, zero_advantage_share
from rlvr_jax.starvation.intervals import Interval, mean_interval, share_interval

__all__ = [
    "Degeneracy",
    "Interval",
    "bernoulli_prediction",
    "degeneracy",
    "mean_interval",
    "share_interval",
    "zero_advantage_share",
]
