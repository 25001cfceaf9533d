"""Sampling as compiled functions: prefill of the token tree, then a loop over slots that decode completions.

`sample` is the whole. `begin` and `finish` are its two parts: after the first no completion waits for a slot, and what
has ended can be judged while the second goes on.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, Shaped, UInt32

from rlvr_jax.errors import UserError
from rlvr_jax.models.attention import Source, attend, pick
from rlvr_jax.models.config import ModelConfig
from rlvr_jax.models.decoder import Decoder, Meeting, PerKind, decoder
from rlvr_jax.models.decoding import layers_apart, run_layers_apart, unstacked
from rlvr_jax.models.gated_delta import LayerState, Projected, Weights, mix
from rlvr_jax.models.head import logits_of_rows, placed_head
from rlvr_jax.models.linear import Int8Array
from rlvr_jax.models.rotary import rotation
from rlvr_jax.models.tree import Cache, Tree, as_rows, completion_start, last_token, run_tree
from rlvr_jax.records import AnyArray, Prompts, Rollouts
from rlvr_jax.sampling.categorical import Drawn, draw
from rlvr_jax.sampling.noise import sequence_keys, token_uniforms
from rlvr_jax.sampling.precision import Precision
from rlvr_jax.sampling.slots import Past, Queue, Slots, fill, narrow, stages
from rlvr_jax.sampling.stop_strings import FOUND, START, StopStrings
from rlvr_jax.sampling.truncation import Truncation

_FIELDS = {
    "tokens": jnp.int32,
    "mask": bool,
    "stopped": bool,
    "log_probabilities": jnp.float32,
    "policy_log_probabilities": jnp.float32,
    "entropies": jnp.float32,
}


@dataclasses.dataclass(frozen=True)
class SamplingSettings:
    """What is compiled into a sampler. Raises UserError for slots that the shares cannot split."""

    model: ModelConfig
    samples: int
    """G, of each prompt."""
    max_new_tokens: int
    rows: int = 1
    """Device shares that P is split over."""
    slots: int | None = None
    """Completions that are decoded at a time, a multiple of `rows`, by default all. Memory for keys and values grows
    with it; the tokens do not depend on it."""
    precision: Precision = Precision()
    mesh: Mesh | None = None
    """That it runs on, whose batch axes R rows are split over; None leaves to XLA where the head's product is made."""

    def __post_init__(self) -> None:
        if self.slots is not None and (self.slots < 1 or self.slots % self.rows):
            raise UserError(f"slots is {self.slots}, accepted is a multiple of data x fsdp ({self.rows})")

    @property
    def computed(self) -> ModelConfig:
        """The model as it is sampled from."""
        return dataclasses.replace(self.model, compute_dtype=self.precision.dtype or self.model.compute_dtype)

    def width(self, completions: int) -> int:
        """Slots of each share, of which no more than its completions are of use."""
        return completions if self.slots is None else min(self.slots // self.rows, completions)


class Request(NamedTuple):
    """What may change from one sampling to the next without a new compilation, for equal shapes."""

    prefix: Int[AnyArray, " Tq"]
    prompts: Prompts
    stop_tokens: Int[AnyArray, " stops"]
    seed: UInt32[Array, ""]
    step: Int[Array, ""]
    temperature: Float[Array, ""]
    limits: Int[AnyArray, "P G"] | None = None
    """Of the length of each completion, from 1; `max_new_tokens` is one for all."""
    truncation: Truncation | None = None
    """Of the distribution that tokens are drawn from."""
    stop_strings: StopStrings | None = None
    """A completion ends with the token whose text completes one of them, which is part of it."""

    def draw(self, logits: Array, uniforms: Array) -> Drawn:
        """As `categorical.draw`."""
        return draw(logits, uniforms, self.temperature, self.truncation)

    def stops(self, tokens: Array, states: Array) -> tuple[Array, Array]:
        """Which tokens end a completion, the search for stop strings being in `states`; and the states after them."""
        stopped = jnp.isin(tokens, self.stop_tokens)
        if self.stop_strings is None:
            return stopped, states
        states = self.stop_strings.after(states, tokens)
        return stopped | (states == FOUND), states


class Begun(NamedTuple):
    """Completions of which some have ended and the others have a slot each: R shares of N prompts, Q completions."""

    written: dict[str, Shaped[Array, "R Q T"]]
    """The per-token fields of `Rollouts`, and which token was `stopped` at."""
    queue: Queue
    cache: PerKind
    """Of prefix and prompts: lists over the layers of either kind."""
    prompt_mask: Bool[Array, "R N Tp"]
    start: Int[Array, "R N"]
    """Position of each prompt's first completion token."""
    ended: Bool[Array, "R Q"]
    """Which completions are whole."""


@functools.partial(jax.jit, static_argnames="settings")
def sample(params: dict[str, Any], request: Request, *, settings: SamplingSettings) -> Rollouts:
    """G completions of each prompt, each up to and including its first stop token or the end of a stop string.

    Prefix and prompts are computed once and their keys and values shared, not copied. The noise is addressed (see
    `noise`), so the same (seed, step, prompt id) always gives the same completions and two steps never share noise.
    """
    begun, state = begin(params, request, settings=settings)
    return finish(params, request, begun, state, settings=settings)


@functools.partial(jax.jit, static_argnames="settings")
def begin(params: dict[str, Any], request: Request, *, settings: SamplingSettings) -> tuple[Begun, Slots]:
    """`sample` until no completion waits, and at most as many run as half of the slots can hold."""
    prefix, prompts, rows, samples = request.prefix, request.prompts, settings.rows, settings.samples
    config, max_new_tokens = settings.computed, settings.max_new_tokens
    model = decoder(config, params)
    keys = as_rows(sequence_keys(request.seed, request.step, prompts.ids, samples), rows)
    prompt_tokens, prompt_mask = as_rows(prompts.tokens, rows), as_rows(prompts.mask, rows)

    def prefill(tokens: Array, mask: Array) -> tuple[Array, Cache]:
        no_completions = jnp.zeros((tokens.shape[0], samples, 0), tokens.dtype)
        hidden, _, cache = run_tree(model, config, Tree(prefix, tokens, mask, no_completions))
        return last_token(hidden, mask), cache

    hidden, stacked = jax.vmap(prefill, out_axes=(0, 1))(prompt_tokens, prompt_mask)
    head = placed_head(model.unembedding, settings.mesh)
    logits = logits_of_rows(hidden, head, settings.mesh)
    layers = layers_apart(model, int8=settings.precision.int8_weights)
    cache = PerKind(
        unstacked((stacked.prefix, stacked.prompts), len(layers.attention)),
        unstacked(stacked.states, len(layers.delta)),
    )
    # One distribution for the whole group.
    first = request.draw(logits[:, :, None], token_uniforms(keys, jnp.zeros(keys.shape, jnp.int32)))
    shape = (rows, keys.shape[1] * samples)
    stopped, stop_states = request.stops(first.tokens, jnp.full(keys.shape, START))
    values = {**first._asdict(), "mask": jnp.ones(keys.shape, bool), "stopped": stopped}
    written = {
        name: jnp.zeros((*shape, max_new_tokens), dtype).at[..., 0].set(values[name].reshape(shape))
        for name, dtype in _FIELDS.items()
    }
    limits = jnp.full(shape, max_new_tokens)
    if request.limits is not None:
        limits = jnp.minimum(limits, jnp.asarray(request.limits).reshape(shape))
    of_keys = (x.reshape(shape) for x in (keys, first.tokens, stop_states))
    queue = Queue(*of_keys, limits, stopped.reshape(shape) | (limits <= 1))
    begun = Begun(written, queue, cache, prompt_mask, completion_start(prefix, prompt_mask), queue.ended)

    width = settings.width(shape[1])
    empty = jnp.zeros((rows, width), jnp.int32)
    per_head = (rows, width, config.num_kv_heads)
    dtype = "int8" if settings.precision.int8_cache else config.compute_dtype
    scale = jnp.zeros((*per_head, max_new_tokens), config.compute_dtype)
    past = Past(
        [jnp.zeros((*per_head, config.head_dim, max_new_tokens), dtype) for _ in cache.attention],
        [jnp.zeros((*per_head, max_new_tokens, config.head_dim), dtype) for _ in cache.attention],
        [(scale, scale) for _ in cache.attention] if settings.precision.int8_cache else [],
        jax.tree.map(lambda x: jnp.zeros((rows, width, *x.shape[2:]), x.dtype), cache.delta),
    )
    state = Slots(jnp.int32(0), empty[:, 0], empty + shape[1], empty, empty, empty, empty.astype(bool), past)
    state = fill(state, queue, samples, cache.delta)
    for now, few in stages(width, max_new_tokens)[0]:
        state = narrow(state, now)
        begun, state = _decode_until(model, head, layers, request, settings, begun, state, few)
    return begun._replace(ended=state.ended(shape[1])), state


@functools.partial(jax.jit, static_argnames="settings")
def finish(
    params: dict[str, Any], request: Request, begun: Begun, state: Slots, *, settings: SamplingSettings
) -> Rollouts:
    """The rest of `sample`."""
    model = decoder(settings.computed, params)
    head = placed_head(model.unembedding, settings.mesh)
    layers = layers_apart(model, int8=settings.precision.int8_weights)
    width = settings.width(begun.ended.shape[1])
    for now, few in stages(width, settings.max_new_tokens)[1]:
        state = narrow(state, now)
        begun, state = _decode_until(model, head, layers, request, settings, begun, state, few)
    flat = {name: value.reshape(-1, settings.samples, settings.max_new_tokens) for name, value in begun.written.items()}
    return Rollouts(truncated=~flat.pop("stopped").any(-1), **flat)


def _decode_until(
    model: Decoder,
    head: Array,
    layers: PerKind,
    request: Request,
    settings: SamplingSettings,
    begun: Begun,
    slots: Slots,
    few: int,
) -> tuple[Begun, Slots]:
    """Decodes until no completion waits and at most `few` run on any share."""
    queue, width = begun.queue, slots.running.shape[1]
    completions = queue.limits.shape[1]

    def unfinished(carry: tuple[dict, Slots]) -> Bool[Array, ""]:
        slots = carry[1]
        return jnp.any(slots.waiting < completions) | jnp.any(slots.running.sum(-1) > few)

    def step(carry: tuple[dict, Slots]) -> tuple[dict, Slots]:
        written, slots = carry
        logits, past = _decode(model, head, layers, settings, begun, slots)
        uniforms = token_uniforms(pick(queue.keys, slots.completion), slots.length)
        drawn, running = request.draw(logits, uniforms), slots.running
        stopped, stop_state = request.stops(drawn.tokens, slots.stop_state)
        # An empty slot writes nowhere.
        place = jnp.where(running, slots.completion, completions)
        values = {**drawn._asdict(), "mask": running, "stopped": stopped}

        def put(array: Array, place: Array, length: Array, value: Array) -> Array:
            return array.at[place, length].set(value, mode="drop")

        written = {name: jax.vmap(put)(written[name], place, slots.length, values[name]) for name in _FIELDS}
        length = slots.length + 1
        running &= ~stopped & (length < pick(queue.limits, slots.completion))
        slots = slots._replace(
            clock=slots.clock + 1, length=length, token=drawn.tokens, stop_state=stop_state, running=running, past=past
        )
        if width < completions:
            slots = fill(slots, queue, settings.samples, begun.cache.delta)
        return written, slots

    written, slots = jax.lax.while_loop(unfinished, step, (begun.written, slots))
    return begun._replace(written=written), slots


def _decode(
    model: Decoder, head: Array, layers: PerKind, settings: SamplingSettings, begun: Begun, slots: Slots
) -> tuple[Float[Array, "R S vocab"], Past]:
    """The last token of every slot's completion: the logits of the next one and the grown past."""
    config, shape, completions = settings.computed, slots.token.shape, begun.queue.limits.shape[1]
    cache, past = begun.cache, slots.past
    prompts = jnp.minimum(slots.completion, completions - 1) // settings.samples
    # With as many slots as completions, each is in its own place from beginning to end.
    places = None if shape[1] == completions else slots.places(completions)
    seen = pick(begun.prompt_mask, prompts)[:, :, None]
    earlier = slots.earlier()[:, :, None]

    def attend_token(layer: tuple, queries: Array, keys: Array, values: Array) -> tuple[Array, tuple[Array, Array]]:
        (prefix, prompts), *own, scales = layer
        queries, keys, values = (x.reshape(*shape, *x.shape[1:]) for x in (queries, keys, values))
        sources = [
            Source(*prefix),
            Source(*prompts, seen, places),
            Source(*own, earlier, scales=scales),
            Source(keys[..., None], values[..., None, :]),
        ]
        context = attend(queries[..., None, :, :], sources)
        return context.reshape(-1, context.shape[-1]), (keys, values)

    def mix_token(state: LayerState, weights: Weights, projected: Projected) -> tuple[Array, LayerState]:
        alone = Projected(*(x.reshape(*shape, 1, -1) for x in projected))
        mixed, state = mix(weights, alone, state, key_heads=config.delta.key_heads)
        return mixed.reshape(-1, *mixed.shape[-2:]), state

    x = model.embed(slots.token.reshape(-1))
    scales = past.scales or [None] * len(past.keys)
    per_layer = PerKind(list(zip(cache.attention, past.keys, past.values, scales, strict=True)), past.states)
    positions = pick(begun.start, prompts) + slots.length - 1
    turned = rotation(config, positions.reshape(-1))
    x, latest = run_layers_apart(layers, x, turned, Meeting(attend_token, mix_token), per_layer)
    # The layers only read keys and values; what they add is written in place, after the last.
    place = slots.clock % past.keys[0].shape[-1]
    new, new_scales = latest.attention, []
    if past.scales:
        quantized = [(Int8Array.of(keys), Int8Array.of(values)) for keys, values in new]
        for old, pair in zip(past.scales, quantized, strict=True):
            new_scales.append(tuple(_write(x, each.scale, place, -1) for x, each in zip(old, pair, strict=True)))
        new = [(keys.values, values.values) for keys, values in quantized]
    grown = Past(
        [_write(old, keys, place, -1) for old, (keys, _) in zip(past.keys, new, strict=True)],
        [_write(old, values, place, -2) for old, (_, values) in zip(past.values, new, strict=True)],
        new_scales,
        latest.delta,
    )
    return logits_of_rows(model.norm(x).reshape(*shape, -1), head, settings.mesh), grown


def _write(array: Array, piece: Array, index: Int[Array, ""], axis: int) -> Array:
    """`piece` at `index` of `axis`. Unlike `.at[].set`, a scatter, XLA does this in place inside a loop."""
    return jax.lax.dynamic_update_slice_in_dim(array, jnp.expand_dims(piece, axis), index, axis)
