"""The forward pass over a tree of tokens: a prefix, prompts that continue it, completions that continue each prompt.

The prefix is computed once for all prompts and a prompt once for its whole group, forward and backward, with
the same result as computing every sequence on its own.

A *row* is one such tree laid out as a flat list of tokens, so that each weight meets one large matrix. A batch is
cut into `rows`, one for each device share (and micro-batch); each row computes the prefix again, nothing else.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, Shaped

from rlvr_jax.models.attention import Source, attend_causally
from rlvr_jax.models.config import ModelConfig
from rlvr_jax.models.decoder import Decoder, Meeting, Params, Remat, decoder
from rlvr_jax.models.gated_delta import LayerState, Projected, Weights, initial_state, mix
from rlvr_jax.models.head import chunked_log_probabilities
from rlvr_jax.models.packing import pack, unpack
from rlvr_jax.models.rotary import rotation
from rlvr_jax.records import AnyArray, Prompts
from rlvr_jax.sharding import RULES


class Tree(NamedTuple):
    """One row: N prompts with G completions each. Any of the lengths of prefix, prompts and completions may be 0."""

    prefix: Int[AnyArray, " Tq"]
    prompts: Int[Array, "N Tp"]
    prompt_mask: Bool[Array, "N Tp"]
    completions: Int[Array, "N G T"]
    segments: Int[Array, "N G T"] | None = None
    """Where a completion's line holds several, one after the other: numbers that change from one to the next. A token
    sees its own alone; pads are one as well. `None`: one completion in each line."""
    real: Bool[Array, "N G T"] | None = None
    """Which completion tokens count, at the beginning of each line, where the others need not be run."""


class Cache(NamedTuple):
    """What later tokens need of prefix and prompts, of all layers of a kind.

    Keys `[layers, ..., K, head_dim, tokens]` and values `[layers, ..., K, tokens, head_dim]`.
    """

    prefix: tuple[Array, Array]
    prompts: tuple[Array, Array]
    states: LayerState | None
    """At the end of each prompt `[layers, N, ...]`, where there are Gated DeltaNet layers."""


def prompt_positions(prefix: Int[AnyArray, " Tq"], prompt_mask: Bool[Array, "N Tp"]) -> Int[Array, "N Tp"]:
    """Positions of prompt tokens, counted over real tokens, so that padding on either side changes nothing."""
    return prefix.shape[0] + jnp.maximum(jnp.cumsum(prompt_mask, -1) - 1, 0)


def completion_start(prefix: Int[AnyArray, " Tq"], prompt_mask: Bool[Array, "*batch Tp"]) -> Int[Array, " *batch"]:
    """Position of each prompt's first completion token."""
    return prefix.shape[0] + prompt_mask.sum(-1)


def last_token(x: Shaped[Array, "N Tp ..."], mask: Bool[Array, "N Tp"]) -> Shaped[Array, "N ..."]:
    """Of each prompt what stands at its last real token."""
    last = x.shape[1] - 1 - jnp.argmax(mask[:, ::-1], -1)
    return jnp.take_along_axis(x, last[:, None, None], 1)[:, 0]


def run_tree(
    model: Decoder,
    config: ModelConfig,
    tree: Tree,
    *,
    remat: Remat = "none",
    mesh: Mesh | None = None,
    packed: int | None = None,
) -> tuple[Float[Array, "N Tp hidden"], Float[Array, "N G T hidden"], Cache]:
    """Hidden states of one row's prompts and completions, each of which predicts the next token, and the cache.

    With the `mesh` that it runs on, long queries take a fused kernel where there is one. With `packed`, only so many
    completion tokens are run, among them the `tree.real` ones; what is returned at the others is zero.
    Raises ValueError for packed completions of prompts under Gated DeltaNet layers: a state cannot fork within a line.
    """
    shapes = (tree.prefix.shape, tree.prompts.shape, tree.completions.shape)
    if tree.segments is None:
        starts, places, own_sees = None, jnp.arange(shapes[2][-1]), _causal(shapes[2][-1])
    elif config.delta and shapes[0][0] + shapes[1][1]:
        raise ValueError("completions of a prompt cannot be packed for a model with Gated DeltaNet layers")
    else:
        starts = tree.segments != jnp.roll(tree.segments, 1, -1)
        starts = starts.at[..., 0].set(True)
        index = jnp.arange(shapes[2][-1])
        places = index - jax.lax.cummax(jnp.where(starts, index, 0), axis=2)
        number = jnp.cumsum(starts, -1)
        own_sees = _causal(shapes[2][-1]) & (number[..., :, None] == number[..., None, :])
    positions = (
        jnp.arange(tree.prefix.shape[0]),
        prompt_positions(tree.prefix, tree.prompt_mask),
        jnp.broadcast_to(completion_start(tree.prefix, tree.prompt_mask)[:, None, None] + places, shapes[2]),
    )
    prompt_sees = _causal(shapes[1][-1]) & tree.prompt_mask[:, None, :]

    def flat(parts: tuple[AnyArray, ...], trailing: int = 0) -> Array:
        return _flat(
            parts if packed is None else (*parts[:2], pack(jnp.asarray(parts[2]), tree.real, packed)), trailing
        )

    def split(x: Array) -> tuple[Array, ...]:
        if packed is None:
            return _split(x, shapes)
        *parts, completions = _split(x, (*shapes[:2], (packed,)))
        return *parts, unpack(completions, tree.real)

    def attend_tree(_: None, queries: Array, keys: Array, values: Array) -> tuple[Array, Any]:
        queries, keys, values = (split(x) for x in (queries, keys, values))
        by_head = [(jnp.moveaxis(k, -3, -1), jnp.moveaxis(v, -3, -2)) for k, v in zip(keys, values, strict=True)]
        prefix, prompt, own = (Source(*pair) for pair in by_head)
        contexts = (
            attend_causally(queries[0], [prefix._replace(visible=_causal(shapes[0][0]))], mesh),
            attend_causally(queries[1], [prefix, prompt._replace(visible=prompt_sees)], mesh),
            attend_causally(
                queries[2],
                [
                    prefix,
                    prompt._replace(visible=tree.prompt_mask[:, None, None, :]),
                    own._replace(visible=own_sees),
                ],
                # Packed completions do not see all that stands before them.
                mesh if tree.segments is None else None,
            ),
        )
        return flat(contexts, 1), ((prefix.keys, prefix.values), (prompt.keys, prompt.values))

    def mix_tree(_: None, weights: Weights, projected: Projected) -> tuple[Array, LayerState]:
        key_heads = config.delta.key_heads
        parts = (split(x) for x in projected)
        prefix, prompts, completions = (Projected(*part) for part in zip(*parts, strict=True))
        state = initial_state(weights, key_heads)
        of_prefix, state = mix(weights, prefix, state, key_heads=key_heads)
        of_prompts, state = mix(weights, prompts, state, tree.prompt_mask, key_heads=key_heads)
        forked = jax.tree.map(lambda x: x[:, None], state)
        of_completions, _ = mix(weights, completions, forked, None, starts, key_heads=key_heads)
        return flat((of_prefix, of_prompts, of_completions), 2), state

    x = model.embed(flat((tree.prefix, tree.prompts, tree.completions)))
    meeting = Meeting(attend_tree, mix_tree)
    hidden, outputs = model.run_layers(x, rotation(config, flat(positions)), meeting, remat=remat)
    _, prompt_hidden, completion_hidden = split(hidden)
    return prompt_hidden, completion_hidden, Cache(*outputs.attention, outputs.delta)


def token_log_probabilities(
    params: Params,
    prefix: Int[AnyArray, " Tq"],
    prompts: Prompts,
    completions: Int[AnyArray, "P G T"],
    temperature: Float[AnyArray, ""],
    *,
    config: ModelConfig,
    rows: int = 1,
    remat: Remat = "none",
    chunk: int = 512,
    mesh: Mesh | None = None,
    fused_attention: bool = True,
    mask: Bool[AnyArray, "P G T"] | None = None,
    packed: int | None = None,
) -> Float[Array, "P G T"]:
    """Log-probability of each completion token given all before it, under softmax(logits / temperature).

    Temperature 0 (greedy sampling) is read as 1: the untempered policy. `rows` must divide P. Of each row, at most
    `chunk` tokens' logits exist at a time, in either direction. With the `mesh` that it runs on, the rows are split
    over its batch axes, whose size must divide them, and long queries take a fused kernel where there is one
    (`fused_attention`). With `packed` only the completion tokens of `mask` are run, at most so many in each row, and
    others are given 0; each completion has at least one.
    """
    samples, length = completions.shape[1:]
    model = decoder(config, params)
    mask = jnp.ones(completions.shape, bool) if mask is None else mask

    def one_row(prompt_tokens: Array, prompt_mask: Array, completions: Array, mask: Array) -> tuple[Array, Array]:
        # The last token of a completion predicts nothing that is asked for, so it is not run.
        tree = Tree(prefix, prompt_tokens, prompt_mask, completions[..., :-1], real=mask[..., 1:])
        fewer = None if packed is None else packed - mask[..., 0].size
        kernel_mesh = mesh if fused_attention else None
        prompt_hidden, hidden, _ = run_tree(model, config, tree, remat=remat, mesh=kernel_mesh, packed=fewer)
        last = last_token(prompt_hidden, prompt_mask)
        first = jnp.broadcast_to(last[:, None, None], (last.shape[0], samples, 1, last.shape[-1]))
        hidden = jnp.concatenate([first, hidden], 2)
        if packed is None:
            return hidden.reshape(-1, hidden.shape[-1]), completions.reshape(-1)
        return pack(hidden, mask, packed), pack(completions, mask, packed)

    on_rows = functools.partial(jax.vmap, spmd_axis_name=None if mesh is None else RULES["batch"])
    rows_of_mask = as_rows(mask, rows)
    split = (as_rows(x, rows) for x in (prompts.tokens, prompts.mask, completions))
    hidden, targets = on_rows(one_row)(*split, rows_of_mask)
    found = chunked_log_probabilities(hidden, model.unembedding, targets, temperature, chunk, mesh)
    if packed is not None:
        found = on_rows(unpack)(found, rows_of_mask)
    return found.reshape(-1, samples, length)


def logits(
    params: Params,
    tokens: Int[AnyArray, "N T"],
    segments: Int[AnyArray, "N T"] | None = None,
    *,
    config: ModelConfig,
) -> Float[Array, "N T vocab"]:
    """Float32 logits of plain sequences; those at a token predict the next one.

    `segments` tells the sequences of a packed or padded line apart, by numbers that change from one to the next: a
    token sees its own sequence alone, whose positions count from 0. Without it each line is one sequence; pads on
    the right then change nothing, as no token sees what follows it.
    """
    model = decoder(config, params)
    nothing, lines = jnp.zeros((len(tokens), 0), jnp.int32), None if segments is None else segments[:, None]
    tree = Tree(jnp.zeros(0, jnp.int32), nothing, nothing.astype(bool), jnp.asarray(tokens)[:, None], lines)
    _, hidden, _ = run_tree(model, config, tree)
    return jnp.einsum("ntd,vd->ntv", hidden[:, 0], model.unembedding, preferred_element_type=jnp.float32)


def as_rows(x: Shaped[AnyArray, "P ..."], rows: int) -> Shaped[AnyArray, "rows N ..."]:
    return x.reshape(rows, x.shape[0] // rows, *x.shape[1:])


def _causal(length: int) -> Bool[Array, "length length"]:
    return jnp.tril(jnp.ones((length, length), bool))


def _flat(parts: tuple[AnyArray, ...], trailing: int = 0) -> Array:
    """Joins arrays of tokens with any leading axes into one list of tokens; the last `trailing` axes stay."""
    return jnp.concatenate([part.reshape(-1, *part.shape[part.ndim - trailing :]) for part in parts])


def _split(x: Array, shapes: tuple[tuple[int, ...], ...]) -> tuple[Array, ...]:
    """The inverse of `_flat`."""
    parts, start = [], 0
    for shape in shapes:
        size = 1
        for axis in shape:
            size *= axis
        parts.append(x[start : start + size].reshape(*shape, *x.shape[1:]))
        start += size
    return tuple(parts)
