"""Adapters out of a run and back in by command: PEFT, the merged export and our own policy give the same logits."""

import json

import jax
import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file

from experiments import export
from experiments.export import base_name
from rlvr_jax.models import Model, logits
from rlvr_jax.training import TrainConfig, prepare, restore_policy, train

TOKENS = np.random.default_rng(0).integers(0, 40, (1, 20)).astype(np.int32)


@pytest.fixture(scope="module")
def config(tiny_model, tmp_path_factory):
    return TrainConfig(
        model=str(tiny_model.folder),
        lora_rank=2,
        lora_alpha=6.0,
        lora_targets=("q_proj", "v_proj", "down_proj"),
        steps=2,
        learning_rate=0.1,
        warmup_steps=0,
        evaluate_every=0,
        evaluation_questions=8,
        max_new_tokens=4,
        evaluation_batch=8,
        output=tmp_path_factory.mktemp("runs") / "lora",
    )


@pytest.fixture(scope="module")
def policy(config):
    """The parameters that a run with LoRA ended with."""
    setup = prepare(config)
    train(config, setup)
    return restore_policy(config.output, setup.model, setup.mesh)[0]


def logits_of(model):
    with torch.no_grad():
        return model.eval()(torch.tensor(TOKENS, dtype=torch.long)).logits.numpy()


def assert_same(got, expected):
    """Within 2e-5 of the largest."""
    assert np.abs(got - expected).max() <= 2e-5 * np.abs(expected).max()


# PEFT asks transformers by a name that the latter has deprecated.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_a_run_its_adapters_and_its_merged_export_are_one_policy(call, config, policy, tiny_model, tmp_path):
    peft = pytest.importorskip("peft")
    alone, merged, back = (tmp_path / name for name in ("alone", "merged", "back"))
    code, out, err = call(export, config.output, alone, "--adapters-only", "--dtype", "float32", "--json")
    assert code == 0, err
    written = json.loads(out.splitlines()[-1])
    assert (written["step"], written["files"]) == (2, ["adapter_model.safetensors"])
    # Rank 2, two layers: inputs and outputs of q_proj (32, 32), v_proj (32, 16) and down_proj (48, 32).
    assert written["parameters"] == 2 * 2 * (32 + 32 + 32 + 16 + 48 + 32)
    assert written["bytes"] == (alone / "adapter_model.safetensors").stat().st_size
    assert len({file.stat().st_mode for file in alone.iterdir()}) == 1, "all are as readable as each other"

    expected = np.asarray(jax.jit(lambda params: logits(params, TOKENS, config=tiny_model.config))(policy))
    untrained = logits_of(transformers.AutoModelForCausalLM.from_pretrained(tiny_model.folder, dtype=torch.float32))
    assert np.abs(expected - untrained).max() > 0.01 * np.abs(expected).max(), "training moved nothing"
    # By the name in adapter_config.json, PEFT finds the model itself.
    assert_same(logits_of(peft.AutoPeftModelForCausalLM.from_pretrained(alone, dtype=torch.float32)), expected)
    assert call(export, config.output, merged, "--dtype", "float32")[0] == 0
    assert_same(logits_of(transformers.AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32)), expected)

    code, out, err = call(export, tiny_model.folder, back, "--adapters", alone, "--dtype", "float32", "--json")
    assert code == 0, err
    assert json.loads(out.splitlines()[-1])["step"] is None
    for file in sorted(merged.iterdir()):
        assert (back / file.name).read_bytes() == file.read_bytes(), file.name


def test_adapters_are_rounded_as_weights_are(call, config, policy, tmp_path):
    exact, rounded = tmp_path / "exact", tmp_path / "rounded"
    assert call(export, config.output, exact, "--adapters-only", "--dtype", "float32")[0] == 0
    code, out, _ = call(export, config.output, rounded, "--adapters-only")
    assert (code, "768 parameters in bfloat16" in out) == (0, True)
    exact, rounded = (load_file(folder / "adapter_model.safetensors") for folder in (exact, rounded))
    assert exact.keys() == rounded.keys()
    for name, tensor in rounded.items():
        assert tensor.dtype == "bfloat16"
        np.testing.assert_array_equal(tensor, exact[name].astype(tensor.dtype))


def test_what_has_no_adapters_is_refused(call, config, policy, tiny_model, tmp_path):
    out = tmp_path / "out"
    runs = {"whole": {}, "unfinished": {"lora_rank": 2, "lora_alpha": 6.0, "lora_targets": ["q_proj"]}}
    for name, fields in runs.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(json.dumps({"model": str(tiny_model.folder), **fields}))
    adapters = tmp_path / "adapters"
    assert call(export, config.output, adapters, "--adapters-only")[0] == 0
    described = json.loads((adapters / "adapter_config.json").read_text())
    (adapters / "adapter_config.json").write_text(json.dumps(described | {"r": 3}))
    for arguments, message in {
        (tiny_model.folder, "--adapters-only"): "not the folder of a run, accepted is a run with LoRA",
        (tmp_path / "whole", "--adapters-only"): "trained all weights, accepted is a run with LoRA",
        (tmp_path / "unfinished", "--adapters-only"): "unfinished' holds no checkpoints",
        (config.output, "--adapters-only", "--adapters", adapters): "accepted is none with adapters_only",
        (tiny_model.folder, "--adapters", tmp_path / "nowhere"): "adapter_config.json is missing",
        (tiny_model.folder, "--adapters", adapters): "model and rank ask for (3, 32)",
    }.items():
        code, _, err = call(export, arguments[0], out, *arguments[1:])
        assert (code, message in err, err.count("\n"), out.exists()) == (2, True, 1, False), err


def test_the_base_is_named_by_what_peft_finds_it_by(tiny_model, tmp_path, monkeypatch):
    def of(name, folder):
        return base_name(Model(name, folder, tiny_model.config, None, (0,)))

    assert of("owner/name", tmp_path / "snapshot") == "owner/name"
    assert of("embedded:smollm2-135m-instruct", tmp_path / "converted") == str(tmp_path / "converted")
    (tmp_path / "model.gguf").touch()
    assert of(str(tmp_path / "model.gguf"), tmp_path / "converted") == str(tmp_path / "converted")
    (tmp_path / "owner" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert of("owner/name", tmp_path / "owner" / "name") == str(tmp_path / "owner" / "name")
