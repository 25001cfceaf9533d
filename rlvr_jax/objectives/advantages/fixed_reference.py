"""Advantages with a fixed reference: what a sample is worth does not depend on what its group did.

So a uniform group keeps a signal. Rewards are binary in the papers: 0 wrong, 1 right.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from rlvr_jax.objectives.advantages.groups import Rewards, Valid, advantage


@advantage()
def sign(rewards: Rewards, mask: Valid = None) -> Rewards:
    """Sign advantage, `A = 2r - 1`: +1 for a right sample, -1 for a wrong one, whatever the group did.

    On all-wrong groups its expected update is the gradient of pass@G, on all-right groups that of p^G.
    Source: Gradient Starvation in Binary-Reward GRPO, arXiv 2605.07689 (abstract).
    """
    return 2.0 * rewards - 1.0


@advantage()
def reinforce(rewards: Rewards, mask: Valid = None, *, baseline: float | Float[Array, "..."] = 0.0) -> Rewards:
    """`A = r - b` with a constant baseline, or an array that broadcasts to the rewards (a running mean).

    b = 1/2 is exactly half of `sign`: the control for its step size. Source: Williams 1992.
    """
    return rewards - baseline


@advantage(accepts="binary")
def positive_only(rewards: Rewards, mask: Valid = None) -> Rewards:
    """Positive sample reinforcement (PSR): +1 for a right sample, 0 for a wrong one. Source: arXiv 2506.01347."""
    return rewards


@advantage(accepts="binary")
def negative_only(rewards: Rewards, mask: Valid = None) -> Rewards:
    """Negative sample reinforcement (NSR): 0 for a right sample, -1 for a wrong one. Source: arXiv 2506.01347."""
    return rewards - 1.0


@advantage(accepts="binary")
def weighted_reinforce(rewards: Rewards, mask: Valid = None, *, positive_weight: float = 0.1) -> Rewards:
    """W-REINFORCE: `positive_weight` for a right sample, -1 for a wrong one; weight 1 is `sign`.

    Source: arXiv 2506.01347, with the weight 0.1.
    """
    return positive_weight * rewards - (1.0 - rewards)


@advantage()
def remax(rewards: Rewards, greedy_rewards: Float[Array, "*batch"], mask: Valid = None) -> Rewards:
    """ReMax, `A = r - r(greedy)`: `greedy_rewards[...]` is the reward of the prompt's greedy completion.

    Source: arXiv 2310.10505.
    """
    return rewards - greedy_rewards[..., None]


@advantage()
def tasa(rewards: Rewards, mask: Valid = None, *, threshold: float = 0.5) -> Rewards:
    """Right and wrong samples share a mass of one each: `+1 / n_right` and `-1 / n_wrong` for binary rewards.

    `A = max(r - c, 0) / Z+ - max(c - r, 0) / Z-`, Z the group's sum of the same. An arm of the precursor repository
    of arXiv 2605.07689 (unconfirmed), where it is called TASA.
    """
    above, below = jnp.maximum(rewards - threshold, 0.0), jnp.maximum(threshold - rewards, 0.0)
    if mask is not None:
        above, below = jnp.where(mask, above, 0.0), jnp.where(mask, below, 0.0)
    # A sum of zero stands over zeros only.
    sums = [jnp.where(z > 0, z, 1.0) for z in (above.sum(-1, keepdims=True), below.sum(-1, keepdims=True))]
    return above / sums[0] - below / sums[1]
