"""The slots that a sampler decodes in: when a completion ends, its slot goes to the next one that waits.

Every device share has S slots for its Q = N * G completions, which come in order. While completions wait, no slot
idles. When none waits any more, the slots are narrowed as completions end, so that no work is spent on empty ones.
"""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, Shaped

from rlvr_jax.models.attention import Places, pick
from rlvr_jax.models.gated_delta import LayerState


class Queue(NamedTuple):
    """What is known of each completion before it is decoded."""

    keys: Key[Array, "R Q"]
    """Of its noise."""
    first_tokens: Int[Array, "R Q"]
    """Drawn from what the prompt predicts."""
    stop_states: Int[Array, "R Q"]
    """Of the search for stop strings, after the first token."""
    limits: Int[Array, "R Q"]
    """Its longest length."""
    ended: Bool[Array, "R Q"]
    """Whether the first token is its last."""


class Past(NamedTuple):
    """What the next token needs of the completions so far.

    Keys and values go to one place of a ring, the same for all slots, so that they are written at once. Every layer
    has arrays of its own: one that the loop changes is then never copied.
    """

    keys: list[Shaped[Array, "R S K head_dim T"]]
    values: list[Shaped[Array, "R S K T head_dim"]]
    scales: list[tuple[Float[Array, "R S K T"], Float[Array, "R S K T"]]]
    """Of int8 keys and values; empty where they are of the compute type."""
    states: list[LayerState]
    """`[R, S, ...]` of the Gated DeltaNet layers, if there are any."""


class Slots(NamedTuple):
    """What the decoding loop carries from token to token."""

    clock: Int[Array, ""]
    """Steps so far; modulo T, where in the ring the next key goes."""
    waiting: Int[Array, " R"]
    """The first completion that has had no slot yet."""
    completion: Int[Array, "R S"]
    """Which one a slot decodes; Q in a slot that never had one."""
    length: Int[Array, "R S"]
    """Tokens that it has."""
    token: Int[Array, "R S"]
    """The last of them, which is to be run next."""
    stop_state: Int[Array, "R S"]
    """Of the search for stop strings, after that token."""
    running: Bool[Array, "R S"]
    past: Past

    def earlier(self) -> Bool[Array, "R S T"]:
        """Where in the ring the completion's tokens before its last one are."""
        size = self.past.keys[0].shape[-1]
        age = (self.clock - 1 - jnp.arange(size)) % size
        return age < (self.length - 1)[..., None]

    def ended(self, completions: int) -> Bool[Array, "R Q"]:
        """Which completions are whole, when none waits."""

        def each(completion: Array, running: Array) -> Array:
            return jnp.ones(completions, bool).at[jnp.where(running, completion, completions)].set(False, mode="drop")

        return jax.vmap(each)(self.completion, self.running)

    def places(self, completions: int) -> Places:
        """Where the slots stand among all completions."""

        def each(completion: Array) -> Array:
            # A slot that never had one is out of range, and is dropped.
            return jnp.zeros(completions, jnp.int32).at[completion].set(jnp.arange(completion.size), mode="drop")

        return Places(jax.vmap(each)(self.completion), self.completion)


def stages(slots: int, max_new_tokens: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """(width, few) of what is decoded one after the other: `width` slots until none waits and at most `few` run.

    In two parts: the second begins when half of the slots are empty. Each width is compiled on its own. They are powers
    of two and what is between: with steps of a quarter to a third, nine tenths of the work is for tokens that are kept
    when lengths have a long tail. Below 16 a step costs what its weights cost to read; completions below 32 tokens end
    too soon to be worth the compilation.
    """
    widths = [slots]
    while max_new_tokens >= 32 and widths[-1] > 16:
        below = 1 << (widths[-1] - 1).bit_length() - 1
        between = below * 3 // 2
        widths.append(max(16, between if between < widths[-1] else below))
    pairs = list(itertools.pairwise([*widths, 0]))
    if max_new_tokens < 32:
        return pairs, []
    half = slots // 2
    parts = sum(width > half for width in widths)
    first, second = pairs[:parts], pairs[parts:]
    width, few = first[-1]
    if few < half:
        # Half are empty before it is time to narrow: the second part goes on at the same width.
        first[-1], second = (width, half), [(width, few), *second]
    return first, second


def fill(slots: Slots, queue: Queue, samples: int, prompt_states: list[LayerState]) -> Slots:
    """Gives every slot whose completion has ended to the next that waits."""
    completions = queue.limits.shape[1]
    turn = slots.waiting[:, None] + jnp.cumsum(~slots.running, -1) - 1
    starting = ~slots.running & (turn < completions)
    completion = jnp.where(starting, turn, slots.completion)
    states = slots.past.states
    if states:
        prompts = jnp.minimum(completion, completions - 1) // samples
        fresh = starting.any()

        def restart(states: list[LayerState]) -> list[LayerState]:
            def each(old: Array, of_prompts: Array) -> Array:
                new = pick(of_prompts, prompts)
                return jnp.where(starting.reshape(*starting.shape, *[1] * (old.ndim - 2)), new, old)

            return jax.tree.map(each, states, prompt_states)

        states = jax.lax.cond(fresh, restart, lambda states: states, states)
    return slots._replace(
        waiting=slots.waiting + starting.sum(-1),
        completion=completion,
        length=jnp.where(starting, 1, slots.length),
        token=jnp.where(starting, pick(queue.first_tokens, completion), slots.token),
        stop_state=jnp.where(starting, pick(queue.stop_states, completion), slots.stop_state),
        running=jnp.where(starting, ~pick(queue.ended, completion), slots.running),
        past=slots.past._replace(states=states),
    )


def narrow(slots: Slots, width: int) -> Slots:
    """Keeps the running ones, which must be `width` at most, and some others up to that."""
    if width == slots.running.shape[1]:
        return slots
    kept = jnp.argsort(~slots.running, axis=-1, stable=True)[:, :width]
    names = ("completion", "length", "token", "stop_state", "running")
    return slots._replace(
        **{name: pick(getattr(slots, name), kept) for name in names},
        past=jax.tree.map(lambda x: pick(x, kept), slots.past),
    )
