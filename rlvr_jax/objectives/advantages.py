"""Advantages: rewards `[..., G]` of a group of G samples of one prompt to advantages `[..., G]`.

Every function is pure, float32 inside, safe under jit, vmap and grad, and takes any leading batch shape.
Rewards are binary in the paper (0 wrong, 1 right); the formulas hold for any real reward.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from rlvr_jax.errors import UserError
from rlvr_jax.records import AnyArray

Rewards = Num[AnyArray, "*batch G"]
Advantages = Float[Array, "*batch G"]


def sign(rewards: Rewards) -> Advantages:
    """Sign advantage `A = 2r - 1`: +1 for a right sample, -1 for a wrong one, whatever the group did.

    The reference (one half) is fixed, so a uniform group keeps a signal: -1 when all are wrong, +1 when all
    are right. Source: Gradient Starvation in Binary-Reward GRPO, arXiv 2605.07689 (abstract).
    """
    return 2.0 * jnp.asarray(rewards, jnp.float32) - 1.0


def half_reference(rewards: Rewards) -> Advantages:
    """REINFORCE with the constant baseline one half, `A = r - 1/2`: exactly half of `sign`.

    The control for `sign`: under a scale-free optimiser (Adam without clipping) both must learn alike.
    Source: Williams 1992, with b = 1/2.
    """
    return jnp.asarray(rewards, jnp.float32) - 0.5


def group_mean(rewards: Rewards) -> Advantages:
    """Group-mean centred advantage `A = r - mean(r)`, without normalisation (Dr. GRPO, arXiv 2503.20783, eq. 3).

    Exactly zero for a uniform group. Raises UserError when G < 2, where it would be zero for every reward.
    """
    rewards = jnp.asarray(rewards, jnp.float32)
    _require_group("group_mean", rewards)
    centred = rewards - rewards.mean(-1, keepdims=True)
    return jnp.where(_uniform(rewards), 0.0, centred)


def group_mean_std(rewards: Rewards, *, ddof: int = 1, eps: float = 1e-6) -> Advantages:
    """Normalised group-mean advantage `A = (r - mean(r)) / (std(r) + eps)` (GRPO, arXiv 2402.03300, section 4.1.2).

    `ddof` = 1 is the unbiased deviation of most implementations (verl and OpenRLHF with eps about 1e-6, TRL
    with 1e-4); 0 is the population deviation. [1, 0, 0, 0] gives [1.5, -0.5, -0.5, -0.5] under ddof 1.
    Exactly zero for a uniform group. Raises UserError when G < 2.
    """
    rewards = jnp.asarray(rewards, jnp.float32)
    _require_group("group_mean_std", rewards)
    centred = rewards - rewards.mean(-1, keepdims=True)
    variance = jnp.sum(centred**2, -1, keepdims=True) / (rewards.shape[-1] - ddof)
    uniform = _uniform(rewards)
    # The inner `where` keeps the square root's gradient finite at zero variance.
    deviation = jnp.sqrt(jnp.where(uniform, 1.0, variance))
    return jnp.where(uniform, 0.0, centred / (deviation + eps))


def _uniform(rewards: Float[Array, "*batch G"]) -> Array:
    """Whether all rewards of a group are equal, decided on the rewards: `r - mean(r)` may round to non-zero."""
    return rewards.max(-1, keepdims=True) == rewards.min(-1, keepdims=True)


def _require_group(name: str, rewards: Float[Array, "*batch G"]) -> None:
    if rewards.shape[-1] < 2:
        raise UserError(
            f"{name} compares the samples of one prompt: "
            f"samples per prompt is {rewards.shape[-1]}, accepted is 2 or more"
        )
