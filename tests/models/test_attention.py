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
    prefix = normal(kv_heads, 5, width), normal(kv_heads, 5, width)
    prompt = normal(prompts, kv_heads, 6, width), normal(prompts, kv_heads, 6, width)
    visible = jnp.arange(6) < jnp.array([[4], [6]])
    seen = (None, visible[:, None, None])
    sources = [Source(k.mT, v, see) for (k, v), see in zip((prefix, prompt), seen, strict=True)]
    got = attend(queries, sources)

    copied = [
        jnp.concatenate([jnp.broadcast_to(a, (prompts, *a.shape)), b], 2)[:, None].repeat(samples, 1).swapaxes(2, 3)
        for a, b in zip(prefix, prompt, strict=True)
    ]
    mask = jnp.concatenate([jnp.ones((prompts, 5), bool), visible], 1)[:, None].repeat(samples, 1)
    flat = [x.reshape(-1, *x.shape[2:]) for x in (queries, *copied)]
    expected = jax.nn.dot_product_attention(*flat, mask=mask.reshape(-1, 1, 1, 11))
    np.testing.assert_allclose(got.reshape(expected.shape), expected, rtol=2e-5, atol=2e-6)


def test_a_query_that_sees_nothing_is_finite():
    source = Source(jnp.ones((1, 4, 2)), jnp.ones((1, 2, 4)), jnp.zeros((1, 2), bool))
    assert np.all(np.isfinite(attend(jnp.ones((1, 1, 4)), [source])))
