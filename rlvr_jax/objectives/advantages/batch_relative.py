"""Advantages with a statistic of the whole batch: rewards `[..., P, G]`, P prompts of G samples.

Under jit the batch may be laid over devices in any way. Inside `shard_map` or `pmap`, where a function sees its own
prompts only, `axis_name` names the mesh axes over which the statistic is to be taken.
"""

from typing import Literal

import jax
import jax.numpy as jnp

from rlvr_jax.errors import UserError
from rlvr_jax.objectives.advantages.groups import (
    AxisName,
    BatchRewards,
    BatchValid,
    advantage,
    batch_deviation,
    centred,
    count,
    from_batch_mean,
    mean,
    safe_sqrt,
    total,
    weights_of,
)


@advantage(samples=2)
def batch_normalized(
    rewards: BatchRewards, mask: BatchValid = None, *, ddof: int = 1, eps: float = 1e-6, axis_name: AxisName = None
) -> BatchRewards:
    """Lite-PPO: `(r - mean of the group) / (std of the batch + eps)`.

    Source: arXiv 2508.08221; TRL's `scale_rewards="batch"` with eps 1e-4.
    """
    own, m, n = centred(rewards, mask), mean(rewards, mask), count(rewards, mask)
    samples = total(jnp.broadcast_to(n, m.shape), axis_name)
    between = m - total(n * m, axis_name) / jnp.maximum(samples, 1.0)
    # Squares within groups and between them: the batch's own, without another pass over it.
    squares = total(own**2, axis_name) + total(n * between**2, axis_name)
    return own / (safe_sqrt(squares / jnp.maximum(samples - ddof, 1.0)) + eps)


@advantage()
def reinforce_plus_plus(
    rewards: BatchRewards,
    mask: BatchValid = None,
    *,
    lengths: BatchRewards | None = None,
    eps: float = 1e-8,
    axis_name: AxisName = None,
) -> BatchRewards:
    """REINFORCE++: rewards whitened over the batch, `(r - mean) / sqrt(var + eps)`, unbiased variance.

    Whitening is over tokens: a completion counts as often as it is long where `lengths[..., P, G]` are given, else
    once. Undiscounted outcome rewards; a KL in the reward is subtracted before. Source: arXiv 2501.03262, as in verl.
    """
    weights = weights_of(rewards, mask, lengths)
    difference = from_batch_mean(rewards, weights, axis_name)
    return _whitened(difference, weights, eps, axis_name)


@advantage(samples=2)
def reinforce_plus_plus_baseline(
    rewards: BatchRewards,
    mask: BatchValid = None,
    *,
    lengths: BatchRewards | None = None,
    eps: float = 1e-8,
    axis_name: AxisName = None,
) -> BatchRewards:
    """REINFORCE++-baseline: minus the mean of the group first, then whitened over the batch as above.

    With unequal `lengths` the centred rewards have a mean other than 0 over tokens; it is subtracted too, as in verl,
    so that uniform groups then get minus that mean. Source: arXiv 2501.03262.
    """
    weights = weights_of(rewards, mask, lengths)
    difference = centred(rewards, mask)
    if lengths is not None:
        difference = from_batch_mean(difference, weights, axis_name)
    return _whitened(difference, weights, eps, axis_name)


@advantage(samples=2)
def gpg(
    rewards: BatchRewards,
    mask: BatchValid = None,
    *,
    correct_by: Literal["informative", "non_zero"] = "informative",
    axis_name: AxisName = None,
) -> BatchRewards:
    """GPG: `alpha (r - mean of the group)`, alpha making up for groups without signal.

    `informative`: samples of the batch over samples in groups that are not uniform (the paper, arXiv 2504.02546);
    `non_zero`: over samples whose reward is not 0 (verl). With none of them every advantage is 0.
    """
    difference = centred(rewards, mask)
    valid = weights_of(rewards, mask, None)
    if correct_by == "informative":
        useful = jnp.where(jnp.any(difference != 0, -1, keepdims=True), valid, 0.0)
    elif correct_by == "non_zero":
        useful = jnp.where(rewards != 0, valid, 0.0)
    else:
        raise UserError(f"correct_by is {correct_by!r}, accepted are informative, non_zero")
    alpha = total(valid, axis_name) / jnp.maximum(total(useful, axis_name), 1.0)
    return alpha * difference


@advantage(accepts="binary", samples=2)
def bnpo(rewards: BatchRewards, mask: BatchValid = None, *, axis_name: AxisName = None) -> BatchRewards:
    """BNPO: `(r - p) / Beta(p; alpha, beta)`, p the group's success rate, the density fitted to all of the batch's.

    Mean and unbiased variance of p over the groups give a Beta(a, b) by moments; alpha = max(1 + a / 3, 1), beta
    likewise with b; 1 / density is at most 1e6. Where the moments fit no Beta (no variance, one group) the density
    is taken as 1, so that `A = r - p`. Source: arXiv 2506.02864.
    """
    p = mean(rewards, mask)
    present = jnp.ones_like(p) if mask is None else mask.any(-1, keepdims=True).astype(jnp.float32)
    groups = total(present, axis_name)
    m = total(p * present, axis_name) / jnp.maximum(groups, 1.0)
    variance = total(present * (p - m) ** 2, axis_name) / jnp.maximum(groups - 1.0, 1.0)
    fits = (variance > 1e-12) & (m > 0) & (m < 1)
    # a and b are 0 where no Beta fits: alpha = beta = 1 is the density 1.
    concentration = jnp.where(fits, m * (1.0 - m) / jnp.where(fits, variance, 1.0) - 1.0, 0.0)
    alpha = jnp.maximum(1.0 + concentration * m / 3.0, 1.0)
    beta = jnp.maximum(1.0 + concentration * (1.0 - m) / 3.0, 1.0)
    # Without missing samples p has G + 1 values: a density for each of them is cheaper than one for each group.
    levels = p if mask is not None else jnp.arange(rewards.shape[-1] + 1) / rewards.shape[-1]
    # At p = 0 and 1 the density may be 0, but there A = 0 whatever it is.
    q = jnp.where((levels > 0) & (levels < 1), levels, 0.5)
    log_density = (alpha - 1.0) * jnp.log(q) + (beta - 1.0) * jnp.log1p(-q) - jax.scipy.special.betaln(alpha, beta)
    scale = jnp.minimum(jnp.exp(-log_density), 1e6)
    if mask is None:
        right = rewards.sum(-1, keepdims=True).astype(jnp.int32)
        scale = jnp.take_along_axis(scale, right, -1)
    return centred(rewards, mask) * scale


def _whitened(difference: BatchRewards, weights: BatchRewards, eps: float, axis_name: AxisName) -> BatchRewards:
    spread = batch_deviation(difference, weights, 1, axis_name)
    return difference / jnp.sqrt(spread**2 + eps)
