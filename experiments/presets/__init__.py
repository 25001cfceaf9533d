"""Typed presets, one small file each; the header of a file says how to run it and what to expect."""

from experiments.presets import (
    gsm8k,
    llama3_1_8b_gsm8k,
    qwen2_5_0_5b_gsm8k,
    qwen3_1_7b_gsm8k,
    qwen3_5_9b_gsm8k,
    smollm2_arithmetic,
)
from rlvr_jax.training import TrainConfig

PRESETS: dict[str, TrainConfig] = {
    "smollm2_arithmetic": smollm2_arithmetic.PRESET,
    "gsm8k": gsm8k.PRESET,
    "qwen2.5_0.5b_gsm8k": qwen2_5_0_5b_gsm8k.PRESET,
    "qwen3_1.7b_gsm8k": qwen3_1_7b_gsm8k.PRESET,
    "qwen3.5_9b_gsm8k": qwen3_5_9b_gsm8k.PRESET,
    "llama3.1_8b_gsm8k": llama3_1_8b_gsm8k.PRESET,
}
