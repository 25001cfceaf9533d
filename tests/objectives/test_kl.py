"""KL: values and gradients by enumeration over a small vocabulary, for every estimator and use."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from rlvr_jax import kl

LOGITS = jnp.array([0.3, -1.0, 0.8, 0.1])
REFERENCE = jax.nn.log_softmax(jnp.array([0.0, 0.5, -0.4, 1.0]))
BEHAVIOUR = jax.nn.log_softmax(jnp.array([0.2, 0.1, -0.3, 0.0]))


def true_kl(logits, reference=REFERENCE):
    log_p = jax.nn.log_softmax(logits)
    return jnp.sum(jnp.exp(log_p) * (log_p - reference))


def expected_on_policy(estimate):
    """Sum over tokens drawn from the policy, the drawing itself not differentiated."""
    chance = jax.nn.softmax(LOGITS)
    return lambda logits: jnp.sum(chance * estimate(jax.nn.log_softmax(logits)))


def test_exact_against_scipy():
    p, q = np.random.default_rng(0).dirichlet(np.ones(7), (2, 5))
    got = kl.exact(np.log(p).astype(np.float32) + 3.0, np.log(q).astype(np.float32))
    np.testing.assert_allclose(got, scipy.stats.entropy(p, q, axis=-1), rtol=1e-4)
    np.testing.assert_allclose(jax.grad(lambda x: kl.exact(x, REFERENCE))(LOGITS), jax.grad(true_kl)(LOGITS), atol=1e-6)


def test_exact_allows_tokens_that_cannot_be_drawn():
    got, gradient = jax.value_and_grad(lambda x: kl.exact(x, jnp.zeros(3)))(jnp.array([0.0, 0.0, -jnp.inf]))
    np.testing.assert_allclose(got, np.log(3 / 2), rtol=1e-6)
    assert np.all(np.isfinite(gradient))


def test_values():
    """k1 and k3 are unbiased; k2 is not."""
    value = {
        name: float(expected_on_policy(lambda x, f=f: f(x, REFERENCE))(LOGITS)) for name, f in kl.ESTIMATORS.items()
    }
    truth = float(true_kl(LOGITS))
    assert value["k1"] == pytest.approx(truth, rel=1e-5)
    assert value["k3"] == pytest.approx(truth, rel=1e-5)
    assert abs(value["k2"] - truth) > 0.01


def test_what_differentiating_each_value_gives():
    """The table of the module: nothing, the gradient of KL(policy || reference), and of KL(reference || policy)."""
    gradient = {
        name: jax.grad(expected_on_policy(lambda x, f=f: f(x, REFERENCE)))(LOGITS) for name, f in kl.ESTIMATORS.items()
    }
    np.testing.assert_allclose(gradient["k1"], np.zeros(4), atol=1e-6)
    np.testing.assert_allclose(gradient["k2"], jax.grad(true_kl)(LOGITS), atol=1e-6)
    reverse = jax.grad(lambda x: jnp.sum(jnp.exp(REFERENCE) * (REFERENCE - jax.nn.log_softmax(x))))(LOGITS)
    np.testing.assert_allclose(gradient["k3"], reverse, atol=1e-6)
    assert np.abs(np.asarray(reverse - jax.grad(true_kl)(LOGITS))).max() > 0.01


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("sampled_from", [jax.nn.log_softmax(LOGITS), BEHAVIOUR], ids=["on-policy", "off-policy"])
def test_in_loss_shows_the_estimator_and_has_the_gradient_of_the_kl(estimator, sampled_from):
    def estimate(logits):
        log_p = jax.nn.log_softmax(logits)
        return jnp.sum(jnp.exp(sampled_from) * kl.in_loss(estimator, log_p, REFERENCE, sampled_from))

    np.testing.assert_allclose(jax.grad(estimate)(LOGITS), jax.grad(true_kl)(LOGITS), rtol=1e-4, atol=1e-6)
    log_p = jax.nn.log_softmax(LOGITS)
    shown = kl.in_loss(estimator, log_p, REFERENCE, sampled_from)
    np.testing.assert_allclose(shown, kl.ESTIMATORS[estimator](log_p, REFERENCE), atol=1e-6)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_in_reward_has_the_gradient_of_the_kl_by_the_score_function(estimator):
    """Minus the penalty as a reward: E[-penalty grad log pi] = -grad KL for k1; k3 differs from it by a bias."""
    chance, scores = jax.nn.softmax(LOGITS), jax.jacobian(jax.nn.log_softmax)(LOGITS)
    penalty = kl.in_reward(estimator, jax.nn.log_softmax(LOGITS)[:, None], REFERENCE[:, None], np.ones((4, 1), bool))
    if estimator == "k1":
        np.testing.assert_allclose((chance * penalty) @ scores, jax.grad(true_kl)(LOGITS), atol=1e-6)
    np.testing.assert_allclose(chance @ penalty, true_kl(LOGITS), rtol=1e-5)


def test_in_reward_sums_over_the_completion_and_is_constant():
    log_p, reference = jnp.array([[-1.0, -2.0, jnp.nan]]), jnp.array([[-1.5, -1.0, jnp.inf]])
    mask = np.array([[True, True, False]])
    np.testing.assert_allclose(kl.in_reward("k1", log_p, reference, mask), [0.5 - 1.0])
    gradient = jax.grad(lambda x: kl.in_reward("k3", x, reference, mask).sum())(jnp.array([[-1.0, -2.0, -1.0]]))
    assert np.all(np.asarray(gradient) == 0.0)


def test_k3_against_monte_carlo():
    """10^6 tokens: within 4 standard errors of the exact KL."""
    tokens = jax.random.categorical(jax.random.key(0), LOGITS, shape=(1_000_000,))
    log_p = jax.nn.log_softmax(LOGITS)
    for name in ("k1", "k3"):
        draws = np.asarray(kl.ESTIMATORS[name](log_p[tokens], REFERENCE[tokens]), np.float64)
        assert abs(draws.mean() - float(true_kl(LOGITS))) < 4 * draws.std() / 1000


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_far_from_the_reference_everything_stays_finite(estimator):
    far = jnp.array([[-1000.0, -0.1]])

    def loss(x):
        return kl.in_loss(estimator, x, far[:, ::-1], far).sum()

    value, gradient = jax.value_and_grad(loss)(far)
    assert np.isfinite(value)
    assert np.all(np.isfinite(gradient))


def test_exact_in_loss_and_in_reward():
    """Two positions of a completion: the value is the KL, so is the gradient; in a reward there is none."""
    logits, reference = jnp.stack([LOGITS, LOGITS + 1]), jnp.stack([REFERENCE, REFERENCE])
    value = kl.in_loss("exact", logits, reference)
    np.testing.assert_allclose(value, [true_kl(LOGITS)] * 2, rtol=1e-5)
    gradient = jax.grad(lambda x: kl.in_loss("exact", x, reference)[0])(logits)
    np.testing.assert_allclose(gradient, [jax.grad(true_kl)(LOGITS), jnp.zeros(4)], atol=1e-6)
    mask = np.array([True, False])
    np.testing.assert_allclose(kl.in_reward("exact", logits, reference, mask), true_kl(LOGITS), rtol=1e-5)
    assert np.all(np.asarray(jax.grad(lambda x: kl.in_reward("exact", x, reference, mask))(logits)) == 0.0)


def test_without_a_behaviour_policy_tokens_are_on_policy():
    log_p = jax.nn.log_softmax(LOGITS)
    for behaviour in (None, log_p):
        gradient = jax.grad(lambda x, b=behaviour: kl.in_loss("k3", x, REFERENCE, b).sum())(log_p)
        np.testing.assert_allclose(gradient, log_p - REFERENCE, rtol=1e-5)
