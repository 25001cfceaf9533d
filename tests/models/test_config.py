"""Published configs of real models: rope frequencies against transformers, and parameter counts without any memory."""

import math

import jax
import numpy as np
import pytest
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from rlvr_jax.models import abstract_params, config_from_hugging_face
from rlvr_jax.models.rotary import inverse_frequencies

LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 8192}


def fields(model_type, vocabulary, hidden, mlp, layers, heads, kv_heads, eps, theta, tied, **more):
    return {
        "model_type": model_type,
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "rms_norm_eps": eps,
        "rope_theta": theta,
        "tie_word_embeddings": tied,
        **more,
    }


# The config.json of each model, as published, and its number of parameters.
PUBLISHED = {
    "Llama-3.1-8B": (
        fields("llama", 128256, 4096, 14336, 32, 32, 8, 1e-5, 5e5, False, rope_scaling={**LLAMA3, "factor": 8.0}),
        8_030_261_248,
    ),
    "Llama-3.2-1B": (
        fields(
            "llama",
            128256,
            2048,
            8192,
            16,
            32,
            8,
            1e-5,
            5e5,
            True,
            head_dim=64,
            rope_scaling={**LLAMA3, "factor": 32.0},
        ),
        1_235_814_400,
    ),
    "SmolLM2-135M": (fields("llama", 49152, 576, 1536, 30, 9, 3, 1e-5, 1e5, True), 134_515_008),
    "Qwen2.5-0.5B": (
        fields("qwen2", 151936, 896, 4864, 24, 14, 2, 1e-6, 1e6, True, use_sliding_window=False),
        494_032_768,
    ),
    "Qwen3-0.6B": (fields("qwen3", 151936, 1024, 3072, 28, 16, 8, 1e-6, 1e6, True, head_dim=128), 596_049_920),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_counts(name):
    published, count = PUBLISHED[name]
    params = abstract_params(config_from_hugging_face(published))
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params)) == count
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "Llama-3.2-1B", "SmolLM2-135M"])
def test_rope_frequencies_are_those_of_transformers(name):
    published, _ = PUBLISHED[name]
    config = transformers.LlamaConfig(**{k: v for k, v in published.items() if k != "model_type"})
    rotary = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
    assert (name != "SmolLM2-135M") == (config.rope_parameters["rope_type"] in ROPE_INIT_FUNCTIONS)
    ours = inverse_frequencies(config_from_hugging_face(published))
    # Radians per position; transformers rounds its powers to float32 before it scales them.
    np.testing.assert_allclose(ours, rotary.inv_freq.numpy(), rtol=0, atol=1e-7)
