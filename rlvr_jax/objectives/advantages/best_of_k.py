"""Advantages that raise pass@k, the chance that at least one of k samples is right, rather than pass@1."""

import functools
import math
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from rlvr_jax.errors import UserError
from rlvr_jax.objectives.advantages.groups import Rewards, Valid, advantage, count

Baseline = Literal["none", "loo", "loo_minus_one"]


@advantage(accepts="binary", samples=2)
def pass_at_k(rewards: Rewards, mask: Valid = None, *, k: int = 2, eps: float = 1e-6) -> Rewards:
    """Pass@k Training: the z-score that a sample has on average over all k-subsets of the group that hold it.

    With R the share of k-subsets with a right sample and `s = sqrt(R (1 - R))`: right `(1 - R) / (s + eps)`, wrong
    `(1 - R - C(wrong - 1, k - 1) / C(G - 1, k - 1)) / (s + eps)`. Zero once no k-subset is all wrong. A group that
    `mask` leaves with fewer than k samples gets 0. Source: arXiv 2508.10751. Raises UserError for k outside [1, G].
    """
    _require_k("pass_at_k", k, rewards.shape[-1])
    table = _pass_at_k_table(rewards.shape[-1], k, eps, mask is None)
    return _by_count(rewards, rewards.sum(-1, keepdims=True), mask, table)


@advantage(samples=2)
def pkpo(rewards: Rewards, mask: Valid = None, *, k: int = 2, baseline: Baseline = "loo_minus_one") -> Rewards:
    """PKPO: reward transforms whose policy gradient is that of the expected best of k samples, for any real rewards.

    * `none`: `s_i`, the sum of the largest reward over all k-subsets that hold i, over C(G, k).
    * `loo`: `s_i` minus the mean of the other samples' transforms within the group without i (needs k < G).
    * `loo_minus_one`: the same sum of what i adds to the largest reward of the other k - 1: the least variance,
      recommended. Binary: right `(k / G) C(wrong, k - 1) / C(G - 1, k - 1)`, wrong 0.

    k = 1 leaves the rewards as they are. A group that `mask` leaves too small gets 0. O(G log G); binary rewards need
    no sorting. Source: arXiv 2505.15201. Raises UserError for k outside [1, G], or [1, G - 1] with `loo`.
    """
    if baseline not in ("none", "loo", "loo_minus_one"):
        raise UserError(f"baseline is {baseline!r}, accepted are none, loo, loo_minus_one")
    _require_k("pkpo", k, rewards.shape[-1] - (baseline == "loo" and k > 1))
    if k == 1:
        return rewards
    size = rewards.shape[-1]
    # XLA sorts slowly on CPU, and rewards are nearly always binary. One pass finds out and counts the right ones:
    # any other reward makes the count of its group larger than a group.
    is_binary = (rewards == 0.0) | (rewards == 1.0)
    right = jnp.where(is_binary, rewards, 2.0 * size).sum(-1, keepdims=True)
    return jax.lax.cond(
        jnp.all(right <= size),
        lambda rewards: _by_count(rewards, right, mask, _pkpo_binary_table(size, k, baseline, mask is None)),
        lambda rewards: _pkpo_sorted(rewards, mask, k, baseline),
        rewards,
    )


def _require_k(name: str, k: int, most: int) -> None:
    if not 1 <= k <= most:
        raise UserError(f"k of {name} is {k}, accepted is a number from 1 to {most} here")


def _by_count(rewards: Rewards, right: Float[Array, "*batch 1"], mask: Valid, table: np.ndarray) -> Rewards:
    """Each sample's entry in a table `[2, G + 1 valid, G + 1 right]` of right (0) and wrong (1) samples."""
    right = right.astype(jnp.int32)
    # Without missing samples the last row serves all.
    row = -1 if mask is None else mask.sum(-1, keepdims=True)
    of_right, of_wrong = (jnp.asarray(side)[row, right] for side in table)
    return jnp.where(rewards == 1.0, of_right, of_wrong)


def _counts(size: int, unmasked: bool) -> range:
    return range(size, size + 1) if unmasked else range(size + 1)


@functools.lru_cache(maxsize=64)
def _pass_at_k_table(size: int, k: int, eps: float, unmasked: bool) -> np.ndarray:
    table = np.zeros((2, size + 1, size + 1))
    for n in _counts(size, unmasked):
        for right in range(n + 1) if n >= k else ():
            missed = math.comb(n - right, k) / math.comb(n, k)
            deviation = math.sqrt(missed * (1 - missed)) + eps
            table[0, n, right] = missed / deviation
            if right < n:
                others_wrong = math.comb(n - right - 1, k - 1) / math.comb(n - 1, k - 1)
                table[1, n, right] = (missed - others_wrong) / deviation
    return table.astype(np.float32)


@functools.lru_cache(maxsize=64)
def _pkpo_binary_table(size: int, k: int, baseline: Baseline, unmasked: bool) -> np.ndarray:
    comb, table = math.comb, np.zeros((2, size + 1, size + 1))
    for n in _counts(size, unmasked):
        for right in range(n + 1) if n >= k + (baseline == "loo") else ():
            for place, is_right in enumerate((True, False)):
                if not (right if is_right else n - right):
                    continue
                others_wrong = n - right - (not is_right)
                # Of the C(n - 1, k - 1) subsets that hold this sample, those whose other members are all wrong.
                alone, subsets = comb(others_wrong, k - 1), comb(n - 1, k - 1)
                value = (subsets if is_right else subsets - alone) / comb(n, k)
                if baseline == "loo":
                    best = 1 - comb(others_wrong, k) / comb(n - 1, k)
                    value -= k / (n - 1) * best
                elif baseline == "loo_minus_one":
                    value = alone / comb(n, k) if is_right else 0.0
                table[place, n, right] = value
    return table.astype(np.float32)


@functools.lru_cache(maxsize=64)
def _subset_weights(size: int, k: int, unmasked: bool) -> np.ndarray:
    """`[4, G + 1 valid, G place]`: chances over subsets, for the place (0 the least) of a sorted sample.

    0: k-subsets in which it is the largest. 1: k-subsets in which it is the largest and a given lower one is in.
    2: k-subsets of all but a higher one in which it is the largest. 3: the same of all but a lower one.
    The first two over C(n, k), the others over C(n - 1, k).
    """
    table = np.zeros((4, size + 1, size))
    for n in _counts(size, unmasked):
        for i in range(n) if n >= k else ():
            table[0, n, i] = math.comb(i, k - 1) / math.comb(n, k)
            table[1, n, i] = math.comb(i - 1, k - 2) / math.comb(n, k) if i else 0.0
            if n > k:
                table[2, n, i] = math.comb(i, k - 1) / math.comb(n - 1, k)
                table[3, n, i] = math.comb(i - 1, k - 1) / math.comb(n - 1, k) if i else 0.0
    return table.astype(np.float32)


def _pkpo_sorted(rewards: Rewards, mask: Valid, k: int, baseline: Baseline) -> Rewards:
    size = rewards.shape[-1]
    order = jnp.argsort(rewards if mask is None else jnp.where(mask, rewards, jnp.inf), -1)
    values = jnp.take_along_axis(rewards, order, -1)
    table = jnp.asarray(_subset_weights(size, k, mask is None))
    n = jnp.int32(size) if mask is None else count(rewards, mask)[..., 0].astype(jnp.int32)
    largest, largest_with_lower, without_higher, without_lower = (table[i][n] for i in range(4))
    if baseline == "loo_minus_one":
        # What i adds to the largest of the others: only those below it matter. largest_with_lower[j + 1] counts
        # the subsets of k with i in which j is the largest of the others.
        below = jnp.concatenate([largest_with_lower[..., 1:], jnp.zeros_like(largest_with_lower[..., :1])], -1)
        steps = jnp.diff(values, axis=-1, prepend=values[..., :1])
        # sum over j < i of weight_j (v_i - v_j), as a running sum of steps: no difference of large sums.
        weight_so_far = jnp.cumsum(below, -1) - below
        result = jnp.cumsum(weight_so_far * steps, -1)
    else:
        result = largest * values + _sum_above(largest_with_lower * values)
        if baseline == "loo":
            best = _sum_below(without_higher * values) + _sum_above(without_lower * values)
            result = result - k / jnp.maximum(n[..., None] - 1.0, 1.0) * best
            result = jnp.where(n[..., None] > k, result, 0.0)
    return jnp.take_along_axis(result, jnp.argsort(order, -1), -1)


def _sum_below(x: Float[Array, "*batch G"]) -> Float[Array, "*batch G"]:
    return jnp.cumsum(x, -1) - x


def _sum_above(x: Float[Array, "*batch G"]) -> Float[Array, "*batch G"]:
    return x.sum(-1, keepdims=True) - jnp.cumsum(x, -1)
