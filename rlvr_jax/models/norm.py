"""The root-mean-square norm, with a gradient in the form that XLA runs fastest."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# A float32 product on TPU is of bfloat16 factors unless it is told otherwise.
_exact_einsum = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)


def rms_norm(x: Float[Array, "*batch size"], scale: Float[Array, " size"], eps: float) -> Float[Array, "*batch size"]:
    """`scale * x / sqrt(mean(x**2) + eps)` (arXiv 1910.07467), computed in float32 and returned in the type of `x`."""
    return _normed(x.astype(jnp.float32), scale, eps).astype(x.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _normed(x: Array, scale: Array, eps: float) -> Array:
    return _forward(x, scale, eps)[0]


def _forward(x: Array, scale: Array, eps: float) -> tuple[Array, tuple[Array, Array, Array]]:
    inverse = jax.lax.rsqrt(_exact_einsum("...d,...d->...", x, x)[..., None] / x.shape[-1] + eps)
    return x * inverse * scale, (x, inverse, scale)


def _backward(_: float, residuals: tuple[Array, Array, Array], cotangent: Array) -> tuple[Array, Array]:
    """Sums as products with vectors: on CPU XLA's reductions over tokens cost more than all else in a norm."""
    x, inverse, scale = residuals
    normed, of_normed = x * inverse, cotangent * scale
    of_tokens = (normed * cotangent).reshape(-1, x.shape[-1])
    of_scale = _exact_einsum("t,td->d", jnp.ones(len(of_tokens)), of_tokens)
    along = _exact_einsum("...d,...d->...", of_normed, normed)[..., None] / x.shape[-1]
    return inverse * (of_normed - normed * along), of_scale


_normed.defvjp(_forward, _backward)
