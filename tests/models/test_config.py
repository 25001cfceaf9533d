"""Published configs of real models: rope frequencies against transformers, and parameter counts without any memory."""

import math

import jax
import numpy as np
import pytest
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from rlvr_jax.errors import UserError
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
    "Qwen3.5-9B": (
        {
            "model_type": "qwen3_5",
            "tie_word_embeddings": False,
            "vision_config": {"depth": 27, "hidden_size": 1152},
            "text_config": fields(
                "qwen3_5_text",
                248320,
                4096,
                12288,
                32,
                16,
                4,
                1e-6,
                None,
                False,
                head_dim=256,
                attn_output_gate=True,
                full_attention_interval=4,
                layer_types=(["linear_attention"] * 3 + ["full_attention"]) * 8,
                linear_conv_kernel_dim=4,
                linear_key_head_dim=128,
                linear_num_key_heads=16,
                linear_num_value_heads=32,
                linear_value_head_dim=128,
                mtp_num_hidden_layers=1,
                rope_parameters={
                    "rope_type": "default",
                    "rope_theta": 10_000_000,
                    "partial_rotary_factor": 0.25,
                    "mrope_interleaved": True,
                    "mrope_section": [11, 11, 10],
                },
            ),
        },
        # Of 9,653,104,368: without 456,010,480 of the eyes and 243,290,624 of the multi-token head.
        8_953_803_264,
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


def test_rope_frequencies_of_a_partly_rotated_head():
    text = PUBLISHED["Qwen3.5-9B"][0]["text_config"]
    config = transformers.Qwen3_5TextConfig(**{k: v for k, v in text.items() if k not in ("model_type", "rope_theta")})
    rotary = transformers.models.qwen3_5.modeling_qwen3_5.Qwen3_5TextRotaryEmbedding(config)
    ours = inverse_frequencies(config_from_hugging_face(text))
    assert ours.shape == (32,)
    np.testing.assert_allclose(ours, rotary.inv_freq.numpy(), rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ["full_attention"] * 32}, r"layer_types is \['full_attention', .* equal blocks"),
        ({"layer_types": ["linear_attention"] * 32}, r"layer_types is \['linear_attention', .* equal blocks"),
        ({"attn_output_gate": False}, "attn_output_gate is False, this port accepts True"),
        ({"head_dim": None}, "head_dim is missing"),
        ({"linear_num_value_heads": 24}, r"linear_num_value_heads is 24: .* linear_num_key_heads \(16\)"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', this port accepts 'silu'"),
        ({"num_hidden_layers": 30, "layer_types": None}, "num_hidden_layers is 30: accepted is a multiple of the 4"),
        ({"rope_parameters": {"partial_rotary_factor": 0.13}}, "partial_rotary_factor is 0.13: accepted is a share"),
    ],
)
def test_what_is_not_a_qwen3_5_is_refused(changes, message):
    whole, _ = PUBLISHED["Qwen3.5-9B"]
    with pytest.raises(UserError, match=message):
        config_from_hugging_face({**whole, "text_config": {**whole["text_config"], **changes}})


def test_layer_types_follow_from_the_interval():
    whole, _ = PUBLISHED["Qwen3.5-9B"]
    text = {k: v for k, v in whole["text_config"].items() if k != "layer_types"}
    assert config_from_hugging_face(text) == config_from_hugging_face(whole)
