"""Gated delta networks (arXiv 2412.06464): attention whose memory of the past is one matrix, as in Qwen3.5.

A head keeps a state `S [K, V]`, an associative memory. A token with log-decay `g` and write strength `beta` makes it
forget, then moves what it answers to `key` towards `value`, and reads it (the gated delta rule):

    S <- exp(g) S,    S <- S + beta key (value - S^T key)^T,    output = S^T query

Everything that a sequence remembers is a `LayerState`, so sequences with a common past fork it: a prefix's state
continues as that of many prompts, a prompt's as that of its group.

T tokens, H heads of K key and V value channels, C channels of a short convolution with W taps.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32

from rlvr_jax.models.linear import linear
from rlvr_jax.models.norm import rms_norm

_EXACT = jax.lax.Precision.HIGHEST
"""Accelerators would round float32 factors to 8 or 11 bits; the products with the state are few enough not to."""

_FORGET = -1e4
"""A log-decay whose exponential is 0 in float32, and whose sums are finite."""


class LayerState(NamedTuple):
    """What one layer remembers of a sequence. The `*shared` axes broadcast against those of the tokens that follow.

    The state `[N, ...]` of N prompts continues in their completions `[N, G, T]` as `[N, 1, ...]`.
    """

    history: Float[Array, "*shared W-1 C"]
    """Inputs of the convolution, of the last W - 1 tokens; zeros before the first."""
    memory: Float32[Array, "*shared H K V"]


class Weights(NamedTuple):
    """One layer. Projections are `[out, in]`, as checkpoints store them; `channels` are queries, keys, values."""

    channels: Float[Array, "C hidden"]
    gate: Float[Array, "H*V hidden"]
    write: Float[Array, "H hidden"]
    decay: Float[Array, "H hidden"]
    convolution: Float[Array, "C W"]
    log_rate: Float[Array, " H"]
    decay_bias: Float[Array, " H"]
    norm: Float[Array, " V"]
    output: Float[Array, "hidden H*V"]


class Projected(NamedTuple):
    """What the layer reads of each token on its own, before it meets other tokens."""

    channels: Float[Array, "*tokens C"]
    gate: Float[Array, "*tokens H*V"]
    write: Float[Array, "*tokens H"]
    decay: Float[Array, "*tokens H"]


def recurrent(
    queries: Float[Array, "*batch T H K"],
    keys: Float[Array, "*batch T H K"],
    values: Float[Array, "*batch T H V"],
    log_decay: Float[Array, "*batch T H"],
    beta: Float[Array, "*batch T H"],
    state: Float32[Array, "*#batch H K V"],
    mask: Bool[Array, "*batch T"] | None = None,
) -> tuple[Float[Array, "*batch T H V"], Float32[Array, "*batch H K V"]]:
    """The gated delta rule token by token: outputs and the state after the last token.

    Queries and keys are taken as they are (the layer normalises them). Log-decay is in nats per token, not above 0.
    A token that `mask` calls a pad (False) leaves the state as it is and gives 0.
    """
    inputs = _without_pads((queries, keys, values, log_decay, beta), mask)
    time = keys.ndim - 3

    def step(state: Array, token: tuple[Array, ...]) -> tuple[Array, Array]:
        query, key, value, log_decay, beta = token
        state = state * jnp.exp(log_decay)[..., None, None]
        # Sums of products rather than matrix products: one row each, and float32 on every device.
        error = value - (state * key[..., None]).sum(-2)
        state = state + key[..., None] * (beta[..., None] * error)[..., None, :]
        return state, (state * query[..., None]).sum(-2)

    start = jnp.broadcast_to(state, (*keys.shape[:time], *state.shape[-3:]))
    state, outputs = jax.lax.scan(step, start, tuple(jnp.moveaxis(x, time, 0) for x in inputs))
    return jnp.moveaxis(outputs, 0, time).astype(values.dtype), state


def chunked(
    queries: Float[Array, "*batch T H K"],
    keys: Float[Array, "*batch T H K"],
    values: Float[Array, "*batch T H V"],
    log_decay: Float[Array, "*batch T H"],
    beta: Float[Array, "*batch T H"],
    state: Float32[Array, "*#batch H K V"],
    mask: Bool[Array, "*batch T"] | None = None,
    *,
    chunk: int = 64,
) -> tuple[Float[Array, "*batch T H V"], Float32[Array, "*batch H K V"]]:
    """`recurrent`, computed `chunk` tokens at a time by matrix products (arXiv 2406.06484, 2412.06464).

    What the tokens of a chunk write, as a function of the state before it, solves a unit triangular system: the
    solution is `written - erased @ state` (the WY form). All chunks are solved at once; a scan then carries only the
    state from chunk to chunk, and keeps one for each chunk instead of one for each token in the backward pass.
    """
    inputs = _without_pads((queries, keys, values, log_decay, beta), mask)
    *batch, length, _, key_dim = keys.shape
    state = jnp.broadcast_to(state, (*batch, *state.shape[-3:]))
    if keys.size == 0:
        return jnp.zeros_like(values), state
    size = min(chunk, length)

    def in_chunks(x: Array) -> Array:
        """`[*batch, T, H, ...]` to `[chunks, *batch, H, size, ...]`; what is added at the end are pads."""
        axis = len(batch)
        x = jnp.pad(x, [(0, -length % size) if i == axis else (0, 0) for i in range(x.ndim)])
        x = jnp.moveaxis(x.reshape(*batch, -1, size, *x.shape[axis + 1 :]), axis, 0)
        return x.swapaxes(axis + 1, axis + 2)

    queries, keys, new_values, log_decay, beta = map(in_chunks, inputs)
    causal = jnp.tril(jnp.ones((size, size), bool))
    # Log-decay from token j to token i as a sum of its terms: a difference of running sums would cancel, and lose
    # the last digits of a slow decay behind a fast one.
    steps = jnp.where(jnp.tril(causal, -1), log_decay[..., :, None], 0.0)
    between = jnp.where(causal, jnp.exp(jnp.matmul(causal.astype(jnp.float32), steps, precision=_EXACT)), 0.0)
    since_start = jnp.exp(jnp.cumsum(log_decay, -1))[..., None]
    until_end = between[..., -1, :, None]

    strength = beta[..., None]
    overlap = jnp.matmul(keys, keys.mT, precision=_EXACT) * between
    writes = jnp.concatenate([strength * new_values, strength * since_start * keys], -1)
    # Reads only what is below the diagonal, which is taken as ones.
    solved = jax.lax.linalg.triangular_solve(strength * overlap, writes, left_side=True, lower=True, unit_diagonal=True)
    written, erased = jnp.split(solved, [writes.shape[-1] - key_dim], -1)
    attention = jnp.matmul(queries, keys.mT, precision=_EXACT) * between

    def step(state: Array, chunk: tuple[Array, ...]) -> tuple[Array, Array]:
        written, erased, attention, reading, writing, decay = chunk
        written = written - jnp.matmul(erased, state, precision=_EXACT)
        outputs = jnp.matmul(reading, state, precision=_EXACT) + jnp.matmul(attention, written, precision=_EXACT)
        return decay * state + jnp.matmul(writing.mT, written, precision=_EXACT), outputs

    reading, writing = queries * since_start, keys * until_end
    chunks = (written, erased, attention, reading, writing, since_start[..., -1:, :])
    state, outputs = jax.lax.scan(step, state, chunks)
    outputs = jnp.moveaxis(outputs.swapaxes(-2, -3), 0, len(batch))
    return outputs.reshape(*batch, -1, *outputs.shape[-2:])[..., :length, :, :].astype(values.dtype), state


def short_convolution(
    x: Float[Array, "*batch T C"],
    weight: Float[Array, "C W"],
    history: Float[Array, "*#batch W-1 C"],
    mask: Bool[Array, "*batch T"] | None = None,
    starts: Bool[Array, "*batch T"] | None = None,
) -> tuple[Float[Array, "*batch T C"], Float[Array, "*batch W-1 C"]]:
    """Each channel's causal convolution and silu, continuing from a history: outputs and the new history.

    The last column of `weight` meets the token itself. Pads may stand on either side of the real tokens, not between
    them; they give 0, and neither an output nor the history ever sees one. From a token that `starts` names on, what
    was before it counts as zeros; not together with `mask`.
    """
    *batch, length, channels = x.shape
    taps = weight.shape[-1]
    history = jnp.broadcast_to(history, (*batch, taps - 1, channels)).astype(x.dtype)
    if mask is None or length == 0:
        line = jnp.concatenate([history, x], -2)
        history = line[..., length:, :]
    else:
        # The history goes right before the first real token, over the pads to its left.
        before = [(0, 0)] * len(batch) + [(taps - 1, 0), (0, 0)]
        line = jnp.pad(jnp.where(mask[..., None], x, 0), before)
        first = jnp.argmax(mask, -1)[..., None]
        place = jnp.arange(line.shape[-2]) - first
        for i in range(taps - 1):
            line = jnp.where((place == i)[..., None], history[..., i : i + 1, :], line)
        last = first + mask.sum(-1, keepdims=True) + jnp.arange(taps - 1)
        history = jnp.take_along_axis(line, last[..., None], -2)

    wide, weight = line.astype(jnp.float32), weight.astype(jnp.float32)
    if starts is None:
        parts = [wide[..., i : i + length, :] for i in range(taps)]
    else:
        number = jnp.cumsum(starts, -1)[..., None]  # of the sequence, from 1; what is before it all is 0
        numbers = jnp.pad(number, [(0, 0)] * len(batch) + [(taps - 1, 0), (0, 0)])
        same = [numbers[..., i : i + length, :] == number for i in range(taps)]
        parts = [jnp.where(same[i], wide[..., i : i + length, :], 0.0) for i in range(taps)]
    outputs = jax.nn.silu(sum(parts[i] * weight[:, i] for i in range(taps)))
    if mask is not None:
        outputs = jnp.where(mask[..., None], outputs, 0)
    return outputs.astype(x.dtype), history


def gated_rms_norm(
    x: Float[Array, "*tokens V"], gate: Float[Array, "*tokens V"], scale: Float[Array, " V"], eps: float
) -> Float[Array, "*tokens V"]:
    """`scale * x / rms(x) * silu(gate)` in float32, returned in the type of the gate."""
    normed = rms_norm(x.astype(jnp.float32), scale, eps)
    return (normed * jax.nn.silu(gate.astype(jnp.float32))).astype(gate.dtype)


def project(weights: Weights, x: Float[Array, "tokens hidden"]) -> Projected:
    """What each token of a flat list brings: no token meets another."""
    return Projected(*(linear(x, part) for part in (weights.channels, weights.gate, weights.write, weights.decay)))


def mix(
    weights: Weights,
    projected: Projected,
    state: LayerState,
    mask: Bool[Array, "*batch T"] | None = None,
    starts: Bool[Array, "*batch T"] | None = None,
    *,
    key_heads: int,
    chunk: int = 64,
) -> tuple[Float32[Array, "*batch T H V"], LayerState]:
    """The tokens of sequences `[*batch, T]` meet: outputs of the heads before norm and gate, and the new state.

    Each of the `key_heads` queries and keys, of length 1 (and the queries over the root of K), serves the same
    number of consecutive heads. One token alone goes through `recurrent`, more through `chunked`. Pads (False in
    `mask`) stand on either side of the real tokens, give 0, and change nothing, whatever they hold. A token that
    `starts` names is the first of another sequence, which begins without a past; not together with `mask`.
    """
    heads, head_dim = weights.log_rate.shape[0], weights.norm.shape[0]
    values_at = weights.channels.shape[0] - heads * head_dim
    channels, history = short_convolution(projected.channels, weights.convolution, state.history, mask, starts)
    channels = channels.astype(jnp.float32)

    def split(x: Array, count: int) -> Float[Array, "*batch T count channels"]:
        return x.reshape(*x.shape[:-1], count, x.shape[-1] // count)

    queries, keys, values = jnp.split(channels, [values_at // 2, values_at], -1)
    queries, keys, values = split(queries, key_heads), split(keys, key_heads), split(values, heads)
    queries = _unit(queries) * queries.shape[-1] ** -0.5
    queries, keys = (jnp.repeat(x, heads // key_heads, -2) for x in (queries, _unit(keys)))
    # float32 whatever the compute type: log_rate is stored so, and the decay of a long sequence is a product of many.
    decay, bias, log_rate = (x.astype(jnp.float32) for x in (projected.decay, weights.decay_bias, weights.log_rate))
    log_decay = -jnp.exp(log_rate) * jax.nn.softplus(decay + bias)
    if starts is not None:
        log_decay = jnp.where(starts[..., None], _FORGET, log_decay)
    beta = jax.nn.sigmoid(projected.write.astype(jnp.float32))
    inputs = (queries, keys, values, log_decay, beta, state.memory, mask)
    outputs, memory = recurrent(*inputs) if channels.shape[-2] == 1 else chunked(*inputs, chunk=chunk)
    return outputs, LayerState(history, memory)


def read_out(
    weights: Weights,
    mixed: Float32[Array, "tokens H V"],
    gate: Float[Array, "tokens H*V"],
    *,
    norm_eps: float,
) -> Float[Array, "tokens hidden"]:
    """Heads to hidden states: normed, gated by their token's `Projected.gate`, projected."""
    normed = gated_rms_norm(mixed, gate.reshape(mixed.shape), weights.norm, norm_eps)
    return linear(normed.reshape(gate.shape), weights.output)


def initial_state(weights: Weights, key_heads: int) -> LayerState:
    """The state before the first token, without batch axes: it broadcasts to any."""
    channels, taps = weights.convolution.shape
    heads, head_dim = weights.log_rate.shape[0], weights.norm.shape[0]
    key_dim = (channels - heads * head_dim) // (2 * key_heads)
    history = jnp.zeros((taps - 1, channels), weights.channels.dtype)
    return LayerState(history, jnp.zeros((heads, key_dim, head_dim), jnp.float32))


def _without_pads(inputs: tuple[Array, ...], mask: Array | None) -> tuple[Array, ...]:
    """float32 inputs of the rule; a pad's are zeros, with which it neither decays nor writes nor reads."""
    wide = tuple(x.astype(jnp.float32) for x in inputs)
    if mask is None:
        return wide
    return tuple(jnp.where(mask.reshape(*mask.shape, *[1] * (x.ndim - mask.ndim)), x, 0.0) for x in wide)


def _unit(x: Float[Array, "*tokens channels"]) -> Float[Array, "*tokens channels"]:
    """Over its length; the constant under the root is Qwen3.5's, and keeps zeros zero."""
    return x * jax.lax.rsqrt((x**2).sum(-1, keepdims=True) + 1e-6)
