"""Advantages that compare the samples of one prompt: in a uniform group each of them is exactly zero,
except where virtual rewards are added to the group (`ngrpo`, `virtual_rewards`).
"""

from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rlvr_jax.errors import UserError
from rlvr_jax.objectives.advantages.groups import (
    Rewards,
    Valid,
    advantage,
    anchor,
    centred,
    count,
    deviation,
    from_anchor,
    mean,
    missing_to_zero,
    safe_sqrt,
    z_score,
)
from rlvr_jax.records import AnyArray


@advantage(samples=2)
def group_mean(
    rewards: Rewards,
    mask: Valid = None,
    *,
    normalize: Literal["none", "std"] = "none",
    ddof: int = 1,
    eps: float = 1e-6,
) -> Rewards:
    """Group-mean centred advantage.

    * `normalize="none"`: `A = r - mean(r)` (Dr. GRPO, arXiv 2503.20783).
    * `normalize="std"`: `A = (r - mean(r)) / (std(r) + eps)` (GRPO, arXiv 2402.03300). `ddof=1`, the unbiased
      deviation, is what most libraries use (verl eps 1e-6, TRL 1e-4); open-instruct uses `ddof=0`.

    [1, 0, 0, 0] gives [0.75, -0.25, -0.25, -0.25] and [1.5, -0.5, -0.5, -0.5].
    """
    if normalize == "none":
        return centred(rewards, mask)
    if normalize == "std":
        return z_score(rewards, mask, ddof, eps)
    raise UserError(f"normalize is {normalize!r}, accepted are none, std")


@advantage(samples=2)
def leave_one_out(rewards: Rewards, mask: Valid = None) -> Rewards:
    """RLOO: each reward minus the mean of the others, `G / (G - 1) (r - mean(r))`. Source: arXiv 2402.14740."""
    n = count(rewards, mask)
    return centred(rewards, mask) * (n / jnp.maximum(n - 1.0, 1.0))


@advantage(samples=2)
def max_rl(rewards: Rewards, mask: Valid = None, *, eps: float = 1e-6) -> Rewards:
    """MaxRL, `A = (r - mean(r)) / (mean(r) + eps)`: [1, 0, 0, 0] gives [3, -1, -1, -1].

    For rewards of 0 or more. Source: the repository tajwarfahim/maxrl.
    """
    return centred(rewards, mask) / (mean(rewards, mask) + eps)


@advantage(samples=2)
def opo(rewards: Rewards, lengths: Rewards, mask: Valid = None) -> Rewards:
    """OPO: minus the length-weighted mean reward, `b = sum(|y| r) / sum(|y|)`. Source: arXiv 2505.23585.

    `lengths[..., G]` in tokens. An empty completion has no weight; a group of empty ones has the plain mean.
    """
    weights = missing_to_zero(lengths, mask)
    weights = jnp.where(weights.sum(-1, keepdims=True) > 0, weights, 1.0)
    weights = missing_to_zero(weights, mask)
    difference = from_anchor(rewards, mask)
    return difference - (weights * difference).sum(-1, keepdims=True) / jnp.maximum(
        weights.sum(-1, keepdims=True), 1e-30
    )


@advantage(samples=2)
def opmd(
    rewards: Rewards,
    mask: Valid = None,
    *,
    baseline: Literal["mean", "log_mean_exp"] = "mean",
    temperature: float = 1.0,
    baseline_shift: float = 0.0,
) -> Rewards:
    """Online policy mirror descent, `A = r - b`: b the group's mean or `t log mean exp(r / t)`.

    A `baseline_shift` other than 0 is AsymRE's (-0.1 there: a uniform group then gets +0.1).
    Source: Kimi k1.5, arXiv 2501.12599, as in Trinity-RFT, whose loss is divided by 1 + t besides.
    """
    if baseline == "mean":
        return centred(rewards, mask) - baseline_shift
    if baseline == "log_mean_exp":
        # From the group's largest reward, so that no exponential overflows.
        largest = jnp.max(rewards if mask is None else jnp.where(mask, rewards, -jnp.inf), -1, keepdims=True)
        difference = missing_to_zero(rewards - largest, mask)
        exponentials = missing_to_zero(jnp.exp(difference / temperature), mask)
        return difference - temperature * jnp.log(mean(exponentials, mask)) - baseline_shift
    raise UserError(f"baseline is {baseline!r}, accepted are mean, log_mean_exp")


@advantage(accepts="binary", samples=2)
def mapo(rewards: Rewards, mask: Valid = None, *, eps: float = 1e-6) -> Rewards:
    """MAPO: `w z + (1 - w) (r - m) / (m + eps)`, z the unbiased z-score, m the mean, `w = 4 m (1 - m)`.

    The more certain the group, the more the deviation is measured against the mean. Source: arXiv 2509.18849.
    """
    m = mean(rewards, mask)
    weight = 4.0 * m * (1.0 - m)
    return weight * z_score(rewards, mask, 1, eps) + (1.0 - weight) * centred(rewards, mask) / (m + eps)


@advantage(samples=2)
def focal(
    rewards: Rewards,
    mask: Valid = None,
    *,
    gamma: float = 0.5,
    wrong: float = 0.0,
    right: float = 1.0,
    ddof: int = 1,
    eps: float = 1e-6,
) -> Rewards:
    """F-GRPO: the z-score times `(1 - p)^gamma`, p the group's success rate: easy prompts count less.

    `wrong` and `right` are the two rewards. Source: arXiv 2602.06717, gamma 0.5 or 1.
    """
    failure_rate = 1.0 - (mean(rewards, mask) - wrong) / (right - wrong)
    some = failure_rate > 0
    # The power's gradient at 0 is infinite for gamma < 1; a group without failures has advantage 0 anyway.
    focus = jnp.where(some, jnp.where(some, failure_rate, 1.0) ** gamma, 0.0)
    return focus * z_score(rewards, mask, ddof, eps)


@advantage()
def ngrpo(rewards: Rewards, mask: Valid = None, *, highest: float = 1.0, eps: float = 1e-6) -> Rewards:
    """NGRPO: the z-score within the group and one virtual sample of the highest reward (unbiased deviation).

    An all-wrong group gets -1 / sqrt(G + 1), an all-right one 0. Source: arXiv 2509.18851, with asymmetric
    clipping 0.16 / 0.24.
    """
    below = missing_to_zero(rewards - highest, mask)  # measured from the virtual sample, whose own is 0
    n = count(rewards, mask) + 1.0
    shift = below.sum(-1, keepdims=True) / n
    squares = jnp.sum(missing_to_zero(below - shift, mask) ** 2, -1, keepdims=True) + shift**2
    return (below - shift) / (safe_sqrt(squares / jnp.maximum(n - 1.0, 1.0)) + eps)


@advantage()
def virtual_rewards(
    rewards: Rewards,
    mask: Valid = None,
    *,
    samples: float | Float[Array, ""],
    when_low: float = 1.0,
    when_high: float = 0.0,
    eps: float = 1e-6,
) -> Rewards:
    """The AVSPO family: virtual samples join the statistics of uniform groups, and of them alone.

    `samples` of them are added (the paper's number follows from the share of collapsed groups with a factor that is
    not public, so it must be given), with the reward `when_low` where the group's reward is below one half and
    `when_high` elsewhere. Mixed groups: the unbiased z-score. Source: arXiv 2605.21125; the values and the threshold
    there are not public either.
    """
    own, n = centred(rewards, mask), count(rewards, mask)
    spread = deviation(own, mask, 1)
    # All rewards of a uniform group are its anchor's; with the virtual ones the statistics are those of two values.
    value = anchor(rewards, mask)
    apart = value - jnp.where(value < 0.5, when_low, when_high)
    share = samples / (n + samples)
    squares = n * (share * apart) ** 2 + samples * ((1.0 - share) * apart) ** 2
    augmented = share * apart / (safe_sqrt(squares / jnp.maximum(n + samples - 1.0, 1.0)) + eps)
    return jnp.where(spread == 0.0, augmented, own / (spread + eps))


@advantage()
def pooled(
    rewards: Float[Array, "*batch V G"],
    mask: Bool[Array, "*batch V G"] | None = None,
    *,
    ddof: int = 1,
    eps: float = 1e-6,
) -> Float[Array, "*batch V G"]:
    """TA-GRPO: the z-score over all V x G rewards of a question and its rewritten variants.

    Source: arXiv 2601.22478 (V = 4). At equal G it spends V times the samples of `group_mean`.
    """
    flat = (*rewards.shape[:-2], rewards.shape[-2] * rewards.shape[-1])
    scores = z_score(rewards.reshape(flat), None if mask is None else mask.reshape(flat), ddof, eps)
    return scores.reshape(rewards.shape)


def rare_event(success_rates: Float[AnyArray, "*batch P"] | list) -> Float[Array, "*batch P"]:
    """Selection weights over P prompts: one half on the hardest solvable, one half on the easiest unsolved one.

    Of the prompts with a success rate strictly between 0 and 1, the lowest and the highest (the first of equals; one
    prompt may be both). All zero where no prompt is between. Source: arXiv 2602.03452 (abstract); the weights that
    the paper then gives to the rewards of this pair are not public and are not invented here.
    """
    rates = jnp.asarray(success_rates, jnp.float32)
    between = (rates > 0) & (rates < 1)
    places = jnp.arange(rates.shape[-1])
    hardest = jnp.argmin(jnp.where(between, rates, 2.0), -1, keepdims=True) == places
    easiest = jnp.argmax(jnp.where(between, rates, -1.0), -1, keepdims=True) == places
    return jnp.where(between, 0.5 * hardest + 0.5 * easiest, 0.0)
