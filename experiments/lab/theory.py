"""What the exact moments of the update say about two advantages, before any run."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from rlvr_jax.starvation import beta_binomial_degeneracy, gradient_moments

WRONG_ANSWERS = 10
"""Equally likely ones, beside the right one."""


def signal_to_noise(advantage: Callable[[Array], Array], success_rates: Float[np.ndarray, " Q"], samples: int) -> float:
    """`sum over prompts |E g|^2 / sum over prompts E|g - E g|^2` for the update g of one group of each prompt.

    Each prompt's policy is a softmax over one right and `WRONG_ANSWERS` wrong answers. The ratio of two advantages does
    not depend on their scale, and so neither on the step size.
    """
    rates = jnp.clip(jnp.asarray(success_rates, jnp.float32), 1e-6, 1 - 1e-6)
    wrong = jnp.log((1 - rates) / WRONG_ANSWERS)
    logits = jnp.concatenate([jnp.log(rates)[:, None], jnp.repeat(wrong[:, None], WRONG_ANSWERS, 1)], 1)
    right = jnp.arange(1 + WRONG_ANSWERS) == 0
    moments = jax.vmap(lambda each: gradient_moments(advantage, each, right, samples))(logits)
    return float(jnp.sum(moments.mean**2) / jnp.sum(moments.variance))


def beta_binomial_prediction(success_rates: Float[np.ndarray, " Q"], samples: int) -> float:
    """Degeneracy under the Beta law of the same mean and variance as these success rates."""
    mean = float(np.mean(success_rates))
    concentration = mean * (1 - mean) / float(np.var(success_rates)) - 1
    return float(beta_binomial_degeneracy(mean * concentration, (1 - mean) * concentration, samples))
