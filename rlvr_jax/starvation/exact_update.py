"""What an advantage does to the policy, exactly: no sampling, all outcomes of a group are enumerated.

G samples of one prompt are drawn from the policy itself; each is right with probability p. The update is the sum over
the group of `A_i * grad log pi(y_i)`, A being a symmetric function of the group's binary rewards. On average
`grad log pi` is `grad p / p` over right samples and `-grad p / (1 - p)` over wrong ones, so the mean update is a
multiple of `grad p` for every such advantage; advantages differ in the multiple and in the noise around it.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from rlvr_jax.errors import UserError
from rlvr_jax.records import AnyArray
from rlvr_jax.starvation.counts import Numbers, require_group_size, require_shares

Advantage = Callable[[Array], Array]
"""Rewards `[..., G]` to advantages `[..., G]`."""


class UpdateSplit(NamedTuple):
    """The mean update as a multiple of grad p, by the kind of group that it comes from."""

    all_wrong: Float[Array, "*batch"]
    all_right: Float[Array, "*batch"]
    mixed: Float[Array, "*batch"]

    @property
    def total(self) -> Float[Array, "*batch"]:
        return self.all_wrong + self.all_right + self.mixed


class GradientMoments(NamedTuple):
    """Mean and spread of the update of one group."""

    mean: Float[Array, " V"]
    variance: Float[Array, ""]
    """Mean squared distance from the mean, summed over the V logits."""


def expected_update(advantage: Advantage, success_rate: Numbers, group_size: int) -> UpdateSplit:
    """The factors k in `E[sum over the group of A_i grad log pi(y_i)] = k grad p`, for any shape of p.

    Sign, A = 2r - 1, gives 2G in all; its all-wrong groups give `G (1 - p)^(G-1)`, the gradient of pass@G, and its
    all-right groups `G p^(G-1)`, the gradient of p^G. A = r - mean(r) gives G - 1, all of it from mixed groups.
    Finite for p = 0 and 1 too.

    Raises UserError for p outside [0, 1] and for an advantage that depends on more than how many samples are right
    (neither is seen inside jit).
    Source: the pass@G descent of all-wrong groups is a claim of arXiv 2605.07689.
    """
    require_shares("expected_update", "success rate", success_rate)
    of_right, of_wrong = _by_count(advantage, group_size)
    success_rate = jnp.asarray(success_rate, jnp.float32)
    # K / p * Binomial(K; G, p) = G * Binomial(K - 1; G - 1, p), and alike for 1 - p: nothing is divided by p.
    others = group_size * _binomial(success_rate, group_size - 1)
    from_right, from_wrong = others * of_right[1:], -others * of_wrong[:-1]
    all_wrong, all_right = from_wrong[..., 0], from_right[..., -1]
    mixed = jnp.sum(from_right[..., :-1], -1) + jnp.sum(from_wrong[..., 1:], -1)
    return UpdateSplit(all_wrong, all_right, mixed)


def gradient_moments(
    advantage: Advantage, logits: Float[AnyArray, " V"], right: Bool[AnyArray, " V"], group_size: int
) -> GradientMoments:
    """Mean and variance of the update of one group, for a policy that is a softmax over V answers.

    `logits` are its parameters and `right` marks the right answers. Given how many samples are right, the answers are
    independent, so both moments are finite sums; the variance is a sum of terms that are never negative, within and
    between the counts. Exact too where no answer, or every answer, is right. Differentiable in the logits.

    Raises UserError as `expected_update` does.
    """
    of_right, of_wrong = _by_count(advantage, group_size)
    right = jnp.asarray(right, bool)
    policy = jax.nn.softmax(jnp.asarray(logits, jnp.float32))
    success_rate = jnp.sum(jnp.where(right, policy, 0.0))
    answers_right, answers_wrong = _conditional(policy, right), _conditional(policy, ~right)

    count = jnp.arange(group_size + 1, dtype=jnp.float32)
    push_right, push_wrong = count * of_right, (group_size - count) * of_wrong
    given_count = push_right[:, None] * (answers_right - policy) + push_wrong[:, None] * (answers_wrong - policy)
    within = push_right * of_right * _scatter(answers_right) + push_wrong * of_wrong * _scatter(answers_wrong)

    chance = _binomial(success_rate, group_size)
    mean = chance @ given_count
    between = jnp.sum((given_count - mean) ** 2, -1)
    return GradientMoments(mean, jnp.sum(chance * (within + between)))


def signal_to_noise(
    advantage: Advantage, logits: Float[AnyArray, " V"], right: Bool[AnyArray, " V"], group_size: int
) -> Float[Array, ""]:
    """`|E g|^2 / E|g - E g|^2` of the update g of one group; arguments as in `gradient_moments`.

    m groups have m times as much. 0 where the mean update is zero, infinite where it is not and never varies.
    """
    mean, variance = gradient_moments(advantage, logits, right, group_size)
    signal = jnp.sum(mean**2)
    noiseless = jnp.where(signal > 0, jnp.inf, 0.0)
    return jnp.where(variance > 0, signal / jnp.where(variance > 0, variance, 1.0), noiseless)


def _by_count(advantage: Advantage, group_size: int) -> tuple[Array, Array]:
    """Advantage of a right and of a wrong sample when K = 0..G are right, `[G + 1]` each; 0 where there is none."""
    # Binomial coefficients of larger groups leave float32.
    require_group_size("the group", group_size, 1, 128)
    is_right = jnp.arange(group_size) < jnp.arange(group_size + 1)[:, None]
    # vmap: a group must not see the others, whatever the advantage does with leading axes.
    table = jnp.asarray(jax.vmap(advantage)(is_right.astype(jnp.float32)), jnp.float32)
    if table.shape != is_right.shape:
        raise UserError(
            f"advantage gives shape {table.shape[1:]} for a group of {group_size}, accepted is [{group_size}]"
        )
    of_right = jnp.where(is_right[:, 0], table[:, 0], 0.0)
    of_wrong = jnp.where(is_right[:, -1], 0.0, table[:, -1])
    if not isinstance(table, jax.core.Tracer):
        uniform = jnp.where(is_right, of_right[:, None], of_wrong[:, None])
        bad = ~np.isclose(table, uniform, rtol=1e-4, atol=1e-6).all(-1)
        if bad.any():
            k = int(np.argmax(bad))
            raise UserError(
                f"advantage of {k} right and {group_size - k} wrong samples is {np.asarray(table)[k].tolist()}, "
                "accepted is one finite value for all right samples and one for all wrong ones"
            )
    return of_right, of_wrong


def _binomial(success_rate: Float[Array, "*batch"], trials: int) -> Float[Array, "*batch counts"]:
    """Probability of 0..trials successes."""
    count = np.arange(trials + 1)
    coefficients = jnp.array([math.comb(trials, int(k)) for k in count], jnp.float32)
    p = success_rate[..., None]
    return coefficients * p**count * (1.0 - p) ** (trials - count)


def _conditional(policy: Float[Array, " V"], kind: Bool[Array, " V"]) -> Float[Array, " V"]:
    """The policy among answers of one kind; all zero where it gives them no probability."""
    masked = jnp.where(kind, policy, 0.0)
    total = jnp.sum(masked)
    return masked / jnp.where(total > 0, total, 1.0)


def _scatter(answers: Float[Array, " V"]) -> Float[Array, ""]:
    """Variance of the indicator vector of one answer, summed over answers."""
    return jnp.sum(answers * (1.0 - answers))
