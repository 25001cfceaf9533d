"""Attention over keys that are shared: by the whole batch (a prefix), by a group (its prompt), or by nobody.

A query's keys come from several *sources*. A source that many queries share is stored once and never copied:
the queries that share it are folded into one long axis, so its scores are one large matrix product. What the queries
read from each source is weighted by exponentials that share one offset and is divided by the sum over all sources,
which makes the result exact: it is that of one softmax.

`attend` is the reference, and the fastest for a single query and on CPU. It stores all scores, so `attend_causally`
takes a fused kernel for long queries on accelerators.
"""

import math
import operator
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, Shaped

from rlvr_jax.models.attention_kernels import fused_kernel, sharded


class Places(NamedTuple):
    """Where queries stand that come in another order than the one in which they share a source.

    Of a source shared by N groups of G, `query` names the query at each of the N * G places, any where a place is
    empty; `of_query` is the place of each of S queries.
    """

    query: Int[Array, "*lead N*G"]
    of_query: Int[Array, "*lead S"]


class Source(NamedTuple):
    """Keys and values for queries `[*batch, T, H, head_dim]`; `*shared` are the leading axes of `*batch`.

    In the layouts that the two matrix products read: for a single query, others cost several times as much on CPU.
    """

    keys: Shaped[Array, "*shared K head_dim S"]
    values: Shaped[Array, "*shared K S head_dim"]
    visible: Bool[Array, "*mask S"] | None = None
    """Which key a query may see, broadcastable to `[*batch, T, S]`; `None` for all."""
    places: Places | None = None
    """`None`: `*batch` starts with the axes `*shared`."""
    scales: tuple[Float[Array, "*shared K S"], Float[Array, "*shared K S"]] | None = None
    """Of keys and of values that are int8; see `linear.Int8Array`."""


def pick(x: Shaped[Array, "..."], index: Int[Array, "*lead m"]) -> Shaped[Array, "..."]:
    """`x[index]` on each of their common leading axes: `[*lead, n, ...]` to `[*lead, m, ...]`."""
    take = operator.getitem
    for _ in index.shape[:-1]:
        take = jax.vmap(take)
    return take(x, index)


def attend(
    queries: Float[Array, "*batch T H head_dim"], sources: Sequence[Source]
) -> Float[Array, "*batch T heads_times_head_dim"]:
    """Grouped-query attention of every query over all its sources; H is a multiple of the K key heads."""
    *batch, length, heads, head_dim = queries.shape
    sources = [source for source in sources if source.keys.shape[-1]]
    if queries.size == 0 or not sources:
        return jnp.zeros((*batch, length, heads * head_dim), queries.dtype)
    kv_heads = sources[0].keys.shape[-3]
    grouped = (*batch, length, kv_heads, heads // kv_heads)

    def folded(x: Array, source: Source) -> Array:
        """`[*batch, T, K, M, n]` to `[*shared, K, F * M, n]`: F, the axes that share a source's one copy, merged."""
        shared = source.keys.shape[:-3]
        if source.places is not None:
            x = pick(x, source.places.query)
        fold = math.prod(x.shape[:-3]) // math.prod(shared)
        return x.reshape(*shared, fold, *x.shape[-3:]).swapaxes(-3, -4).reshape(*shared, kv_heads, -1, x.shape[-1])

    def unfolded(x: Array, source: Source) -> Array:
        """The inverse of `folded`."""
        shared = source.keys.shape[:-3]
        split = x.reshape(*shared, kv_heads, -1, grouped[-1], x.shape[-1]).swapaxes(-3, -4)
        if source.places is None:
            return split.reshape(*grouped, x.shape[-1])
        return pick(split.reshape(*shared[:-1], -1, *grouped[-3:], x.shape[-1]), source.places.of_query)

    queries = queries.reshape(*grouped, head_dim)
    scores, highest = [], jnp.full((*grouped, 1), -jnp.inf)
    for source in sources:
        keys = source.keys.astype(queries.dtype)
        product = jnp.matmul(folded(queries, source), keys, preferred_element_type=jnp.float32)
        if source.scales is not None:
            product *= source.scales[0][..., None, :]
        score = product * head_dim**-0.5
        if source.visible is not None:
            seen = source.visible[..., None, None, :]
            seen = folded(jnp.broadcast_to(seen, (*grouped, seen.shape[-1])), source)
            # A finite floor: a query that sees nothing (a pad) gets a harmless average, not NaN.
            score = jnp.where(seen, score, -1e30)
        scores.append(score)
        highest = jnp.maximum(highest, unfolded(score.max(-1, keepdims=True), source))

    # Each source's scores stay in the order of its product: bringing them side by side costs more than all else here.
    highest = jax.lax.stop_gradient(highest)
    context, total = jnp.zeros((*grouped, head_dim)), jnp.zeros((*grouped, 1))
    for source, score in zip(sources, scores, strict=True):
        weights = jnp.exp(score - folded(highest, source))
        total += unfolded(weights.sum(-1, keepdims=True), source)
        if source.scales is not None:
            weights *= source.scales[1][..., None, :]
        values = source.values.astype(queries.dtype)
        product = jnp.matmul(weights.astype(queries.dtype), values, preferred_element_type=jnp.float32)
        context += unfolded(product, source)
    return (context / total).astype(queries.dtype).reshape(*batch, length, heads * head_dim)


def attend_causally(
    queries: Float[Array, "*batch T H head_dim"], sources: Sequence[Source], mesh: Mesh | None = None
) -> Float[Array, "*batch T heads_times_head_dim"]:
    """`attend` where each query sees the real keys of all sources but the last, and in the last those up to its own.

    The last source holds the T queries' own keys. `visible` says just that, in full: its last row tells which keys are
    real. The result at a query whose own key is a pad is finite and otherwise unspecified.

    With the `mesh` that the caller runs on, a kernel is taken where `fused_kernel` names one; without, never. The
    mesh decides and not `jax.lax.platform_dependent`, because a kernel needs the mesh to be partitioned, because that
    function would have every platform keep what any platform's gradient needs, all scores among it, and because JAX
    cannot trace cuDNN's attention where cuDNN is not installed. A `vmap` around must name the mesh axes that its axis
    is split over (`spmd_axis_name`), else each device computes all of it.

    Raises ValueError if the last source has not T keys, or no `visible`.
    """
    *batch, length, heads, head_dim = queries.shape
    own = sources[-1]
    if own.keys.shape[-1] != length or own.visible is None:
        seen = "all visible" if own.visible is None else "some hidden"
        raise ValueError(
            f"the last source has {own.keys.shape[-1]} keys, {seen}: expected {length}, each seen causally"
        )
    kernel = fused_kernel(mesh, queries, own.keys.shape[-3]) if mesh is not None and queries.size else None
    if kernel is None:
        return attend(queries, sources)

    sources = [source for source in sources if source.keys.shape[-1]]

    def copied(x: Array, shared: int) -> Array:
        """`[*shared, ...]` to `[B, ...]`: for each sequence of the batch."""
        x = x.reshape(*x.shape[:shared], *[1] * (len(batch) - shared), *x.shape[shared:])
        return jnp.broadcast_to(x, (*batch, *x.shape[len(batch) :])).reshape(-1, *x.shape[len(batch) :])

    def real(source: Source) -> Bool[Array, "B S"]:
        last_row = jnp.ones(1, bool) if source.visible is None else jnp.atleast_2d(source.visible)[..., -1, :]
        return jnp.broadcast_to(last_row, (*batch, source.keys.shape[-1])).reshape(-1, source.keys.shape[-1])

    keys = jnp.concatenate([copied(source.keys, source.keys.ndim - 3) for source in sources], -1)
    values = jnp.concatenate([copied(source.values, source.values.ndim - 3) for source in sources], -2)
    is_real = jnp.concatenate([real(source) for source in sources], -1)
    context = sharded(kernel, mesh)(queries.reshape(-1, length, heads, head_dim), keys, values, is_real)
    return context.reshape(*batch, length, heads * head_dim)
