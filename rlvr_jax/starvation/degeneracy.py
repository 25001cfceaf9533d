"""How much of a batch of groups carries no signal, and how much chance alone would predict.

Source: Gradient Starvation in Binary-Reward GRPO, arXiv 2605.07689.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from rlvr_jax.records import AnyArray


class Degeneracy(NamedTuple):
    """Shares of groups, each in [0, 1]."""

    all_wrong: Float[Array, "*batch"]
    all_right: Float[Array, "*batch"]
    observed: Float[Array, "*batch"]
    """Groups whose samples are all wrong or all right: their group-centred advantage is exactly zero."""
    predicted: Float[Array, "*batch"]
    """What independent samples at the pooled mean reward would give; see `bernoulli_prediction`."""


def degeneracy(rewards: Num[AnyArray, "*batch P G"]) -> Degeneracy:
    """Degenerate groups among P groups of G binary rewards (0 wrong, 1 right)."""
    rewards = jnp.asarray(rewards, jnp.float32)
    all_wrong = jnp.mean(rewards.max(-1) <= 0.0, -1, dtype=jnp.float32)
    all_right = jnp.mean(rewards.min(-1) >= 1.0, -1, dtype=jnp.float32)
    predicted = bernoulli_prediction(rewards.mean((-2, -1)), rewards.shape[-1])
    return Degeneracy(all_wrong, all_right, all_wrong + all_right, predicted)


def bernoulli_prediction(success_rate: Float[AnyArray, "*batch"], group_size: int) -> Float[Array, "*batch"]:
    """`p^G + (1 - p)^G`: the degeneracy if every prompt had the same success rate p.

    Convex in p, so by Jensen the true rate over prompts of unequal difficulty is never below it.
    """
    success_rate = jnp.asarray(success_rate, jnp.float32)
    return success_rate**group_size + (1.0 - success_rate) ** group_size


def zero_advantage_share(advantages: Float[AnyArray, "*batch P G"]) -> Float[Array, "*batch"]:
    """Share of samples that were generated and verified but push nothing: every advantage of their group is zero."""
    return jnp.mean(jnp.all(advantages == 0.0, -1), -1, dtype=jnp.float32)
