"""How much of a batch of groups carries no signal, and how much chance alone would predict.

Source: Gradient Starvation in Binary-Reward GRPO, arXiv 2605.07689.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Num

from rlvr_jax.checks import require_binary
from rlvr_jax.errors import UserError
from rlvr_jax.records import AnyArray
from rlvr_jax.starvation.counts import Numbers

Rewards = Num[AnyArray, "*batch P G"] | Bool[AnyArray, "*batch P G"] | list | tuple
Mask = Bool[AnyArray, "*batch P G"] | list | tuple | None


class Degeneracy(NamedTuple):
    """Shares of groups, each in [0, 1]."""

    all_wrong: Float[Array, "*batch"]
    all_right: Float[Array, "*batch"]
    mixed: Float[Array, "*batch"]
    degenerate: Float[Array, "*batch"]
    """`all_wrong + all_right`: uniform groups, whose group-centred advantage is exactly zero."""
    predicted: Float[Array, "*batch"]
    """What independent samples at the pooled mean reward would give; see `bernoulli_prediction`."""


def degeneracy(rewards: Rewards, mask: Mask = None) -> Degeneracy:
    """Degenerate groups among P groups of G binary rewards (0 wrong, 1 right), `[*batch, P, G]`.

    `mask` is True on the rewards that exist. A group counts with those alone (one with a single reward is always
    uniform), a group without any is left out, and with no group at all every share is 0. Groups of n rewards each are
    predicted to be uniform with probability `p^n + (1 - p)^n`, p being the mean of all rewards that exist.

    Raises UserError for a reward other than 0 and 1. Inside jit, where values are not known, that is a
    `checkify.debug_check`: without `checkify.checkify` around it, rewards of other values give meaningless shares.
    """
    require_binary("degeneracy", rewards, mask)
    rewards = jnp.asarray(rewards, jnp.float32)
    if rewards.ndim < 2:
        raise UserError(f"rewards of degeneracy have shape {rewards.shape}, accepted is [..., prompts, samples]")
    mask = jnp.ones(rewards.shape, bool) if mask is None else jnp.broadcast_to(jnp.asarray(mask, bool), rewards.shape)

    sizes = jnp.sum(mask, -1, dtype=jnp.float32)
    exists = sizes > 0
    groups = jnp.maximum(jnp.sum(exists, -1, dtype=jnp.float32), 1.0)

    def share(values: Array) -> Array:
        return jnp.sum(jnp.where(exists, values, 0.0), -1, dtype=jnp.float32) / groups

    all_wrong = jnp.all((rewards <= 0.0) | ~mask, -1)
    all_right = jnp.all((rewards >= 1.0) | ~mask, -1)
    total = jnp.sum(jnp.where(mask, rewards, 0.0), (-2, -1))
    mean = total / jnp.maximum(jnp.sum(sizes, -1), 1.0)
    predicted = share(bernoulli_prediction(mean[..., None], jnp.where(exists, sizes, 1.0)))
    uniform = all_wrong | all_right
    return Degeneracy(share(all_wrong), share(all_right), share(~uniform), share(uniform), predicted)


def bernoulli_prediction(success_rate: Numbers, group_size: Numbers) -> Float[Array, "..."]:
    """`p^G + (1 - p)^G`: the degeneracy if every prompt had the same success rate p.

    Convex in p, so by Jensen the true rate over prompts of unequal difficulty is never below it. The two broadcast.
    """
    success_rate = jnp.asarray(success_rate, jnp.float32)
    return success_rate**group_size + (1.0 - success_rate) ** group_size


def zero_advantage_share(advantages: Float[AnyArray, "*batch P G"]) -> Float[Array, "*batch"]:
    """Share of samples that were generated and verified but push nothing: every advantage of their group is zero."""
    return jnp.mean(jnp.all(advantages == 0.0, -1), -1, dtype=jnp.float32)


def filtering_cost(degenerate_share: Numbers) -> Float[Array, "..."]:
    """`1 / (1 - D)`: prompts to sample for one that is kept, when degenerate groups are dropped and sampled anew.

    That is dynamic sampling (DAPO, arXiv 2503.14476): D = 0.69 costs 3.2 times the samples. Infinite at D = 1.
    """
    return 1.0 / jnp.maximum(1.0 - jnp.asarray(degenerate_share, jnp.float32), 0.0)
