"""Products with weights, and the gate between them, in the forms that XLA runs fastest.

Weights are `[out, in]`, as checkpoints store them: on CPU the product with few rows (decoding) is faster so, with many
rows it makes no difference.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int8


class Int8Array(NamedTuple):
    """Numbers as multiples, from -127 to 127, of one scale for all along the last axis."""

    values: Int8[Array, "*shape"]
    scale: Float[Array, "*rows"]

    @classmethod
    def of(cls, x: Float[Array, "*shape"]) -> "Int8Array":
        """The nearest; an error of at most half of a 127th of the largest number beside it."""
        scale = jnp.abs(x).max(-1).astype(jnp.float32) / 127
        # Numbers that are all zero stay so.
        values = jnp.round(x / jnp.where(scale > 0, scale, 1)[..., None])
        return cls(values.astype(jnp.int8), scale.astype(x.dtype))


def linear(
    x: Float[Array, "tokens in"], weight: Float[Array, "out in"] | Int8Array, dtype: jnp.dtype | None = None
) -> Float[Array, "tokens out"]:
    """`x @ weight.T`, for few tokens on CPU computed as `(weight @ x.T).T`; `dtype`: of the result, default that of x.

    XLA's CPU matrix product is up to twice as fast with the few columns on the right; the barriers keep its
    simplifier from turning the product back.
    """

    def few_tokens(x: Array, weight: Array) -> Array:
        columns = jax.lax.optimization_barrier(x.T)
        product = jnp.matmul(weight, columns, preferred_element_type=dtype)
        return jax.lax.optimization_barrier(product).T

    def any_tokens(x: Array, weight: Array) -> Array:
        return _product(x, weight, dtype)

    if isinstance(weight, Int8Array):
        return any_tokens(x, weight.values.astype(x.dtype)) * weight.scale
    if x.shape[0] > 32:
        return any_tokens(x, weight)
    return jax.lax.platform_dependent(x, weight, cpu=few_tokens, default=any_tokens)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _product(x: Array, weight: Array, dtype: jnp.dtype | None) -> Array:
    return jnp.einsum("ni,oi->no", x, weight, preferred_element_type=dtype)


def _product_backward(_: jnp.dtype | None, factors: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
    """In the gradient of the weight XLA's CPU compiler transposes the left factor, and computes within that slow copy
    anew what made it: of many tokens the left one is to be the narrower, though the product is to be transposed then.
    The barrier keeps the simplifier from turning them back."""
    x, weight = factors

    def narrow_on_the_left(x: Array, cotangent: Array) -> Array:
        return jax.lax.optimization_barrier(jnp.einsum("ni,no->io", x, cotangent)).T

    def plain(x: Array, cotangent: Array) -> Array:
        return jnp.einsum("no,ni->oi", cotangent, x)

    of_x = jnp.einsum("no,oi->ni", cotangent, weight)
    if len(x) > weight.shape[1] and weight.shape[0] > weight.shape[1]:
        of_weight = jax.lax.platform_dependent(x, cotangent, cpu=narrow_on_the_left, default=plain)
    else:
        of_weight = plain(x, cotangent)
    return of_x.astype(x.dtype), of_weight.astype(weight.dtype)


_product.defvjp(lambda x, weight, dtype: (_product(x, weight, dtype), (x, weight)), _product_backward)


@jax.custom_vjp
def swiglu(gate: Array, up: Array) -> Array:
    """`silu(gate) * up`, with its gradients computed once: XLA on CPU would compute them anew for each product."""
    return jax.nn.silu(gate) * up


def _swiglu_backward(residuals: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
    gate, up = residuals
    sigmoid = jax.nn.sigmoid(gate)
    gradients = cotangent * up * sigmoid * (1 + gate * (1 - sigmoid)), cotangent * gate * sigmoid
    return jax.lax.platform_dependent(gradients, cpu=jax.lax.optimization_barrier, default=lambda x: x)


swiglu.defvjp(lambda gate, up: (swiglu(gate, up), (gate, up)), _swiglu_backward)
