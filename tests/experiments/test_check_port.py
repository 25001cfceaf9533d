"""The port check and the export as commands: exit status, figures, and one line for each mistake."""

import importlib.util
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import check_port, export
from rlvr_jax.models import load_params, open_model
from rlvr_jax.training import Checkpoints, TrainState


def test_the_port_passes(call, tiny_model):
    code, out, err = call(check_port, tiny_model.folder, "--json")
    assert code == 0, err
    figures = json.loads(out.splitlines()[-1])
    assert figures["passes"]
    assert len(figures["prompts"]) == len(check_port.PROMPTS)
    for row in figures["prompts"]:
        assert row["kl"] <= 1e-9
        assert 0 < row["relative_difference"] <= 2e-5
        assert row["argmax_agreement"] == 1


@pytest.fixture
def prompts(tmp_path):
    (tmp_path / "prompts.txt").write_text("1 + 2 =\n\n[red]3[/red] * 4 =\n")
    return "--prompts", tmp_path / "prompts.txt"


def test_prompts_are_shown_as_they_are(call, tiny_model, prompts):
    code, out, _ = call(check_port, tiny_model.folder, *prompts)
    assert code == 0
    assert "passed: all 2 prompts pass" in out
    assert "[red]3[/red] * 4 =" in out
    assert "\u2026" not in out, "cut off"


def test_another_model_fails(call, tiny_model, prompts, monkeypatch):
    def perturbed(*arguments):
        return jax.tree.map(lambda x: 1.01 * x, load_params(*arguments))

    monkeypatch.setattr(check_port, "load_params", perturbed)
    code, out, _ = call(check_port, tiny_model.folder, *prompts)
    assert code == 1
    assert "FAILED: 2 of 2 prompts are beyond a bound" in out
    code, out, _ = call(check_port, tiny_model.folder, *prompts, "--kl-bound", 1, "--logit-bound", 1, "--json")
    assert code == 0
    assert json.loads(out.splitlines()[-1])["passes"]


def test_bfloat16_is_farther_off(call, tiny_model, prompts):
    code, out, err = call(check_port, tiny_model.folder, *prompts, "--dtype", "bfloat16", "--json")
    assert code == 1
    assert "are beyond a bound" in err
    rows = json.loads(out.splitlines()[-1])["prompts"]
    assert all(1e-4 < row["relative_difference"] < 0.1 for row in rows)


def test_figures_by_hand():
    theirs = np.log(np.array([[0.5, 0.25, 0.25], [0.8, 0.1, 0.1]], np.float32))
    ours = np.log(np.array([[0.25, 0.5, 0.25], [0.8, 0.1, 0.1]], np.float32)) + 3
    figures = check_port.compare_logits(ours, theirs, top=1)
    # KL of the first token: 0.5 ln 2 - 0.25 ln 2; a constant added to logits is no divergence.
    np.testing.assert_allclose(figures["kl"], 0.25 * np.log(2) / 2, rtol=1e-6)
    np.testing.assert_allclose(figures["largest_difference"], 3 + np.log(2), rtol=1e-6)
    np.testing.assert_allclose(figures["relative_difference"], (3 + np.log(2)) / np.log(10), rtol=1e-6)
    assert (figures["top_10_overlap"], figures["argmax_agreement"]) == (0.5, 0.5)


def test_mistakes_are_one_line(call, tiny_model, tmp_path, monkeypatch):
    (tmp_path / "empty.txt").write_text("\n\n")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe")
    (tmp_path / "unknown.txt").write_text("\u65e5\n")
    for file, message in {
        "nowhere.txt": "not a readable text file",
        "binary.txt": "not a readable text file",
        "empty.txt": "the file has no prompts, accepted is one a line",
        "unknown.txt": "has no tokens in the vocabulary",
    }.items():
        code, _, err = call(check_port, tiny_model.folder, "--prompts", tmp_path / file)
        assert (code, message in err, err.count("\n")) == (2, True, 1), err
    code, _, err = call(check_port, tiny_model.folder, "--kl-bound", 0)
    assert (code, err) == (2, "error: kl_bound is 0.0: accepted is a positive number\n")
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "torch" else found(name, *rest)
    )
    code, _, err = call(check_port, tiny_model.folder)
    assert code == 2
    assert "check_port compares with transformers, which needs torch: pip install torch" in err


def test_a_run_is_exported(call, tiny_model, params, one_device, tmp_path):
    """A run folder as far as it matters here: what it trained, and two checkpoints."""
    run_folder, out_folder = tmp_path / "run", tmp_path / "out"
    run_folder.mkdir()
    (run_folder / "run.json").write_text(json.dumps({"model": str(tiny_model.folder)}))
    code, _, err = call(export, run_folder, out_folder)
    assert (code, "holds no checkpoints" in err, out_folder.exists()) == (2, True, False)

    with Checkpoints(run_folder) as checkpoints:
        for step in (1, 3):
            scaled = jax.tree.map(lambda x, step=step: step * x, params)
            checkpoints.save(TrainState(jnp.int32(step), scaled, jnp.zeros(1), jnp.uint32(0), jnp.int32(0)))
    code, out, err = call(export, run_folder, out_folder, "--dtype", "float32", "--json")
    assert code == 0, err
    written = json.loads(out.splitlines()[-1])
    assert (written["step"], written["files"], written["dtype"]) == (3, ["model.safetensors"], "float32")
    assert written["parameters"] == sum(leaf.size for leaf in jax.tree.leaves(params))
    model = open_model(str(out_folder))
    loaded = load_params(out_folder, model.config, one_device)
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, 3 * y), loaded, params)

    code, _, err = call(export, run_folder, out_folder)
    assert (code, "the folder is not empty; accepted is a new or an empty one" in err) == (2, True)


def test_a_model_is_exported_in_shards(call, tiny_model, tmp_path):
    code, out, _ = call(export, tiny_model.folder, tmp_path / "shards", "--shard-gigabytes", 1e-5)
    assert code == 0
    assert "parameters in bfloat16" in out
    assert len(list((tmp_path / "shards").glob("model-*.safetensors"))) > 1
    code, _, err = call(export, tiny_model.folder, tmp_path / "out", "--shard-gigabytes", 0)
    assert (code, err) == (2, "error: shard_gigabytes is 0.0: accepted is a positive number\n")
