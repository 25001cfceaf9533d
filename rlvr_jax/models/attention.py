"""Attention over keys that are shared: by the whole batch (a prefix), by a group (its prompt), or by nobody.

A query's keys come from several *sources*. A source that many queries share is stored once and never copied:
the queries that share it are folded into one long axis, so its scores are one large matrix product. One softmax
runs over the scores of all sources side by side, which makes the result exact.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


class Source(NamedTuple):
    """Keys and values for queries `[*batch, T, H, head_dim]`; `*shared` are the leading axes of `*batch`."""

    keys: Float[Array, "*shared K S head_dim"]
    values: Float[Array, "*shared K head_dim S"]
    visible: Bool[Array, "*mask S"] | None = None
    """Which key a query may see, broadcastable to `[*batch, T, S]`; `None` for all."""


def attend(
    queries: Float[Array, "*batch T H head_dim"], sources: Sequence[Source]
) -> Float[Array, "*batch T heads_times_head_dim"]:
    """Grouped-query attention of every query over all its sources; H is a multiple of the K key heads."""
    *batch, length, heads, head_dim = queries.shape
    sources = [source for source in sources if source.keys.shape[-2]]
    if queries.size == 0 or not sources:
        return jnp.zeros((*batch, length, heads * head_dim), queries.dtype)
    kv_heads = sources[0].keys.shape[-3]
    grouped = (kv_heads, heads // kv_heads)

    def folded(x: Array, source: Source) -> Array:
        """Merges the batch axes that do not tell this source's copies apart, and T, into one."""
        shared = source.keys.shape[:-3]
        return x.reshape(*shared, math.prod(batch[len(shared) :]) * length, *grouped, x.shape[-1])

    scores = []
    for source in sources:
        score = jnp.einsum("...fkmd,...ksd->...fkms", folded(queries, source), source.keys)
        score = score.reshape(*batch, length, *grouped, -1).astype(jnp.float32) * head_dim**-0.5
        if source.visible is not None:
            # A finite floor: a query that sees nothing (a pad) gets a harmless average, not NaN.
            score = jnp.where(source.visible[..., None, None, :], score, -1e30)
        scores.append(score)
    weights = jax.nn.softmax(jnp.concatenate(scores, -1), axis=-1).astype(queries.dtype)

    context = jnp.zeros((*batch, length, *grouped, head_dim), queries.dtype)
    start = 0
    for source in sources:
        size = source.keys.shape[-2]
        part = folded(weights[..., start : start + size], source)
        context += jnp.einsum("...fkms,...kds->...fkmd", part, source.values).reshape(context.shape)
        start += size
    return context.reshape(*batch, length, heads * head_dim)
