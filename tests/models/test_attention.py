"""Attention over shared sources equals plain attention over the keys each query sees."""

import jax
import jax.numpy as jnp
import numpy as np

from rlvr_jax.models.attention import Source, attend


def test_shared_sources_equal_copied_keys():
    keys = iter(jax.random.split(jax.random.key(0), 8))
    prompts, samples, length, heads, kv_heads, width = 2, 3, 4, 4, 2, 8

    def normal(*shape):
        return jax.random.normal(next(keys), shape)

    queries = normal(prompts, samples, length, heads, width)
    prefix = normal(5, kv_heads, width), normal(5, kv_heads, width)
    prompt = normal(prompts, 6, kv_heads, width), normal(prompts, 6, kv_heads, width)
    visible = jnp.arange(6) < jnp.array([[4], [6]])
    got = attend(queries, [Source(*prefix), Source(*prompt, visible[:, None, None])])

    copied = [
        jnp.concatenate([jnp.broadcast_to(a, (prompts, *a.shape)), b], 1)[:, None].repeat(samples, 1)
        for a, b in zip(prefix, prompt, strict=True)
    ]
    mask = jnp.concatenate([jnp.ones((prompts, 5), bool), visible], 1)[:, None].repeat(samples, 1)
    flat = [x.reshape(-1, *x.shape[2:]) for x in (queries, *copied)]
    expected = jax.nn.dot_product_attention(*flat, mask=mask.reshape(-1, 1, 1, 11))
    np.testing.assert_allclose(got.reshape(expected.shape), expected, rtol=2e-5, atol=2e-6)


def test_a_query_that_sees_nothing_is_finite():
    source = Source(jnp.ones((2, 1, 4)), jnp.ones((2, 1, 4)), jnp.zeros((1, 2), bool))
    assert np.all(np.isfinite(attend(jnp.ones((1, 1, 4)), [source])))
