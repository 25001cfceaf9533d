"""Adapters: the joined weights, their gradients by hand, and PEFT's own adapters in both directions."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import HYBRID, PREFIX, TINY, random_params
from safetensors.numpy import load_file, save_file
from test_decoder import logits, reference_model

from rlvr_jax.errors import UserError
from rlvr_jax.models import (
    LoraSettings,
    adapted,
    init_adapters,
    load_adapters,
    param_shardings,
    save_adapters,
    token_log_probabilities,
)
from rlvr_jax.models.lora import TARGETS, abstract_adapters, adapter_shardings
from rlvr_jax.sharding import MeshShape, make_mesh

SETTINGS = LoraSettings(rank=3, alpha=7.0)


@pytest.fixture(scope="module")
def adapters():
    """Both factors random, so that the product is about as large as the weights."""
    generator = np.random.default_rng(4)
    return jax.tree.map(lambda x: jnp.float32(0.2 * generator.normal(size=x.shape)), abstract_adapters(TINY, SETTINGS))


def tokens_of(config=TINY):
    return np.random.default_rng(0).integers(0, config.vocab_size, (3, 20)).astype(np.int32)


def assert_close(got, expected):
    """Within 2e-5 in relative norm."""
    assert np.linalg.norm(got - expected) < 2e-5 * np.linalg.norm(expected)


def test_new_adapters_are_small_and_change_nothing(params):
    new = init_adapters(TINY, LoraSettings(rank=5), seed=0)
    layer = new["layers"]["mlp"]["down"]
    assert layer["a"].shape == (2, 5, 48)
    assert layer["b"].shape == (2, 32, 5)
    np.testing.assert_allclose(jnp.abs(layer["a"]).max(), 48**-0.5, rtol=0.05)
    np.testing.assert_allclose(layer["a"].std(), (3 * 48) ** -0.5, rtol=0.1)
    same = adapted(params, new, LoraSettings(rank=5))
    jax.tree.map(np.testing.assert_array_equal, same, params)
    fewer = init_adapters(TINY, LoraSettings(rank=5, targets=("down_proj",)), seed=0)
    assert list(fewer["layers"]) == ["mlp"]
    np.testing.assert_array_equal(fewer["layers"]["mlp"]["down"]["a"], layer["a"])
    other = init_adapters(TINY, LoraSettings(rank=5), seed=1)["layers"]["mlp"]["down"]["a"]
    assert not np.array_equal(other, layer["a"])


def test_joined_weights_by_hand(params, adapters):
    joined = adapted(params, adapters, SETTINGS)
    weight, factors = params["layers"]["attention"]["key"], adapters["layers"]["attention"]["key"]
    for layer in range(TINY.num_layers):
        expected = weight[layer] + 7 / 3 * np.asarray(factors["b"][layer]) @ np.asarray(factors["a"][layer])
        np.testing.assert_allclose(joined["layers"]["attention"]["key"][layer], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(joined["embedding"], params["embedding"])
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    assert {str(x.dtype) for x in jax.tree.leaves(adapted(half, adapters, SETTINGS))} == {"bfloat16"}
    as_computed = adapted(params, adapters, SETTINGS, "bfloat16")["layers"]["mlp"]["up"]
    np.testing.assert_array_equal(as_computed, joined["layers"]["mlp"]["up"].astype(jnp.bfloat16))


def test_gradients_by_hand(params, adapters, prompts):
    completions = np.random.default_rng(1).integers(1, TINY.vocab_size, (8, 2, 5)).astype(np.int32)

    def mean(params):
        return token_log_probabilities(params, PREFIX, prompts, completions, jnp.float32(1.0), config=TINY).mean()

    of_adapters = jax.jit(jax.grad(lambda adapters: mean(adapted(params, adapters, SETTINGS))))(adapters)
    of_weights = jax.jit(jax.grad(mean))(adapted(params, adapters, SETTINGS))
    for block, name in (("attention", "query"), ("attention", "output"), ("mlp", "up"), ("mlp", "down")):
        gradient = of_weights["layers"][block][name]
        factors, got = adapters["layers"][block][name], of_adapters["layers"][block][name]
        assert np.linalg.norm(gradient) > 1e-4
        assert_close(got["b"], 7 / 3 * np.einsum("loi,lri->lor", gradient, factors["a"]))
        assert_close(got["a"], 7 / 3 * np.einsum("lor,loi->lri", factors["b"], gradient))


def test_adapters_lie_as_their_weights_do(params, adapters):
    mesh = make_mesh(MeshShape(data=2, fsdp=2, tensor=2))
    shardings = adapter_shardings(TINY, SETTINGS, mesh)
    placed = jax.device_put(adapters, shardings)
    factors = placed["layers"]["attention"]["output"]
    assert factors["a"].addressable_shards[0].data.shape == (2, 3, 16)
    assert factors["b"].addressable_shards[0].data.shape == (2, 16, 3)
    base = jax.device_put(params, param_shardings(TINY, mesh))
    got = adapted(base, placed, SETTINGS)
    jax.tree.map(lambda x, y: x.sharding.is_equivalent_to(y.sharding, x.ndim) or pytest.fail(str(x)), got, base)
    # What has no adapter is not copied.
    pointers = [tree["embedding"].addressable_shards[0].data.unsafe_buffer_pointer() for tree in (got, base)]
    assert pointers[0] == pointers[1]
    expected = adapted(params, adapters, SETTINGS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), got, expected)


# PEFT asks transformers by a name that the latter has deprecated.
peft_warns = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")


@peft_warns
@pytest.mark.parametrize("targets", [LoraSettings().targets, ("q_proj", "v_proj")], ids=len)
def test_adapters_of_peft_give_the_same_logits(params, targets, tmp_path, one_device):
    peft = pytest.importorskip("peft")
    import torch

    torch.manual_seed(0)
    described = peft.LoraConfig(r=4, lora_alpha=6, target_modules=list(targets), init_lora_weights=False)
    model = peft.get_peft_model(reference_model(TINY, params), described).eval()
    with torch.no_grad():
        expected = model(torch.tensor(tokens_of(), dtype=torch.long)).logits.numpy()
    model.save_pretrained(tmp_path)
    adapters, settings = load_adapters(tmp_path, TINY, one_device)
    assert settings == LoraSettings(4, 6.0, targets)
    got = logits(TINY, adapted(params, adapters, settings), jnp.array(tokens_of()))
    assert_close(got, expected)
    assert np.linalg.norm(got - logits(TINY, params, jnp.array(tokens_of()))) > 0.05 * np.linalg.norm(got)


@peft_warns
@pytest.mark.parametrize("targets", [LoraSettings().targets, ("o_proj", "gate_proj")], ids=len)
def test_our_adapters_give_peft_the_same_logits(params, adapters, targets, tmp_path):
    peft = pytest.importorskip("peft")
    import torch

    settings = dataclasses.replace(SETTINGS, targets=targets)
    ours = jax.tree_util.tree_map_with_path(lambda path, _: at(adapters, path), abstract_adapters(TINY, settings))
    save_adapters(tmp_path, ours, TINY, settings, "tiny")
    model = peft.PeftModel.from_pretrained(reference_model(TINY, params), tmp_path).eval()
    with torch.no_grad():
        expected = model(torch.tensor(tokens_of(), dtype=torch.long)).logits.numpy()
    assert_close(logits(TINY, adapted(params, ours, settings), jnp.array(tokens_of())), expected)


@peft_warns
def test_adapters_of_gated_delta_layers_in_both_directions(tmp_path, one_device):
    """All twelve targets of a Qwen3.5, with tensors named as in its multimodal checkpoint on the way in."""
    peft = pytest.importorskip("peft")
    import torch

    config = dataclasses.replace(TINY, **HYBRID)
    params, settings = random_params(config), dataclasses.replace(SETTINGS, targets=TARGETS)
    new = init_adapters(config, settings, seed=0)
    assert not np.array_equal(new["layers"]["mlp"]["up"]["a"], new["delta_layers"]["mlp"]["up"]["a"][:2])
    adapters = jax.tree.map(lambda x: 0.1 * jax.random.normal(jax.random.key(x.size), x.shape), new)
    save_adapters(tmp_path, adapters, config, settings, "tiny")
    model = peft.PeftModel.from_pretrained(reference_model(config, params, "qwen3_5"), tmp_path).eval()
    with torch.no_grad():
        expected = model(torch.tensor(tokens_of(), dtype=torch.long)).logits.numpy()
    assert_close(logits(config, adapted(params, adapters, settings), jnp.array(tokens_of())), expected)
    file = tmp_path / "adapter_model.safetensors"
    renamed = {name.replace(".layers.", ".language_model.layers."): tensor for name, tensor in load_file(file).items()}
    save_file(renamed, file)
    loaded, _ = load_adapters(tmp_path, config, one_device)
    jax.tree.map(np.testing.assert_array_equal, loaded, adapters)
    with pytest.raises(UserError, match="targets has 'in_proj_qkv', which this model does not have"):
        init_adapters(TINY, settings, seed=0)


def at(tree, path):
    for key in path:
        tree = tree[key.key]
    return tree


def test_round_trip_in_either_precision(adapters, tmp_path, one_device):
    save_adapters(tmp_path, adapters, TINY, SETTINGS, "tiny")
    loaded, settings = load_adapters(tmp_path, TINY, one_device)
    assert settings == SETTINGS
    jax.tree.map(np.testing.assert_array_equal, loaded, adapters)
    file = tmp_path / "adapter_model.safetensors"
    save_file({name: tensor.astype(jnp.bfloat16) for name, tensor in load_file(file).items()}, file)
    loaded, _ = load_adapters(tmp_path, TINY, one_device)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0.01), loaded, adapters)


NAME = "base_model.model.model.layers.1.mlp.down_proj.lora_A.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(NAME), r"layers\.1\.mlp\.down_proj\.lora_A\.weight of shape \(3, 48\) is missing"),
        (
            lambda t: t.update({NAME: np.ones((3, 47), np.float32)}),
            r"shape \(3, 47\), model and rank ask for \(3, 48\)",
        ),
        (lambda t: t.update(surprise=np.ones(1, np.float32)), r"unexpected tensor surprise \(and 0 more\)"),
    ],
)
def test_wrong_tensors_are_named(adapters, tmp_path, one_device, change, message):
    save_adapters(tmp_path, adapters, TINY, SETTINGS, "tiny")
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    with pytest.raises(UserError, match=message):
        load_adapters(tmp_path, TINY, one_device)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3', accepted is 'LORA'"),
        ({"use_rslora": True}, "use_rslora is True"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa'"),
        ({"alpha_pattern": {"q_proj": 3}}, "alpha_pattern is {'q_proj': 3}"),
        ({"target_modules": ["q_proj", "lm_head"]}, r"targets are \('q_proj', 'lm_head'\), accepted are"),
        ({"target_modules": ".*"}, r"target_modules is '\.\*', accepted is a list"),
        ({"r": None}, "r is None, accepted is a whole number"),
        ({"r": 0}, "rank is 0, accepted is 1 or more"),
    ],
)
def test_what_is_not_supported_is_named(adapters, tmp_path, one_device, change, message):
    save_adapters(tmp_path, adapters, TINY, SETTINGS, "tiny")
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(UserError, match=message):
        load_adapters(tmp_path, TINY, one_device)


def test_broken_folders_are_named(adapters, tmp_path, one_device):
    with pytest.raises(UserError, match=r"adapter_config\.json is missing"):
        load_adapters(tmp_path, TINY, one_device)
    save_adapters(tmp_path, adapters, TINY, SETTINGS, "tiny")
    file = tmp_path / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(UserError, match="not a whole safetensors file"):
        load_adapters(tmp_path, TINY, one_device)
    (tmp_path / "adapter_config.json").write_text("{")
    with pytest.raises(UserError, match="is not JSON"):
        load_adapters(tmp_path, TINY, one_device)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rank": 0}, "rank is 0, accepted is 1 or more"),
        ({"alpha": float("nan")}, "alpha is nan, accepted is a number above 0"),
        ({"targets": ()}, r"targets are \(\), accepted are one or more different ones"),
        ({"targets": ("q_proj", "q_proj")}, "different ones"),
        ({"targets": ("query",)}, r"targets are \('query',\)"),
    ],
)
def test_settings_are_checked_when_built(change, message):
    with pytest.raises(UserError, match=message):
        LoraSettings(**change)
