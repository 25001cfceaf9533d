"""The product with the head, from hidden states to logits, and what is made of them.

A head is the largest weight, and its logits are larger still. On a mesh, the devices of an fsdp group share their
tokens and split the vocabulary: hidden states travel, where otherwise each product would gather the whole head, and in
the backward pass reduce a gradient of its size.
"""

import math

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from rlvr_jax.models.linear import linear
from rlvr_jax.sharding import RULES, named_sharding


def placed_head(unembedding: Float[Array, "vocab hidden"], mesh: Mesh | None) -> Float[Array, "vocab hidden"]:
    """The head as the products below read it; to be made once, before a loop over them."""
    return _placed(unembedding, _even(mesh, len(unembedding)), "head_vocab", None)


def logits_of_rows(
    hidden: Float[Array, "rows n hidden"], head: Float[Array, "vocab hidden"], mesh: Mesh | None
) -> Float[Array, "rows n vocab"]:
    """Float32 logits, each row's whole on the device that has the row."""
    mesh = _even(mesh, len(head))
    flat = linear(hidden.reshape(-1, hidden.shape[-1]), head, jnp.dtype(jnp.float32))
    logits = _placed(flat.reshape(*hidden.shape[:-1], -1), mesh, "head_rows", None, "head_vocab")
    return _placed(logits, mesh, "batch", None, None)


def tempered(logits: Float[Array, "... vocab"], temperature: Float[Array, ""]) -> Float[Array, "... vocab"]:
    """float32 logits over the temperature; unchanged at temperature 0."""
    return logits.astype(jnp.float32) / jnp.where(temperature > 0, temperature, 1.0)


def chunked_log_probabilities(
    hidden: Float[Array, "*rows tokens hidden"],
    unembedding: Float[Array, "vocab hidden"],
    targets: Int[Array, "*rows tokens"],
    temperature: Float[Array, ""],
    chunk: int,
    mesh: Mesh | None = None,
) -> Float[Array, "*rows tokens"]:
    """Log-probability of each target; of each row, the logits of at most `chunk` tokens exist at a time, in either
    direction.

    On a `mesh` the rows `[R, tokens]` lie on its batch axes.
    """
    mesh, unembedding = _even(mesh, len(unembedding)), placed_head(unembedding, mesh)

    def one_chunk(hidden: Array, targets: Array) -> Array:
        hidden, targets = _placed(hidden, mesh, "batch", None, None), _placed(targets, mesh, "head_rows", None)
        logits = jnp.einsum("...nd,vd->...nv", hidden, unembedding, preferred_element_type=jnp.float32)
        logits = _placed(tempered(logits, temperature), mesh, "head_rows", None, "head_vocab")
        # A comparison instead of a gather: its gradient is elementwise, where a gather's is a scatter.
        chosen = jnp.where(jnp.arange(logits.shape[-1]) == targets[..., None], logits, 0.0).sum(-1)
        return _placed(chosen - jax.nn.logsumexp(logits, -1), mesh, "batch", None)

    *rows, tokens, _ = hidden.shape
    if tokens <= chunk:
        return one_chunk(hidden, targets)

    def in_chunks(x: Array) -> Array:
        x = jnp.pad(x, [(0, -tokens % chunk) if axis == len(rows) else (0, 0) for axis in range(x.ndim)])
        return jnp.moveaxis(x.reshape(*rows, -1, chunk, *x.shape[len(rows) + 1 :]), len(rows), 0)

    # Checkpointed: the backward pass recomputes a chunk's logits instead of keeping all chunks'.
    recomputed = jax.checkpoint(one_chunk)
    found = jax.lax.map(lambda pair: recomputed(*pair), (in_chunks(hidden), in_chunks(targets)))
    return jnp.moveaxis(found, 0, len(rows)).reshape(*rows, -1)[..., :tokens]


def _even(mesh: Mesh | None, vocabulary: int) -> Mesh | None:
    """The mesh where its devices can split the vocabulary evenly; else None, which leaves the product to XLA."""
    shares = 1 if mesh is None else math.prod(mesh.shape[axis] for axis in RULES["head_vocab"])
    return None if vocabulary % shares else mesh


def _placed(x: Array, mesh: Mesh | None, *axes: str | None) -> Array:
    return x if mesh is None else jax.lax.with_sharding_constraint(x, named_sharding(mesh, axes))
