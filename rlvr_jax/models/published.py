"""What well-known models are, without a hub: the fields of their published `config.json` that decide shapes.

For planning (`experiments.aot`) on machines that reach no hub. A model that is loaded is read from its own files.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

_LLAMA31_8B = {
    "model_type": "llama",
    "vocab_size": 128_256,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "rope_theta": 500_000.0,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
_QWEN25_05B = {
    "model_type": "qwen2",
    "vocab_size": 151_936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "rope_theta": 1_000_000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
_QWEN3_17B = {
    "model_type": "qwen3",
    "vocab_size": 151_936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rope_theta": 1_000_000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
# Sizes as the defaults of transformers' Qwen3_5TextConfig, which its documentation calls the 9B's.
_QWEN35_9B = {
    "model_type": "qwen3_5_text",
    "vocab_size": 248_320,
    "hidden_size": 4096,
    "intermediate_size": 12_288,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000_000.0, "partial_rotary_factor": 0.25},
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
}

PUBLISHED: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "meta-llama/Llama-3.1-8B": _LLAMA31_8B,
        "meta-llama/Llama-3.1-8B-Instruct": _LLAMA31_8B,
        "Qwen/Qwen2.5-0.5B": _QWEN25_05B,
        "Qwen/Qwen2.5-0.5B-Instruct": _QWEN25_05B,
        "Qwen/Qwen3-1.7B": _QWEN3_17B,
        "Qwen/Qwen3.5-9B": _QWEN35_9B,
        "Qwen/Qwen3.5-9B-Base": _QWEN35_9B,
    }
)
"""By hub id. Source: each model's `config.json` on its hub page."""
