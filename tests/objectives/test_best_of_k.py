"""Pass@k advantages against their definitions, written out over all subsets."""

import itertools

import jax
import numpy as np
import pytest

from rlvr_jax import advantages


def largest(group):
    return max(group, default=0.0)


def pkpo_by_definition(rewards, k, baseline):
    n = len(rewards)

    def transform(i, members):
        others = [j for j in members if j != i]
        subsets = list(itertools.combinations(others, k - 1))
        taken_off = [largest([rewards[j] for j in s]) if baseline == "loo_minus_one" else 0.0 for s in subsets]
        gains = [largest([rewards[j] for j in (i, *s)]) - x for s, x in zip(subsets, taken_off, strict=True)]
        return k / len(members) * np.mean(gains)

    result = [transform(i, range(n)) for i in range(n)]
    if baseline == "loo":
        without = [[j for j in range(n) if j != i] for i in range(n)]
        result = [s - np.mean([transform(j, rest) for j in rest]) for s, rest in zip(result, without, strict=True)]
    return np.array(result)


@pytest.mark.parametrize("baseline", ["none", "loo", "loo_minus_one"])
@pytest.mark.parametrize("k", [2, 3, 5])
def test_pkpo_is_its_definition(k, baseline):
    rng = np.random.default_rng(k)
    binary = rng.integers(0, 2, (6, 6)).astype(np.float32)
    ties = rng.integers(0, 3, (6, 6)).astype(np.float32)
    real = rng.normal(size=(6, 6)).astype(np.float32)
    for rewards in (binary, ties, real):
        expected = [pkpo_by_definition(list(group), k, baseline) for group in rewards]
        np.testing.assert_allclose(advantages.pkpo(rewards, k=k, baseline=baseline), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("baseline", ["none", "loo", "loo_minus_one"])
def test_pkpo_with_missing_samples_is_pkpo_of_the_smaller_group(baseline):
    rng = np.random.default_rng(0)
    for rewards in (rng.integers(0, 2, (5, 6)).astype(np.float32), rng.normal(size=(5, 6)).astype(np.float32)):
        for valid in (2, 3, 4):
            mask = np.stack([rng.permutation(np.arange(6) < valid) for _ in range(5)])
            got = np.asarray(advantages.pkpo(rewards, mask, k=3, baseline=baseline))
            assert np.all(got[~mask] == 0.0)
            enough = valid >= 3 + (baseline == "loo")
            for row, keep, found in zip(rewards, mask, got, strict=True):
                expected = pkpo_by_definition(list(row[keep]), 3, baseline) if enough else 0.0
                np.testing.assert_allclose(found[keep], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_pass_at_k_training_is_the_mean_over_subsets(k):
    """Each k-subset is worth 1 if one of its samples is right; a sample gets the z-scored mean of its subsets."""
    rewards = np.random.default_rng(k).integers(0, 2, (12, 6))
    for group, got in zip(rewards, np.asarray(advantages.pass_at_k(rewards, k=k)), strict=True):
        worth = {s: float(any(group[list(s)])) for s in itertools.combinations(range(6), k)}
        mean = np.mean(list(worth.values()))
        deviation = np.sqrt(mean * (1 - mean))
        of_sample = [np.mean([v for s, v in worth.items() if i in s]) for i in range(6)]
        expected = (np.array(of_sample) - mean) / (deviation + 1e-6)
        np.testing.assert_allclose(got, expected, atol=1e-5)


def test_pass_at_k_with_missing_samples():
    rewards = np.array([[1, 0, 0, 1, 0, 1]])
    mask = np.array([[True, True, True, False, True, False]])
    expected = advantages.pass_at_k([[1, 0, 0, 0]], k=2)
    np.testing.assert_allclose(np.asarray(advantages.pass_at_k(rewards, mask, k=2))[mask], expected[0], rtol=1e-6)
    few = np.array([[True] + [False] * 5])
    assert np.all(np.asarray(advantages.pass_at_k(rewards, few, k=2)) == 0.0)


def test_pkpo_gradient_is_that_of_pass_at_k_by_enumeration():
    """E[sum of s_i grad log pi(y_i)] = grad of 1 - (1 - p)^k for each of the three forms, and n = 5, k = 2."""
    p, n, k = 0.3, 5, 2
    groups = np.array(list(itertools.product([0, 1], repeat=n)), np.float32)
    chance = np.prod(np.where(groups == 1, p, 1 - p), -1)
    score = np.where(groups == 1, 1 - p, -p)  # with p = sigmoid(theta)
    expected = k * (1 - p) ** (k - 1) * p * (1 - p)
    for baseline in ("none", "loo", "loo_minus_one"):
        advantage = np.asarray(advantages.pkpo(groups, k=k, baseline=baseline))
        np.testing.assert_allclose(np.sum(chance[:, None] * advantage * score), expected, rtol=1e-5)


def test_pkpo_monte_carlo_of_a_real_valued_reward():
    """10^6 samples: the expected best of 2 rewards from N(theta, 1) shifts with theta, so its gradient is 1."""
    rewards = jax.random.normal(jax.random.key(0), (250_000, 4))
    transformed = jax.jit(lambda r: advantages.pkpo(r, k=2))(rewards)
    estimates = np.asarray((transformed * rewards).sum(-1), np.float64)  # grad log N(theta, 1) at theta = 0 is y
    error = estimates.std() / np.sqrt(estimates.size)
    assert abs(estimates.mean() - 1.0) < 4 * error
    assert error < 0.01


def test_large_groups_are_stable():
    rewards = np.random.default_rng(0).binomial(1, 0.02, (2, 512)).astype(np.float32)
    got = np.asarray(advantages.pkpo(rewards, k=64))
    almost = np.asarray(advantages.pkpo(rewards * 0.999, k=64)) / 0.999
    np.testing.assert_allclose(got, almost, rtol=1e-3, atol=1e-7)
    assert np.isfinite(np.asarray(advantages.pass_at_k(rewards, k=256))).all()
