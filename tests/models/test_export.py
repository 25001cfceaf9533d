"""Exported folders: what transformers computes from them, what `load_params` reads back, and what is refused."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from conftest import TINY, write_config

from experiments.check_port import compare_logits
from rlvr_jax.errors import UserError
from rlvr_jax.models import export_model, init_params, load_params, logits, open_model

QWEN3_5 = {
    "full_attention_interval": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 10,
    "linear_value_head_dim": 6,
    "linear_conv_kernel_dim": 4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
}
TOKENS = np.random.default_rng(0).integers(0, TINY.vocab_size, (1, 20)).astype(np.int32)


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3", "qwen3_5_text", "untied"])
def policy(request, tiny_model, tmp_path_factory):
    """(model, parameters): those of the model's family, none at its initial zero or one."""
    folder = tmp_path_factory.mktemp("policy") / "model"
    shutil.copytree(tiny_model.folder, folder)
    family = "llama" if request.param == "untied" else request.param
    hybrid = family == "qwen3_5_text"
    write_config(
        folder,
        dataclasses.replace(TINY, num_layers=4) if hybrid else TINY,
        **(QWEN3_5 if hybrid else {}),
        model_type=family,
        tie_word_embeddings=request.param != "untied",
        torch_dtype="float16",
        eos_token_id=0,
        max_position_embeddings=64,
    )
    model = open_model(str(folder))
    params = init_params(model.config, seed=3)
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(0), len(leaves))
    noisy = [x + 0.1 * jax.random.normal(key, x.shape) for x, key in zip(leaves, keys, strict=True)]
    return model, jax.tree.unflatten(structure, noisy)


def transformers_logits(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        return model(torch.tensor(TOKENS, dtype=torch.long)).logits[0].numpy()


def assert_equal_trees(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_transformers_computes_the_same_logits(policy, tmp_path):
    model, params = policy
    export_model(model, params, tmp_path / "out", dtype="float32")
    ours = np.asarray(logits(params, TOKENS, config=model.config))[0]
    figures = compare_logits(ours, transformers_logits(tmp_path / "out"))
    assert figures["relative_difference"] <= 2e-5
    assert figures["kl"] <= 1e-9


def test_float32_comes_back_bit_for_bit(policy, tmp_path, one_device):
    model, params = policy
    export_model(model, params, tmp_path / "first", dtype="float32")
    first = open_model(str(tmp_path / "first"))
    assert first.config == model.config
    loaded = load_params(first.folder, first.config, one_device)
    assert_equal_trees(loaded, params)
    export_model(first, loaded, tmp_path / "second", dtype="float32")
    for file in sorted((tmp_path / "first").iterdir()):
        assert (tmp_path / "second" / file.name).read_bytes() == file.read_bytes(), file.name


def test_bfloat16_rounds_once_and_then_stays(policy, tmp_path, one_device):
    model, params = policy
    export_model(model, params, tmp_path / "out")
    fields = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (fields["dtype"], "torch_dtype" in fields) == ("bfloat16", False)
    rounded = jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype(jnp.float32), params)
    loaded = load_params(tmp_path / "out", model.config, one_device)
    assert_equal_trees(loaded, rounded)
    export_model(model, loaded, tmp_path / "again")
    files = [tmp_path / name / "model.safetensors" for name in ("out", "again")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_shards(policy, tmp_path, one_device):
    model, params = policy
    files = export_model(model, params, tmp_path / "out", shard_bytes=10_000, dtype="float32")
    assert len(files) > 3
    # Headers apart, only the file of a single larger tensor is larger.
    assert sorted(file.stat().st_size > 12_000 for file in files)[:-2] == [False] * (len(files) - 2)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == {file.name for file in files}
    assert index["metadata"]["total_size"] == sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    assert_equal_trees(load_params(tmp_path / "out", model.config, one_device), params)
    export_model(model, params, tmp_path / "whole", dtype="float32")
    np.testing.assert_array_equal(transformers_logits(tmp_path / "out"), transformers_logits(tmp_path / "whole"))


def test_text_of_a_multimodal_model_goes_in_and_out(tiny_model, tmp_path, one_device):
    """A Qwen3.5 as transformers makes it, eyes and all: the same text logits in ours, and in the export."""
    text = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "head_dim": 8}
    text |= {"num_attention_heads": 4, "num_key_value_heads": 2, "eos_token_id": 7, **QWEN3_5}
    eyes = {"depth": 1, "hidden_size": 16, "intermediate_size": 8, "num_heads": 2, "out_hidden_size": 32}
    torch.manual_seed(0)
    config = transformers.Qwen3_5Config(text_config=text, vision_config=eyes, tie_word_embeddings=False)
    whole = transformers.Qwen3_5ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in whole.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
        expected = whole(torch.tensor(TOKENS, dtype=torch.long)).logits[0].numpy()
    shutil.copytree(tiny_model.folder, tmp_path / "whole")
    whole.save_pretrained(tmp_path / "whole")
    model = open_model(str(tmp_path / "whole"))
    assert model.eos_token_ids == (7,)
    params = load_params(model.folder, model.config, one_device)
    assert compare_logits(np.asarray(logits(params, TOKENS, config=model.config))[0], expected)["kl"] <= 1e-9
    export_model(model, params, tmp_path / "text", dtype="float32")
    exported = open_model(str(tmp_path / "text"))
    assert (exported.config, exported.eos_token_ids) == (model.config, (7,))
    fields = json.loads((tmp_path / "text" / "config.json").read_text())
    assert (fields["model_type"], fields["architectures"]) == ("qwen3_5_text", ["Qwen3_5ForCausalLM"])
    figures = compare_logits(transformers_logits(tmp_path / "text"), expected)
    assert figures["relative_difference"] <= 2e-5


def test_folder_has_all_that_serving_needs(tiny_model, params, tmp_path):
    export_model(tiny_model, params, tmp_path / "out")
    fields = json.loads((tmp_path / "out" / "config.json").read_text())
    assert fields["architectures"] == ["LlamaForCausalLM"]
    assert transformers.GenerationConfig.from_pretrained(tmp_path / "out").eos_token_id == 0
    assert len({file.stat().st_mode for file in (tmp_path / "out").iterdir()}) == 1, "all are as readable as each other"
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.encode("36-22=14") == tiny_model.tokenizer.encode("36-22=14")


def test_generation_config_is_copied(tiny_model, params, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(tiny_model.folder, source)
    (source / "generation_config.json").write_text('{"eos_token_id": [0, 7], "temperature": 0.6, "do_sample": true}')
    export_model(open_model(str(source)), params, tmp_path / "out")
    copied = (tmp_path / "out" / "generation_config.json").read_text()
    assert copied == (source / "generation_config.json").read_text()


def test_what_is_refused(tiny_model, params, tmp_path):
    taken = tmp_path / "taken"
    taken.mkdir()
    export_model(tiny_model, params, taken)
    with pytest.raises(UserError, match="taken': the folder is not empty; accepted is a new or an empty one"):
        export_model(tiny_model, params, taken)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file': a file is there"):
        export_model(tiny_model, params, tmp_path / "file")
    with pytest.raises(UserError, match="shard_bytes is 0: accepted is a positive number"):
        export_model(tiny_model, params, tmp_path / "out", shard_bytes=0)
    wrong = {**params, "norm": {"scale": np.ones(31, np.float32)}}
    with pytest.raises(UserError, match=r"norm\.scale has shape \(31,\), the config of .* asks for \(32,\)"):
        export_model(tiny_model, wrong, tmp_path / "out")
    with pytest.raises(UserError, match=r"head has shape \(96, 32\), the config of .* asks for None"):
        export_model(tiny_model, {**params, "head": params["embedding"]}, tmp_path / "out")


def test_a_failure_leaves_nothing(tiny_model, params, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(shutil, "copyfile", fail)
    with pytest.raises(OSError, match="disk full"):
        export_model(tiny_model, params, tmp_path / "out")
    assert not list(tmp_path.iterdir())
