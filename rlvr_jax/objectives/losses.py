"""Per-token policy losses and their aggregation.

A loss of 0 is not "nothing learnt": on-policy the value of a group-centred loss is about zero by
construction while its gradient is not. Watch reward and gradient norm, not the loss.
"""

from typing import Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rlvr_jax.errors import UserError
from rlvr_jax.records import AnyArray

PerToken = Float[AnyArray, "*batch T"]
Aggregation = Literal["sequence_mean", "token_mean", "sequence_sum", "constant_length"]


def policy_gradient(
    log_probabilities: PerToken, behaviour_log_probabilities: PerToken, advantages: PerToken
) -> PerToken:
    """REINFORCE, `-A log pi(y_t)`: no ratio and no clipping (Williams 1992).

    `behaviour_log_probabilities` is not used; all surrogates share one signature.
    """
    del behaviour_log_probabilities
    return -advantages * log_probabilities


def ppo_clip(
    log_probabilities: PerToken,
    behaviour_log_probabilities: PerToken,
    advantages: PerToken,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> PerToken:
    """Clipped surrogate, `-min(w A, clip(w, 1 - clip_low, 1 + clip_high) A)` with `w = pi / pi_behaviour`.

    Source: PPO, arXiv 1707.06347, eq. 7; separate bounds as in DAPO, arXiv 2503.14476, eq. 10. Exactly
    on-policy (w = 1) its gradient is that of `policy_gradient`.
    """
    ratio = jnp.exp(log_probabilities - jax.lax.stop_gradient(behaviour_log_probabilities))
    clipped = jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    return -jnp.minimum(ratio * advantages, clipped * advantages)


def aggregate(
    per_token: PerToken,
    mask: Bool[AnyArray, "*batch T"],
    how: Aggregation,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Masked (sum, weight) of a per-token quantity; the loss is sum / weight.

    The pair, rather than the quotient, lets micro-batches and devices of unequal size add up exactly:
    sum all sums, sum all weights, divide once. All-masked input gives (0, 0).

    * `sequence_mean`: mean over sequences of their token means (GRPO); an all-masked sequence counts as 0
      and keeps its place in the denominator, as in TRL.
    * `token_mean`: mean over all tokens of the batch (DAPO).
    * `sequence_sum`: mean over sequences of their token sums.
    * `constant_length`: as `sequence_sum`, divided by the fixed length T (Dr. GRPO).
    """
    # `where` before the product: a NaN or infinity in a masked place must not reach the sum.
    per_token = jnp.where(mask, per_token, 0.0)
    tokens = mask.sum(-1).astype(jnp.float32)
    sequences = jnp.asarray(tokens.size, jnp.float32)
    if how == "sequence_mean":
        return jnp.sum(per_token.sum(-1) / jnp.maximum(tokens, 1.0)), sequences
    if how == "token_mean":
        return per_token.sum(), tokens.sum()
    if how == "sequence_sum":
        return per_token.sum(), sequences
    if how == "constant_length":
        return per_token.sum(), sequences * mask.shape[-1]
    raise UserError(f"aggregation is {how!r}, accepted are {', '.join(get_args(Aggregation))}")


def weighted_mean(total: Float[Array, ""], weight: Float[Array, ""]) -> Float[Array, ""]:
    """`total / weight`, and 0 where the weight is 0: an empty batch gives no loss and no gradient."""
    return jnp.where(weight > 0, total / jnp.where(weight > 0, weight, 1.0), 0.0)
