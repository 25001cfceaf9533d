"""Sampling as one compiled function: prefill of the token tree, then a while loop over completion positions."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped, UInt32

from rlvr_jax.models.attention import Source, attend
from rlvr_jax.models.config import ModelConfig
from rlvr_jax.models.decoder import Decoder, Meeting, PerKind, decoder
from rlvr_jax.models.gated_delta import LayerState, Projected, Weights, mix
from rlvr_jax.models.linear import linear
from rlvr_jax.models.rotary import rotation
from rlvr_jax.models.tree import Cache, Tree, as_rows, completion_start, last_token, run_tree
from rlvr_jax.records import AnyArray, Prompts, Rollouts
from rlvr_jax.sampling.categorical import draw
from rlvr_jax.sampling.noise import sequence_keys, token_uniforms


class _Decoding(NamedTuple):
    """What the loop carries, for R rows of N prompts."""

    position: Int[Array, ""]
    written: dict[str, Shaped[Array, "R N G T"]]
    """The per-token fields of `Rollouts`."""
    last_token: Int[Array, "R N G"]
    done: Bool[Array, "R N G"]
    past: "_Past"


class _Past(NamedTuple):
    """What the next token needs of the completions so far."""

    keys: Float[Array, "layers R N G K head_dim T"]
    values: Float[Array, "layers R N G K T head_dim"]
    states: LayerState | None
    """`[layers, R, N, G, ...]` of the Gated DeltaNet layers, if there are any."""


@functools.partial(jax.jit, static_argnames=("config", "samples", "max_new_tokens", "rows"))
def sample(
    params: dict[str, Any],
    prefix: Int[AnyArray, " Tq"],
    prompts: Prompts,
    stop_tokens: Int[AnyArray, " stops"],
    seed: UInt32[Array, ""],
    step: Int[Array, ""],
    temperature: Float[Array, ""],
    *,
    config: ModelConfig,
    samples: int,
    max_new_tokens: int,
    rows: int = 1,
) -> Rollouts:
    """G = `samples` completions of each prompt, each up to and including its first stop token.

    Prefix and prompts are computed once and their keys and values shared, not copied. The noise is addressed (see
    `noise`), so the same (seed, step, prompt id) always gives the same completions and two steps never
    share noise. `rows` is the number of device shares that P is split over. The loop ends when every
    completion has ended.
    """
    model = decoder(config, params)
    keys = as_rows(sequence_keys(seed, step, prompts.ids, samples), rows)
    prompt_tokens, prompt_mask = as_rows(prompts.tokens, rows), as_rows(prompts.mask, rows)

    def prefill(tokens: Array, mask: Array) -> tuple[Array, Cache]:
        no_completions = jnp.zeros((tokens.shape[0], samples, 0), tokens.dtype)
        hidden, _, cache = run_tree(model, config, Tree(prefix, tokens, mask, no_completions))
        return _logits(model, last_token(hidden, mask)), cache

    logits, cache = jax.vmap(prefill, out_axes=(0, 1))(prompt_tokens, prompt_mask)
    start = completion_start(prefix, prompt_mask)[..., None]
    shape = keys.shape
    types = {"tokens": jnp.int32, "mask": bool, "log_probabilities": jnp.float32, "entropies": jnp.float32}
    empty = {name: jnp.zeros((*shape, max_new_tokens), dtype) for name, dtype in types.items()}
    per_head = (config.num_attention_layers, *shape, config.num_kv_heads)
    past = _Past(
        jnp.zeros((*per_head, config.head_dim, max_new_tokens), config.compute_dtype),
        jnp.zeros((*per_head, max_new_tokens, config.head_dim), config.compute_dtype),
        jax.tree.map(lambda x: jnp.repeat(x[:, :, :, None], samples, 3), cache.states),
    )
    state = _Decoding(jnp.int32(0), empty, jnp.zeros(shape, jnp.int32), jnp.zeros(shape, bool), past)

    def choose(state: _Decoding, logits: Float[Array, "R N G vocab"]) -> _Decoding:
        """Draws the token at `state.position` for every completion that still runs."""
        token, log_probability, entropy = draw(logits, token_uniforms(keys, state.position), temperature)
        running = ~state.done
        values = {"tokens": token, "mask": running, "log_probabilities": log_probability, "entropies": entropy}
        written = {
            name: _write(state.written[name], jnp.where(running, value, jnp.zeros_like(value)), state.position, -1)
            for name, value in values.items()
        }
        done = state.done | jnp.isin(token, stop_tokens)
        return _Decoding(state.position + 1, written, token, done, state.past)

    def decode_and_choose(state: _Decoding) -> _Decoding:
        index = state.position - 1
        positions = jnp.broadcast_to(start + index, shape)
        logits, past = _decode(model, config, prompt_mask, cache, state.past, state.last_token, positions, index)
        return choose(state._replace(past=past), logits)

    state = choose(state, jnp.broadcast_to(logits[:, :, None], (*shape, logits.shape[-1])))
    state = jax.lax.while_loop(lambda s: (s.position < max_new_tokens) & ~jnp.all(s.done), decode_and_choose, state)
    flat = {name: value.reshape(-1, *value.shape[2:]) for name, value in state.written.items()}
    return Rollouts(**flat, truncated=~state.done.reshape(-1, samples))


def _decode(
    model: Decoder,
    config: ModelConfig,
    prompt_mask: Bool[Array, "R N Tp"],
    cache: Cache,
    past: _Past,
    tokens: Int[Array, "R N G"],
    positions: Int[Array, "R N G"],
    index: Int[Array, ""],
) -> tuple[Float[Array, "R N G vocab"], _Past]:
    """One token of every completion, at completion index `index`: next logits and the grown past."""
    earlier = jnp.arange(past.keys.shape[-1]) < index

    def attend_token(layer: tuple, queries: Array, keys: Array, values: Array) -> tuple[Array, tuple[Array, Array]]:
        prefix, prompts, *own = layer
        queries, keys, values = (x.reshape(*tokens.shape, *x.shape[1:]) for x in (queries, keys, values))
        sources = [
            Source(*prefix),
            Source(*prompts, prompt_mask[:, :, None, None]),
            Source(*own, earlier),
            Source(keys[..., None], values[..., None, :]),
        ]
        context = attend(queries[..., None, :, :], sources)
        return context.reshape(-1, context.shape[-1]), (keys, values)

    def mix_token(state: LayerState, weights: Weights, projected: Projected) -> tuple[Array, LayerState]:
        alone = Projected(*(x.reshape(*tokens.shape, 1, -1) for x in projected))
        mixed, state = mix(weights, alone, state, key_heads=config.delta.key_heads)
        return mixed.reshape(-1, *mixed.shape[-2:]), state

    x = model.embed(tokens.reshape(-1))
    per_layer = PerKind((cache.prefix, cache.prompts, past.keys, past.values), past.states)
    turned = rotation(config, positions.reshape(-1))
    hidden, latest = model.run_layers(x, turned, Meeting(attend_token, mix_token), per_layer)
    # The layers only read keys and values; what they add is written once, in place, after the last.
    keys, values = latest.attention
    grown = _Past(_write(past.keys, keys, index, -1), _write(past.values, values, index, -2), latest.delta)
    return _logits(model, hidden).reshape(*tokens.shape, -1), grown


def _write(array: Array, piece: Array, index: Int[Array, ""], axis: int) -> Array:
    """`piece` at `index` of `axis`. Unlike `.at[].set`, a scatter, XLA does this in place inside a loop."""
    return jax.lax.dynamic_update_slice_in_dim(array, jnp.expand_dims(piece, axis), index, axis)


def _logits(model: Decoder, hidden: Float[Array, "tokens hidden"]) -> Float[Array, "tokens vocab"]:
    return linear(hidden, model.unembedding, jnp.dtype(jnp.float32))
