"""Distributions cut to their likeliest tokens: top-k, top-p (arXiv 1904.09751), min-p (arXiv 2407.01082).

All three are thresholds on a token's probability, found by bisection over the bits of its logit: exact, without a sort
of the vocabulary, and with numbers that may change without a new compilation.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32

from rlvr_jax.errors import UserError


class Truncation(NamedTuple):
    """Which tokens may be drawn; applied after the temperature, in this order, as transformers does."""

    top_k: Int[Array, ""] | int = 0
    """The k likeliest, and what is as likely as the last of them; 0: all."""
    top_p: Float[Array, ""] | float = 1.0
    """Of these the likeliest that together have this share of the probability, and what is as likely as the last."""
    min_p: Float[Array, ""] | float = 0.0
    """Those with this share of the likeliest token's probability."""


def checked_truncation(top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> Truncation | None:
    """Of numbers that a user gave; None where they leave all tokens. Raises UserError for what does not fit."""
    for name, value, fits, accepted in (
        ("top_k", top_k, 0 <= top_k < 2**31, "from 0 (all) to 2**31 - 1"),
        ("top_p", top_p, 0 < top_p <= 1, "above 0 and at most 1 (all)"),
        ("min_p", min_p, 0 <= min_p <= 1, "from 0 (all) to 1"),
    ):
        if not fits:
            raise UserError(f"{name} is {value}, accepted is {accepted}")
    found = Truncation(top_k, top_p, min_p)
    if found == Truncation():
        return None
    return Truncation(jnp.int32(top_k), jnp.float32(top_p), jnp.float32(min_p))


def truncate(logits: Float[Array, "*batch vocab"], truncation: Truncation) -> Float[Array, "*batch vocab"]:
    """Float32 logits, -1e30 where a token may not be drawn; the likeliest always may."""
    order = _order(logits)
    lowest = jnp.zeros((*logits.shape[:-1], 1), jnp.uint32)
    top_k, top_p = jnp.asarray(truncation.top_k), jnp.asarray(truncation.top_p)

    def of_top_k(order: Array) -> Array:
        return _threshold(order, jnp.ones(order.shape, jnp.int32), top_k)

    of_count = jax.lax.cond(top_k > 0, of_top_k, lambda _: lowest, order)
    weights = jnp.where(order >= of_count, jnp.exp(logits - logits.max(-1, keepdims=True)), 0.0)

    def of_top_p(weights: Array) -> Array:
        return _threshold(order, weights, top_p * weights.sum(-1, keepdims=True))

    of_mass = jax.lax.cond(top_p < 1, of_top_p, lambda _: lowest, weights)
    kept = (order >= of_count) & (order >= of_mass) & (weights >= truncation.min_p)
    return jnp.where(kept, logits, -1e30)


def _order(logits: Float[Array, "*batch vocab"]) -> UInt32[Array, "*batch vocab"]:
    """Integers in the order of float32 numbers."""
    bits = jax.lax.bitcast_convert_type(logits, jnp.uint32)
    return jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(1 << 31))


def _threshold(order: UInt32[Array, "*batch vocab"], measure: Array, needed: Array) -> UInt32[Array, "*batch 1"]:
    """The largest threshold that leaves at least the `needed` measure; 0 where all together are less."""

    def try_bit(i: Array, found: Array) -> Array:
        candidate = found | (jnp.uint32(1 << 31) >> i.astype(jnp.uint32))
        left = jnp.where(order >= candidate, measure, 0).sum(-1, keepdims=True)
        return jnp.where(left >= needed, candidate, found)

    return jax.lax.fori_loop(0, 32, try_bit, jnp.zeros((*order.shape[:-1], 1), jnp.uint32))
