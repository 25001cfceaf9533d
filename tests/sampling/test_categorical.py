"""The inverse-CDF draw: right distribution, right log-probability, no impossible token."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.sampling import Truncation
from rlvr_jax.sampling.categorical import draw as eager_draw
from rlvr_jax.sampling.noise import sequence_keys, token_uniforms

draw = jax.jit(eager_draw)


@pytest.mark.parametrize("vocab", [5, 256, 700])
@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_frequencies_log_probabilities_and_entropy(vocab, temperature):
    logits = 2 * jax.random.normal(jax.random.key(0), (vocab,))
    count = 20000
    uniforms = (jnp.arange(count) + 0.5) / count
    tokens, log_probabilities, _, entropies = draw(jnp.tile(logits, (count, 1)), uniforms, jnp.float32(temperature))
    log_p = jax.nn.log_softmax(logits / temperature)
    frequencies = np.bincount(tokens, minlength=vocab) / count
    # Evenly spaced uniforms: each token's count is exact up to its two ends (and rounding of the sums).
    np.testing.assert_allclose(frequencies, np.exp(log_p), atol=3 / count + 1e-5)
    np.testing.assert_allclose(log_probabilities, log_p[tokens], atol=1e-5)
    np.testing.assert_allclose(entropies[0], -np.sum(np.exp(log_p) * log_p), rtol=1e-5)


def test_temperature_zero_is_greedy_with_untempered_log_probability():
    logits = jnp.array([[0.1, 3.0, -1.0], [2.0, 0.0, 1.9]])
    tokens, log_probabilities, *_ = draw(logits, jnp.array([0.99, 0.99]), jnp.float32(0.0))
    np.testing.assert_array_equal(tokens, [1, 0])
    np.testing.assert_allclose(log_probabilities, jax.nn.log_softmax(logits)[jnp.arange(2), tokens], rtol=1e-5)


@pytest.mark.parametrize("truncation", [None, Truncation(top_k=3)], ids=["whole", "top-k"])
@pytest.mark.parametrize("temperature", [0.0, 0.02, 0.7, 1.0, 3.0])
def test_policy_log_probabilities_know_neither_temperature_nor_truncation(temperature, truncation):
    logits = 40 * jax.random.normal(jax.random.key(0), (2, 1, 700), jnp.bfloat16)
    drawn = draw(logits, jnp.linspace(0, 0.99, 12).reshape(2, 6), jnp.float32(temperature), truncation)
    log_p = jax.nn.log_softmax(logits.astype(jnp.float32)).repeat(6, 1)
    expected = jnp.take_along_axis(log_p, drawn.tokens[..., None], -1)[..., 0]
    np.testing.assert_allclose(drawn.policy_log_probabilities, expected, atol=2e-5)
    assert drawn.policy_log_probabilities.dtype == jnp.float32
    same = temperature == 0 or (temperature == 1 and truncation is None)
    assert same == bool((drawn.policy_log_probabilities == drawn.log_probabilities).all())


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2.0**-24])
@pytest.mark.parametrize("possible", [0, 255, 256, 511, 599])
def test_a_token_of_probability_zero_is_never_drawn(uniform, possible):
    logits = jnp.full(600, -jnp.inf).at[possible].set(0.0)
    token, log_probability, *_ = draw(logits.at[logits == -jnp.inf].set(-1e9), jnp.float32(uniform), jnp.float32(1.0))
    assert int(token) == possible
    assert float(log_probability) == 0.0


def test_noise_is_addressed():
    def noise(seed=0, step=0, ids=(3, 4, 5), samples=4, position=0):
        keys = sequence_keys(jnp.uint32(seed), jnp.int32(step), jnp.array(ids, jnp.uint32), samples)
        return np.asarray(token_uniforms(keys, jnp.full(keys.shape, position)))

    base = noise()
    np.testing.assert_array_equal(noise(), base)
    np.testing.assert_array_equal(noise(ids=(5, 9, 3))[[2, 0]], base[[0, 2]])
    np.testing.assert_array_equal(noise(samples=2), base[:, :2])
    others = [noise(seed=1), noise(step=1), noise(position=1), noise(ids=(6, 7, 8))]
    everything = np.concatenate([base.ravel(), *(other.ravel() for other in others)])
    assert len(np.unique(everything)) == everything.size
    assert everything.min() >= 0
    assert everything.max() < 1
