"""Real tokens one after the other instead of padded, where tokens do not meet: in products with weights.

A batch of completions of unequal length is mostly pads, which cost as much as tokens. Packed, they take a list of a
fixed size, into which the real ones must fit. `pack` and `unpack` are each other's transpose, so that a gradient as
well is gathered, which is faster than adding into places.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Shaped


def pack(x: Shaped[Array, "..."], mask: Bool[Array, "*lead"], size: int) -> Shaped[Array, "size ..."]:
    """What stands at the real places of `x [*lead, ...]`, in their order, then zeros up to `size`.

    What does not fit is lost: `size` must be at least the number of real places.
    """

    @jax.custom_vjp
    def packed(x: Array, mask: Array) -> Array:
        return _pack(x, mask, size)

    packed.defvjp(
        lambda x, mask: (_pack(x, mask, size), mask), lambda mask, cotangent: (_unpack(cotangent, mask), None)
    )
    return packed(x, mask) if jnp.issubdtype(x.dtype, jnp.floating) else _pack(x, mask, size)


def unpack(x: Shaped[Array, "size ..."], mask: Bool[Array, "*lead"]) -> Shaped[Array, "..."]:
    """The inverse of `pack`: `[*lead, ...]`, zeros where `mask` is False."""
    size = len(x)

    @jax.custom_vjp
    def unpacked(x: Array, mask: Array) -> Array:
        return _unpack(x, mask)

    unpacked.defvjp(
        lambda x, mask: (_unpack(x, mask), mask), lambda mask, cotangent: (_pack(cotangent, mask, size), None)
    )
    return unpacked(x, mask)


def _pack(x: Array, mask: Array, size: int) -> Array:
    flat = x.reshape(mask.size, *x.shape[mask.ndim :])
    places = jnp.nonzero(mask.ravel(), size=size, fill_value=0)[0]
    return _where(jnp.arange(size) < mask.sum(), flat[places])


def _unpack(x: Array, mask: Array) -> Array:
    places = jnp.clip(jnp.cumsum(mask.ravel()) - 1, 0)
    return _where(mask.ravel(), x[places]).reshape(*mask.shape, *x.shape[1:])


def _where(mask: Bool[Array, " n"], x: Shaped[Array, "n ..."]) -> Shaped[Array, "n ..."]:
    return jnp.where(mask.reshape(-1, *[1] * (x.ndim - 1)), x, jnp.zeros((), x.dtype))
