"""Exact draws from a softmax by inverting its cumulative distribution: one uniform number per token."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rlvr_jax.models.head import tempered
from rlvr_jax.sampling.truncation import Truncation, truncate

_BLOCK = 256


class Drawn(NamedTuple):
    """Tokens, and what is known of them when they are drawn; float32, nats."""

    tokens: Int[Array, "*batch"]
    log_probabilities: Float[Array, "*batch"]
    """Under the distribution drawn from."""
    policy_log_probabilities: Float[Array, "*batch"]
    """Under softmax(logits): at temperature 1, and whole."""
    entropies: Float[Array, "*batch"]
    """Of the distribution drawn from."""


def draw(
    logits: Float[Array, "*#batch vocab"],
    uniforms: Float[Array, "*#batch"],
    temperature: Float[Array, ""],
    truncation: Truncation | None = None,
) -> Drawn:
    """Tokens of softmax(logits / temperature), as far as not truncated.

    Logits of one distribution that several uniforms draw from need not be repeated: the batch axes broadcast.
    Temperature 0 takes the most likely token, and reports all figures for the untempered policy, whole.
    `uniforms` are in [0, 1). The cumulative sum is taken in two levels, over blocks and then within
    one, which costs a tenth of Gumbel noise over the vocabulary and never returns a token of probability 0.
    """
    policy, logits = logits.astype(jnp.float32), tempered(logits, temperature)
    if truncation is not None:
        logits = jnp.where(temperature > 0, truncate(logits, truncation), logits)
    peak = logits.max(-1, keepdims=True)
    weights = jnp.exp(logits - peak)
    total = weights.sum(-1)
    log_total = jnp.log(total) + peak[..., 0]
    # As a product of vectors: as a sum of products XLA's CPU compiler makes it the slowest part of all.
    mean = jnp.einsum("...v,...v->...", weights, logits, precision=jax.lax.Precision.HIGHEST)
    entropy = log_total - mean / total

    vocab = logits.shape[-1]
    blocks = jnp.pad(weights, [(0, 0)] * (logits.ndim - 1) + [(0, -vocab % _BLOCK)])
    blocks = blocks.reshape(*logits.shape[:-1], -1, _BLOCK)
    block, remainder = _invert(blocks.sum(-1), uniforms)
    chosen_block = jnp.take_along_axis(blocks, block[..., None, None], -2)[..., 0, :]
    within, _ = _invert(chosen_block, remainder)
    token = block * _BLOCK + within

    def likeliest() -> Array:
        return jnp.broadcast_to(jnp.argmax(logits, -1), token.shape)

    def policy_log_total() -> Array:
        # Truncation leaves the likeliest token, so this is the policy's own peak, up to rounding.
        high = peak * temperature
        return jnp.log(jnp.exp(policy - high).sum(-1)) + high[..., 0]

    # Passes over the vocabulary that most calls have no need of.
    token = jax.lax.cond(temperature > 0, lambda: token, likeliest)
    untouched = (temperature == 0) | ((temperature == 1) & (truncation is None))
    policy_total = jax.lax.cond(untouched, lambda: log_total, policy_log_total)

    def chosen(logits: Array) -> Array:
        return jnp.take_along_axis(logits, token[..., None], -1)[..., 0]

    return Drawn(
        token, chosen(logits) - log_total, chosen(policy) - policy_total, jnp.broadcast_to(entropy, token.shape)
    )


def _invert(
    weights: Float[Array, "*#batch n"], uniforms: Float[Array, "*#batch"]
) -> tuple[Int[Array, "*batch"], Float[Array, "*batch"]]:
    """Where the cumulative share passes `uniforms`: the index, and how far into its own share, in [0, 1)."""
    cumulative = jnp.cumsum(weights, -1)
    target = uniforms * cumulative[..., -1]
    index = jnp.sum(cumulative <= target[..., None], -1)
    # Rounding may carry the target to the very end: step back to the last index of non-zero weight.
    last = weights.shape[-1] - 1 - jnp.argmax(weights[..., ::-1] > 0, -1)
    index = jnp.minimum(index, last)
    weight = jnp.take_along_axis(weights, index[..., None], -1)[..., 0]
    before = jnp.take_along_axis(cumulative, index[..., None], -1)[..., 0] - weight
    remainder = jnp.clip((target - before) / weight, 0.0, 1.0 - 2.0**-24)
    return index, remainder
