"""Weights for samples that another policy drew than the one being trained."""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rlvr_jax.errors import UserError
from rlvr_jax.records import AnyArray


def importance_weights(
    log_probabilities: Float[AnyArray, "*batch T"],
    sampler_log_probabilities: Float[AnyArray, "*batch T"],
    mask: Bool[AnyArray, "*batch T"],
    *,
    cap: float = 2.0,
    floor: float = 0.0,
    level: Literal["token", "sequence"] = "token",
    beyond: Literal["truncate", "drop"] = "truncate",
) -> Float[Array, "*batch T"]:
    """Importance weights `min(pi / pi_sampler, cap)`, constants of the differentiation, 0 at masked places.

    They multiply the policy term of a loss, not its KL term, when the sampler's numbers differ from the trainer's
    (lower precision, quantised weights, an older policy): truncated importance sampling. `beyond="drop"` gives 0
    instead of the bound outside [floor, cap] (IcePop). `level="sequence"` takes the ratio of the whole completion.
    """
    mask = jnp.asarray(mask, bool)
    difference = jnp.asarray(log_probabilities, jnp.float32) - jnp.asarray(sampler_log_probabilities, jnp.float32)
    change = jnp.where(mask, difference, 0.0)
    if level == "sequence":
        change = jnp.broadcast_to(change.sum(-1, keepdims=True), mask.shape)
    elif level != "token":
        raise UserError(f"level is {level!r}, accepted are token, sequence")
    ratio = jnp.exp(jnp.clip(change, -80.0, 80.0))
    if beyond == "truncate":
        weights = jnp.clip(ratio, floor, cap)
    elif beyond == "drop":
        weights = jnp.where((ratio >= floor) & (ratio <= cap), ratio, 0.0)
    else:
        raise UserError(f"beyond is {beyond!r}, accepted are truncate, drop")
    return jax.lax.stop_gradient(jnp.where(mask, weights, 0.0))
