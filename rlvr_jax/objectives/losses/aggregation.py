"""From a loss per token to one number, as a sum and a weight, so that micro-batches and devices combine exactly."""

from typing import Literal, get_args

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rlvr_jax.errors import UserError
from rlvr_jax.records import AnyArray

Aggregation = Literal["sequence_mean", "token_mean", "sequence_sum", "constant_length"]


def aggregate(
    per_token: Float[AnyArray, "*batch T"],
    mask: Bool[AnyArray, "*batch T"],
    how: Aggregation,
    *,
    length: int | None = None,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Masked (sum, weight) of a per-token quantity; the loss is sum / weight, see `weighted_mean`.

    The pair, rather than the quotient, lets micro-batches and devices of unequal size add up exactly:
    sum all sums, sum all weights, divide once. All-masked input gives (0, 0) or (0, number of sequences).

    * `sequence_mean`: mean over sequences of their token means (GRPO); an all-masked sequence counts as 0
      and keeps its place in the denominator, as in TRL.
    * `token_mean`: mean over all tokens of the batch (DAPO).
    * `sequence_sum`: mean over sequences of their token sums.
    * `constant_length`: as `sequence_sum`, divided by the fixed `length` (Dr. GRPO); None means T.
    """
    mask = jnp.asarray(mask, bool)
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
        return per_token.sum(), sequences * (length or mask.shape[-1])
    raise UserError(f"aggregation is {how!r}, accepted are {', '.join(get_args(Aggregation))}")


def weighted_mean(total: Float[Array, ""], weight: Float[Array, ""]) -> Float[Array, ""]:
    """`total / weight`, and 0 where the weight is 0: an empty batch gives no loss and no gradient."""
    return jnp.where(weight > 0, total / jnp.where(weight > 0, weight, 1.0), 0.0)
