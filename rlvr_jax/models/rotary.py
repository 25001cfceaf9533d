"""Rotary position embeddings (RoFormer, arXiv 2104.09864) in the half-split layout of Hugging Face checkpoints."""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from rlvr_jax.models.config import ModelConfig

Rotation = tuple[Float[Array, "*tokens rotary_dim"], Float[Array, "*tokens rotary_dim"]]


def inverse_frequencies(config: ModelConfig) -> Float[np.ndarray, " half"]:
    """Radians per position of each pair of channels, with the scaling of Llama 3.1 where the config asks for it.

    That scaling divides the frequencies of wavelengths beyond `original / low_freq_factor` by `factor`,
    keeps those below `original / high_freq_factor`, and blends linearly (in `original / wavelength`) between.
    """
    exponents = np.arange(0, config.rotary_dim, 2, dtype=np.float64) / config.rotary_dim
    frequencies = 1.0 / config.rope_theta**exponents
    scaling = config.rope_scaling
    if scaling is not None:
        turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
        keep = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
        keep = np.clip(keep, 0.0, 1.0)
        frequencies = keep * frequencies + (1.0 - keep) * frequencies / scaling.factor
    return frequencies.astype(np.float32)


def rotation(config: ModelConfig, positions: Int[Array, "*tokens"]) -> Rotation:
    """Cosines and sines of each position, float32 whatever the compute type: bfloat16 would round 257 to 256."""
    angles = positions.astype(jnp.float32)[..., None] * inverse_frequencies(config)
    angles = jnp.concatenate([angles, angles], -1)
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: Float[Array, "*tokens heads head_dim"], rotation: Rotation) -> Float[Array, "*tokens heads head_dim"]:
    """Turns each head's channel pairs (i, i + rotary_dim / 2) by the angle of its position; the other channels stay."""
    cosines, sines = (part[..., None, :] for part in rotation)
    rotary_dim = cosines.shape[-1]
    if rotary_dim < x.shape[-1]:
        return jnp.concatenate([rotate(x[..., :rotary_dim], rotation), x[..., rotary_dim:]], -1)
    first, second = jnp.split(x.astype(jnp.float32), 2, -1)
    turned = jnp.concatenate([-second, first], -1)
    return (x * cosines + turned * sines).astype(x.dtype)
