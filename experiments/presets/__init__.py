"""Typed presets, one small file each; the header of a file says how to run it and what to expect."""

from experiments.presets import gsm8k, smollm2_arithmetic
from rlvr_jax.training import TrainConfig

PRESETS: dict[str, TrainConfig] = {
    "smollm2_arithmetic": smollm2_arithmetic.PRESET,
    "gsm8k": gsm8k.PRESET,
}
