"""Reading checkpoints: memory, meshes, and nothing read before everything is known to fit."""

import dataclasses
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
from conftest import HYBRID, TINY, random_params, read
from jax.sharding import Mesh
from safetensors.numpy import save_file

from rlvr_jax.errors import UserError
from rlvr_jax.models import abstract_params, init_params, load_params, param_shardings
from rlvr_jax.models.weights import HUGGING_FACE_NAMES, checkpoint_layout, hugging_face_tensors
from rlvr_jax.sharding import MeshShape, make_mesh


@pytest.fixture
def tensors(params):
    return dict(hugging_face_tensors(TINY, lambda name, layer: read(params, name, layer)))


@pytest.mark.parametrize("shape", [{"fsdp": 4, "tensor": 2}, {"data": 2, "tensor": 2, "fsdp": 2}, {"data": 8}], ids=str)
def test_any_mesh_gets_the_same_weights(shape, tensors, params, tmp_path):
    save_file(tensors, tmp_path / "model.safetensors")
    mesh = make_mesh(MeshShape(**{"data": 1, **shape}))
    loaded = load_params(tmp_path, TINY, mesh)
    jax.tree.map(np.testing.assert_array_equal, loaded, params)
    assert jax.tree.map(lambda x: x.sharding, loaded) == param_shardings(TINY, mesh)


def test_long_tensors_are_read_in_chunks(tensors, params, tmp_path, one_device, monkeypatch):
    monkeypatch.setattr("rlvr_jax.models.weights._CHUNK_BYTES", 7 * 4 * TINY.hidden_size)
    save_file(tensors, tmp_path / "model.safetensors")
    jax.tree.map(np.testing.assert_array_equal, load_params(tmp_path, TINY, one_device), params)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_is_widened_exactly(dtype, tensors, params, tmp_path, one_device):
    halves = {name: value.astype(dtype) for name, value in tensors.items()}
    save_file(halves, tmp_path / "model.safetensors")
    loaded = load_params(tmp_path, TINY, one_device)
    expected = jax.tree.map(lambda x: np.asarray(x).astype(dtype).astype(np.float32), params)
    jax.tree.map(np.testing.assert_array_equal, loaded, expected)


def test_layout_has_every_parameter_once():
    for changes in ({}, {"tie_word_embeddings": False, "attention_bias": True}, HYBRID):
        config = dataclasses.replace(TINY, **changes)
        layout = checkpoint_layout(config)
        sizes = [int(np.prod(place.shape)) for place in layout.values()]
        assert sum(sizes) == sum(leaf.size for leaf in jax.tree.leaves(abstract_params(config)))
        rows = {(place.parameter, place.layer) for place in layout.values()}
        assert len(rows) == len(layout)
        if not config.delta:
            assert all(HUGGING_FACE_NAMES[place.parameter].format(place.layer) == n for n, place in layout.items())
    layers = {name: layout[name].layer for name in layout if "input_layernorm" in name}
    assert list(layers.values()) == [0, 1, 0, 1, 2, 3]
    assert [int(name.split(".")[2]) for name in layers] == [2, 5, 0, 1, 3, 4]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda t: t.pop("model.layers.1.mlp.up_proj.weight"),
            r"layers\.1\.mlp\.up_proj\.weight of shape \(48, 32\) is",
        ),
        (
            lambda t: t.update({"model.layers.1.mlp.up_proj.weight": t["model.layers.1.mlp.up_proj.weight"].T.copy()}),
            r"model\.safetensors: tensor model\.layers\.1\.mlp\.up_proj\.weight has shape \(32, 48\), .* \(48, 32\)",
        ),
        (
            lambda t: t.update({"model.norm.weight": t["model.norm.weight"].astype(np.int8)}),
            r"tensor model\.norm\.weight has dtype I8, accepted are F32, BF16, F16",
        ),
        (
            lambda t: t.update({"a": np.ones(3, np.float32), "b": np.ones(3, np.float32)}),
            r"unexpected tensor a of shape \(3,\) \(and 1 more\)",
        ),
    ],
)
def test_all_is_checked_before_any_weight_is_read(change, message, tensors, tmp_path, one_device, monkeypatch):
    def refuse(*_):
        pytest.fail("read a weight of a checkpoint that does not fit")

    monkeypatch.setattr("rlvr_jax.models.weights._read", refuse)
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=message):
        load_params(tmp_path, TINY, one_device)


def test_broken_files_are_named(tensors, tmp_path, one_device):
    names = sorted(tensors)
    save_file({name: tensors[name] for name in names[:5]}, tmp_path / "a.safetensors")
    save_file({name: tensors[name] for name in names[4:]}, tmp_path / "b.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}))
    with pytest.raises(UserError, match=r"is both in a\.safetensors and b\.safetensors"):
        load_params(tmp_path, TINY, one_device)
    (tmp_path / "b.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match=r"b\.safetensors is not a whole safetensors file"):
        load_params(tmp_path, TINY, one_device)
    for text in ("{}", "[]", "not JSON"):
        index.write_text(text)
        with pytest.raises(UserError, match=r"index\.json is not an index of safetensors files"):
            load_params(tmp_path, TINY, one_device)


def test_a_tied_head_may_be_repeated(tensors, params, tmp_path, one_device):
    repeated = {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].copy()}
    save_file(repeated, tmp_path / "model.safetensors")
    jax.tree.map(np.testing.assert_array_equal, load_params(tmp_path, TINY, one_device), params)


@pytest.mark.parametrize("shape", [{"data": 1, "fsdp": 2, "tensor": 2}, {"data": 1}], ids=str)
def test_text_is_picked_out_of_a_multimodal_checkpoint(shape, tmp_path):
    """As Qwen3.5 is published: other names, a part that sees, and one that guesses further tokens."""
    config = dataclasses.replace(TINY, **HYBRID)
    params = random_params(config)
    tensors = hugging_face_tensors(config, lambda name, layer: read(params, name, layer))
    renamed = {name.replace("model.", "model.language_model.", 1): value for name, value in tensors}
    others = {"model.visual.blocks.0.attn.qkv.weight": np.ones((3, 2)), "mtp.layers.0.mlp.up_proj.weight": np.ones(2)}
    save_file(renamed | others, tmp_path / "model.safetensors")
    mesh = make_mesh(MeshShape(**shape), jax.devices()[: math.prod(shape.values())])
    jax.tree.map(np.testing.assert_array_equal, load_params(tmp_path, config, mesh), params)
    renamed.pop("model.language_model.layers.3.linear_attn.A_log")
    save_file(renamed | others, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"tensor model\.layers\.3\.linear_attn\.A_log of shape \(4,\) is missing"):
        load_params(tmp_path, config, mesh)
    with pytest.raises(UserError, match=r"mesh axis tensor is 4: accepted is a divisor of .*key"):
        param_shardings(config, make_mesh(MeshShape(data=1, fsdp=2, tensor=4)))


def test_loaded_parameters_may_be_donated(tiny_model, one_device: Mesh):
    loaded = load_params(tiny_model.folder, TINY, one_device)
    step = jax.jit(lambda params: jax.tree.map(lambda x: x + 1, params), donate_argnums=0)
    expected = jax.tree.map(lambda x: x + 1, init_params(TINY, seed=1))
    jax.tree.map(np.testing.assert_array_equal, step(loaded), expected)


_MEASURE = """
import gc, sys
from pathlib import Path
import jax, numpy as np
from rlvr_jax.models import ModelConfig, abstract_params, load_params
from rlvr_jax.sharding import MeshShape, make_mesh

def memory(name):
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024

config = eval(sys.argv[1])
mesh = make_mesh(MeshShape(), jax.devices()[:1])
abstract_params(config)
jax.block_until_ready(jax.device_put(np.ones(3), jax.devices()[0]))
before = memory("VmRSS")
for folder in sys.argv[2:]:
    params = load_params(Path(folder), config, mesh)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    print((memory("VmHWM") - before) / size)
    del params
    gc.collect()
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize("layers", [10, pytest.param(60, marks=pytest.mark.slow)])
def test_host_memory_while_loading(layers, tmp_path):
    """Peak above the start, over the size of the float32 arrays that stay: 1 would be nothing beside them."""
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "num_heads": 8, "head_dim": 64, "num_layers": layers}
    config = dataclasses.replace(TINY, vocab_size=16384, num_kv_heads=4, **sizes)
    folders = []
    for dtype in (ml_dtypes.bfloat16, np.float32):
        folders.append(tmp_path / np.dtype(dtype).name)
        folders[-1].mkdir()
        shapes = {name: place.shape for name, place in checkpoint_layout(config).items()}
        save_file({name: np.ones(shape, dtype) for name, shape in shapes.items()}, folders[-1] / "model.safetensors")
    # One host device, and none of the options that this process was started with.
    environment = {**os.environ, "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", _MEASURE, repr(config), *map(str, folders)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=root, check=False)
    assert done.returncode == 0, done.stderr
    ratios = [float(line) for line in done.stdout.split()]
    assert max(ratios) < 1.3, ratios
    assert min(ratios) > 0.9, "measured something else"
