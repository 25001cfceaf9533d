"""Configs, weights and models by name: what is accepted, and the one clear line for what is not."""

import json
import shutil

import jax
import numpy as np
import pytest
from conftest import TINY, write_config
from safetensors.numpy import load_file, save_file

from rlvr_jax.errors import UserError
from rlvr_jax.models import config_from_hugging_face, init_params, load_params, open_model, param_shardings
from rlvr_jax.sharding import MeshShape, make_mesh

FIELDS = {
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}


def test_config_is_read():
    assert config_from_hugging_face(FIELDS) == TINY


def test_both_spellings_of_rope_scaling():
    scaling = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    old = config_from_hugging_face({**FIELDS, "rope_theta": 5e5, "rope_scaling": scaling})
    new = {key: value for key, value in FIELDS.items() if key != "rope_theta"}
    assert config_from_hugging_face({**new, "rope_parameters": {**scaling, "rope_theta": 5e5}}) == old
    assert (old.rope_scaling.factor, old.rope_theta) == (32.0, 5e5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gemma"}, "model_type is 'gemma', this port accepts 'llama' or 'qwen2' or 'qwen3'"),
        ({"mlp_bias": True}, "mlp_bias is True"),
        ({"model_type": "qwen2", "use_sliding_window": True}, "use_sliding_window is True"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types has 'sliding_attention'"),
        ({"rope_parameters": {"partial_rotary_factor": 0.25}}, r"partial_rotary_factor is 0\.25"),
        ({"model_type": "qwen3"}, "head_dim is missing"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope_type is 'yarn'"),
        ({"rope_scaling": {"type": "llama3", "factor": 8.0}}, "low_freq_factor is missing"),
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"num_key_value_heads": 3}, "num_attention_heads is 4"),
    ],
)
def test_unsupported_config_names_the_field(change, message):
    with pytest.raises(UserError, match=message):
        config_from_hugging_face({**FIELDS, **change})


@pytest.fixture
def copy(tiny_model, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(tiny_model.folder, folder)
    return folder


def change_tensors(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_round_trip(tiny_model, one_device):
    loaded = load_params(tiny_model.folder, TINY, one_device)
    jax.tree.map(np.testing.assert_array_equal, loaded, init_params(TINY, seed=1))


def test_bfloat16_and_sharded_files(copy, one_device):
    import jax.numpy as jnp
    from safetensors.flax import save_file as save_flax

    tensors = {name: jnp.array(value, jnp.bfloat16) for name, value in load_file(copy / "model.safetensors").items()}
    names = sorted(tensors)
    (copy / "model.safetensors").unlink()
    files = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, members in files.items():
        save_flax({name: tensors[name] for name in members}, copy / file)
    index = {"weight_map": {name: file for file, members in files.items() for name in members}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    loaded = load_params(copy, TINY, one_device)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0.01), loaded, init_params(TINY, seed=1))
    (copy / "b.safetensors").unlink()
    with pytest.raises(UserError, match=r"b\.safetensors is missing"):
        load_params(copy, TINY, one_device)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("model.norm.weight"), r"model\.norm\.weight of shape \(32,\) is missing"),
        (
            lambda t: t.update({"model.norm.weight": np.ones(31, np.float32)}),
            r"shape \(31,\), the config asks for \(32,\)",
        ),
        (lambda t: t.update({"model.surprise": np.ones(1, np.float32)}), "unexpected tensor model.surprise"),
    ],
)
def test_wrong_tensors_are_named(copy, one_device, change, message):
    change_tensors(copy, change)
    with pytest.raises(UserError, match=message):
        load_params(copy, TINY, one_device)


def test_truncated_file_is_named(copy, one_device):
    file = copy / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(UserError, match="not a whole safetensors file"):
        load_params(copy, TINY, one_device)


def test_end_of_sequence_may_be_a_list(copy):
    (copy / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 7]}))
    assert open_model(str(copy)).eos_token_ids == (0, 7)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("./nowhere", "no such file or folder; accepted are a hub id"),
        ("nowhere.gguf", "no such file"),
        ("embedded:gpt-5", "embedded model is 'gpt-5', accepted are smollm2-135m-instruct"),
    ],
)
def test_a_model_that_is_not_there(name, message):
    with pytest.raises(UserError, match=message):
        open_model(name)


def test_a_file_that_is_not_gguf(tmp_path):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"not a model")
    with pytest.raises(UserError, match="not a whole GGUF file"):
        open_model(str(file))


def test_folder_without_config(tmp_path):
    with pytest.raises(UserError, match=r"no config\.json"):
        open_model(str(tmp_path))


def test_unsupported_folder_is_refused(copy):
    write_config(copy, TINY, mlp_bias=True)
    with pytest.raises(UserError, match="mlp_bias is True"):
        open_model(str(copy))


def test_mesh_that_does_not_divide_the_heads():
    with pytest.raises(UserError, match=r"mesh axis tensor is 4: accepted is a divisor of num_key_value_heads \(2\)"):
        param_shardings(TINY, make_mesh(MeshShape(tensor=4)))
