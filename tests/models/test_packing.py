"""Packing: real tokens alone are run, with the same result and gradient."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import HYBRID, PREFIX, TINY, random_params, relative

from rlvr_jax.models import token_log_probabilities
from rlvr_jax.models.packing import pack, unpack

LENGTHS = np.array([[1, 5, 2], [3, 1, 1], [4, 2, 5], [1, 1, 1], [2, 2, 5], [1, 4, 1], [1, 1, 2], [5, 1, 1]])
MASK = np.arange(5) < LENGTHS[..., None]


def test_pack_and_unpack_are_each_others_transpose():
    mask = jnp.array([[True, False, True], [False, True, False]])
    x = jnp.arange(12.0).reshape(2, 3, 2)
    np.testing.assert_array_equal(pack(x, mask, 4), [[0, 1], [4, 5], [8, 9], [0, 0]])
    np.testing.assert_array_equal(unpack(pack(x, mask, 4), mask), jnp.where(mask[..., None], x, 0))
    packed = jnp.arange(8.0).reshape(4, 2) + 1
    _, of_pack = jax.vjp(lambda x: pack(x, mask, 4), x)
    _, of_unpack = jax.vjp(lambda x: unpack(x, mask), packed)
    np.testing.assert_array_equal(of_pack(packed)[0], unpack(packed, mask))
    np.testing.assert_array_equal(of_unpack(x)[0], pack(x, mask, 4))


@pytest.mark.parametrize("changes", [{}, pytest.param(HYBRID, marks=pytest.mark.slow)], ids=["llama", "qwen3_5"])
def test_packed_log_probabilities_and_their_gradient(prompts, changes):
    config, rows = dataclasses.replace(TINY, **changes), 2
    params = random_params(config)
    tokens = np.random.default_rng(0).integers(5, 80, MASK.shape).astype(np.int32)
    weights = jnp.asarray(np.random.default_rng(1).normal(size=MASK.shape).astype(np.float32))

    def loss(params, tokens, packed):
        log_probabilities = token_log_probabilities(
            params, PREFIX, prompts, tokens, jnp.float32(0.7), config=config, rows=rows, mask=MASK, packed=packed
        )
        return jnp.sum(jnp.where(MASK, weights * log_probabilities, 0)), log_probabilities

    run = jax.jit(jax.value_and_grad(loss, has_aux=True), static_argnames="packed")
    (_, expected), gradient = run(params, tokens, None)
    most = int(MASK.reshape(rows, -1).sum(-1).max())
    # Other tokens at the pads would change something, were they run.
    (_, got), got_gradient = run(params, np.where(MASK, tokens, 79 - tokens), most)
    np.testing.assert_allclose(got, jnp.where(MASK, expected, 0), atol=2e-5)
    assert relative(got_gradient, gradient) < 1e-5
