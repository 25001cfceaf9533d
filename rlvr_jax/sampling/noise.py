"""Noise that is addressed, not consumed.

The uniform number behind a token is a function of (seed, step, prompt id, sample, position) alone. A rollout
therefore does not depend on the batch it ran in, its row there, the mesh, or how many others had finished.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, UInt32


def sequence_keys(
    seed: UInt32[Array, ""], step: Int[Array, ""], prompt_ids: UInt32[Array, " P"], samples: int
) -> Key[Array, "P G"]:
    """One key for each sample of each prompt at this step."""
    step_key = jax.random.fold_in(jax.random.key(seed), step)
    prompt_keys = jax.vmap(lambda prompt: jax.random.fold_in(step_key, prompt))(prompt_ids)
    fold_samples = jax.vmap(jax.random.fold_in, (None, 0))
    return jax.vmap(lambda key: fold_samples(key, jnp.arange(samples)))(prompt_keys)


def token_uniforms(keys: Key[Array, "*batch"], positions: Int[Array, "*batch"]) -> Float[Array, "*batch"]:
    """Uniform numbers in [0, 1) for the completion tokens at `positions`, counted from 0."""
    draw = jax.vmap(lambda key, position: jax.random.uniform(jax.random.fold_in(key, position)))
    return draw(keys.reshape(-1), positions.reshape(-1)).reshape(keys.shape)
