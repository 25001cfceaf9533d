"""Why degeneracy exceeds its prediction: prompts differ in difficulty, and p^G + (1 - p)^G is convex in p."""

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from rlvr_jax.errors import UserError
from rlvr_jax.records import AnyArray
from rlvr_jax.starvation.counts import Numbers, require_counts, require_group_size, require_shares
from rlvr_jax.starvation.degeneracy import bernoulli_prediction


class JensenGap(NamedTuple):
    """Degeneracy of prompts of known success rates, against that of one prompt with their mean rate."""

    predicted: Float[Array, "*batch"]
    degenerate: Float[Array, "*batch"]
    gap: Float[Array, "*batch"]
    """`degenerate - predicted`, never negative but for rounding."""
    by_moment: Float[Array, "*batch orders"]
    """What each central moment of the success rates adds to the gap: the second (variance), third, ..., G-th."""


def jensen_gap(success_rates: Float[AnyArray, "*batch P"] | list | tuple, group_size: int) -> JensenGap:
    """The gap that difficulty opens, and its exact split over the moments of difficulty.

    With `f(p) = p^G + (1 - p)^G` and the mean rate `q`, Taylor's series of the polynomial f ends by itself:
    `mean f(p) - f(q) = sum over m = 2..G of f^(m)(q) / m! * mean (p - q)^m`.
    At G = 2 the gap is twice the variance of the rates, at G = 3 three times. Terms of high order alternate in sign
    and may dwarf their sum, which then holds to float32 rounding of the terms; `gap` itself is taken directly.

    Raises UserError for a rate outside [0, 1] (not inside jit), for no prompt, and for G outside 2..128.
    """
    require_shares("jensen_gap", "success rate", success_rates)
    require_group_size("jensen_gap", group_size, 2, 128)
    rates = jnp.asarray(success_rates, jnp.float32)
    if rates.ndim < 1 or rates.shape[-1] < 1:
        raise UserError(f"success rates of jensen_gap have shape {rates.shape}, accepted is [..., prompts]")
    mean = rates.mean(-1)
    deviation = rates - mean[..., None]
    predicted = bernoulli_prediction(mean, group_size)
    degenerate = bernoulli_prediction(rates, group_size).mean(-1)
    by_moment = []
    for m in range(2, group_size + 1):
        rest = group_size - m
        derivative = math.comb(group_size, m) * (mean**rest + (-1) ** m * (1.0 - mean) ** rest)
        by_moment.append(derivative * jnp.mean(deviation**m, -1))
    return JensenGap(predicted, degenerate, degenerate - predicted, jnp.stack(by_moment, -1))


def degeneracy_at(n: Numbers, c: Numbers, group_size: int) -> Float[Array, "..."]:
    """Unbiased estimate, for each prompt, of its degeneracy at G from n >= G samples, c of them right.

    `(C(c, G) + C(n - c, G)) / C(n, G)`: the share of all groups of G among the n samples that are uniform. Its mean
    over prompts estimates the degeneracy of training at G without the bias that plugging c / n into p^G would bring.
    n and c broadcast; accurate to float32 up to n = 10000.

    Raises UserError for n < G or c outside 0..n. Inside jit nothing is refused and a prompt with n < G gives NaN.
    """
    require_group_size("degeneracy_at", group_size)
    why = f": an estimate at group size {group_size} needs as many samples of every prompt"
    require_counts("degeneracy_at", n, c, group_size, why)
    n, c = jnp.broadcast_arrays(jnp.asarray(n, jnp.float32), jnp.asarray(c, jnp.float32))
    drawn = jnp.arange(group_size, dtype=jnp.float32)
    left = n[..., None] - drawn
    # A factor of exactly zero ends the product where there are fewer than G of a kind.
    all_right = jnp.prod((c[..., None] - drawn) / left, -1)
    all_wrong = jnp.prod(((n - c)[..., None] - drawn) / left, -1)
    return jnp.where(n >= group_size, jnp.minimum(all_right + all_wrong, 1.0), jnp.nan)


def beta_binomial_degeneracy(a: Numbers, b: Numbers, group_size: int) -> Float[Array, "..."]:
    """Degeneracy when prompts' success rates follow a Beta(a, b) law: `(B(a + G, b) + B(a, b + G)) / B(a, b)`.

    Beta(0.205, 0.615) has mean 0.25 and gives 0.693 at G = 4, where equal prompts would give 0.3203. The ratios of
    Beta functions are taken as products of G factors, which float32 holds for any size of a and b.

    Raises UserError for a or b that is not finite and positive (not inside jit).
    """
    require_group_size("beta_binomial_degeneracy", group_size)
    for name, value in (("a", a), ("b", b)):
        _require_positive(name, value)
    a, b = jnp.asarray(a, jnp.float32)[..., None], jnp.asarray(b, jnp.float32)[..., None]
    drawn = jnp.arange(group_size, dtype=jnp.float32)
    return jnp.prod((a + drawn) / (a + b + drawn), -1) + jnp.prod((b + drawn) / (a + b + drawn), -1)


def _require_positive(name: str, value: Numbers) -> None:
    import jax

    if not any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(value)):
        values = np.asarray(value, np.float64)
        if not np.all((values > 0) & np.isfinite(values)):
            raise UserError(f"{name} of beta_binomial_degeneracy is {value}, accepted are finite positive numbers")
