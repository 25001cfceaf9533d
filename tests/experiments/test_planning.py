"""The plan of a dry run: figures by hand, and no weights, hub or accelerator in reach."""

import dataclasses
import json
import os

import pytest

from experiments import train as train_command
from experiments.compiling.arrays import Lengths
from experiments.planning import plan
from rlvr_jax.errors import UserError
from rlvr_jax.models import open_config
from rlvr_jax.sharding import MeshShape
from rlvr_jax.training import TrainConfig

SIZES = {
    "model_type": "llama", "vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
}  # fmt: skip
LENGTHS = Lengths(prefix=5, prompt=7, completion=11)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sizes")
    (folder / "config.json").write_text(json.dumps(SIZES))
    return open_config(str(folder))


def parameters():
    """Of SIZES, counted by hand: those split over fsdp and tensor, and those of norms, split over fsdp alone."""
    attention = 16 * 16 + 2 * 16 * 8 + 16 * 16
    return 2 * 40 * 16 + 3 * (attention + 3 * 16 * 24), (2 * 3 + 1) * 16


def test_memory_of_a_full_fine_tune_is_that_counted_by_hand(model):
    config = TrainConfig(mesh=MeshShape(1, 4, 2), prompts_per_step=8, samples_per_prompt=3, evaluation_batch=8)
    figures = plan(config, model, LENGTHS)
    matrices, norms = parameters()
    weights = 4 * (matrices / 8 + norms / 4)
    update, sampling = figures["memory"]["update"], figures["memory"]["sampling"]
    assert update["trained weights"] == update["gradient"] == weights
    # Two moments, and a few counters beside them.
    assert 2 * weights <= update["optimizer"] <= 2 * weights + 64
    assert update["together"] == 2 * weights + update["optimizer"]
    # Keys and values: 2 arrays, 3 layers, one of 2 key heads of size 4, 4 bytes; a device has 2 of the 8 prompts.
    positions = 5 + 2 * 7 + 2 * 3 * 11
    assert sampling["keys and values"] == pytest.approx(2 * 3 * 4 * 4 * positions)
    assert "weights to sample from" not in sampling


def test_adapters_train_little_and_sample_from_a_copy(model):
    config = TrainConfig(mesh=MeshShape(1, 4, 1), lora_rank=2, compute_dtype="bfloat16", evaluation_batch=8)
    memory = plan(config, model, LENGTHS)["memory"]
    matrices, norms = parameters()
    assert memory["update"]["first policy's weights"] == 4 * (matrices + norms) / 4
    # Rank 2, the inputs and outputs of the seven targets in three layers; of each pair at most one is split.
    adapters = 4 * 3 * 2 * (32 + 2 * 24 + 32 + 3 * 40)
    assert adapters / 4 < memory["update"]["gradient"] < adapters
    assert memory["update"]["gradient"] == memory["update"]["trained weights"]
    assert memory["sampling"]["weights to sample from"] < memory["sampling"]["first policy's weights"]


def test_a_checkpoint_is_the_whole_state_of_all_devices(model):
    config = TrainConfig(steps=100, checkpoint_every=10, keep_checkpoints=2, mesh=MeshShape(1, 8, 1))
    files = plan(config, model, LENGTHS)["files"]
    # The newest two and the best.
    assert files["checkpoints/"] == 3
    assert files["checkpoint_bytes"] == pytest.approx(3 * 3 * 4 * sum(parameters()), abs=3 * 64)
    assert plan(dataclasses.replace(config, steps=5), model, LENGTHS)["files"]["checkpoints/"] == 1


def test_a_topology_says_how_many_devices_and_their_memory(model):
    config = TrainConfig(mesh=MeshShape(-1, 2, 1), prompts_per_step=8, evaluation_batch=8)
    figures = plan(config, model, LENGTHS, "v5e:2x4")
    assert figures["mesh"] == {"data": 4, "fsdp": 2, "tensor": 1}
    assert figures["hbm_bytes"] == 16e9
    with pytest.raises(UserError, match="the product must be the number of devices, which is 9"):
        plan(config, model, LENGTHS, "v5e:3x3")
    with pytest.raises(UserError, match="topology is 'v4:2x2'"):
        plan(config, model, LENGTHS, "v4:2x2")


def test_the_papers_run_is_planned_without_weights_hub_or_accelerator(call, monkeypatch, tmp_path):
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("the network was asked"))
    monkeypatch.chdir(tmp_path)
    code, out, _ = call(train_command, "qwen3.5_9b_gsm8k", "--dry-run", "--topology", "v5e:2x4")
    assert code == 0
    for text in ("819,200", "v5e:2x4", "first policy's weights", "of 16 GB HBM", "completions/", "steps"):
        assert text in out
    assert os.listdir(tmp_path) == []


def test_a_topology_is_for_planning(call):
    code, _, err = call(train_command, "smollm2_arithmetic", "--topology", "v5e:1x1")
    assert code == 2
    assert err.splitlines()[-1].startswith("error: topology is 'v5e:1x1': accepted with --dry-run")
