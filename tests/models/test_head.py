"""The head's product split over a mesh, beside the whole one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.compiling.costs import Reader
from rlvr_jax.models.head import chunked_log_probabilities, logits_of_rows, placed_head
from rlvr_jax.sharding import MeshShape, make_mesh, named_sharding

ONE = jnp.float32(1.0)


def arrays(rows, tokens, vocabulary, size=16):
    generator = np.random.default_rng(0)
    hidden = generator.normal(size=(rows, tokens, size)).astype(np.float32)
    head = generator.normal(size=(vocabulary, size)).astype(np.float32)
    return hidden, head, generator.integers(0, vocabulary, (rows, tokens)).astype(np.int32)


@pytest.mark.parametrize("shape", [MeshShape(1, 4, 2), MeshShape(2, 2, 2), MeshShape(8, 1, 1)])
@pytest.mark.parametrize("vocabulary", [24, 27])
@pytest.mark.parametrize("chunk", [3, 10])
def test_values_and_gradients_are_those_of_a_plain_softmax(shape, vocabulary, chunk):
    """27 is a vocabulary that the devices cannot split evenly; of 10 tokens, chunks of 3 leave one over."""
    mesh = make_mesh(shape)
    hidden, head, targets = map(jnp.asarray, arrays(8, 10, vocabulary))

    def plain(hidden, head):
        found = jax.nn.log_softmax(hidden @ head.T / 0.7)
        return jnp.take_along_axis(found, targets[..., None], -1)[..., 0]

    def ours(hidden, head):
        return chunked_log_probabilities(hidden, head, targets, jnp.float32(0.7), chunk, mesh)

    weights = np.random.default_rng(1).normal(size=targets.shape).astype(np.float32)
    placed = jax.device_put(hidden, named_sharding(mesh, ("batch",)))
    for function, rows in ((plain, hidden), (ours, placed)):
        values = jax.jit(function)(rows, head)
        gradients = jax.jit(jax.grad(lambda *x, f=function: (weights * f(*x)).sum(), (0, 1)))(rows, head)
        if function is plain:
            expected = values, *gradients
    for got, want in zip((values, *gradients), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)

    logits = jax.jit(lambda h, w: logits_of_rows(h, placed_head(w, mesh), mesh))(placed, head)
    np.testing.assert_allclose(logits, hidden @ head.T, rtol=1e-5, atol=1e-5)


def test_hidden_states_travel_and_the_head_does_not():
    """Four chunks forward and backward send less than a quarter of one head, and without the mesh several heads."""
    mesh = make_mesh(MeshShape(1, 8, 1))
    hidden, head, targets = arrays(8, 8, 8192)
    arguments = [
        jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=named_sharding(mesh, axes))
        for x, axes in ((hidden, ("batch",)), (head, ("vocab", "embed")), (targets, ("batch",)))
    ]

    def sent(mesh):
        def loss(hidden, head, targets):
            return chunked_log_probabilities(hidden, head, targets, ONE, 2, mesh).sum()

        compiled = jax.jit(jax.grad(loss, (0, 1)), out_shardings=tuple(x.sharding for x in arguments[:2]))
        return Reader(compiled.lower(*arguments).compile().as_text()).cost().collective_bytes

    assert sent(mesh) < head.nbytes / 4
    assert sent(None) > 3 * head.nbytes
