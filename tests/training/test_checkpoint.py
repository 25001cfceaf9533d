"""Checkpoints: what is kept, every damage found, other meshes, other models refused, disks that are full."""

import contextlib
import dataclasses
import json
import resource
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import TINY
from etils import epath

from rlvr_jax.errors import RunStopped, UserError
from rlvr_jax.models import init_params, param_shardings
from rlvr_jax.sharding import MeshShape, make_mesh
from rlvr_jax.training import Checkpoints, TrainState, disk, init_state, make_optimizer
from rlvr_jax.training.checkpoint import kept_steps
from rlvr_jax.training.optimizer import OptimizerSettings
from rlvr_jax.training.state import abstract_state

OPTIMIZER = make_optimizer(OptimizerSettings(1e-3, 2, 0.0, 0.9, 0.95, 1.0))


def small_state(step, width=4):
    params = {"layer": {"kernel": jnp.full((3, width), float(step)), "scale": jnp.arange(5.0)}}
    moments = {"mu": jnp.full((3, width), 0.5 * step)}
    return TrainState(jnp.int32(step), params, moments, jnp.uint32(7), jnp.int32(8 * step))


def abstract(state):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)


def save(folder, steps, **how):
    with Checkpoints(folder, **how) as checkpoints:
        for step in steps:
            checkpoints.save(small_state(step))


def restored_step(folder, **how):
    with Checkpoints(folder, **how) as checkpoints:
        state = checkpoints.restore(abstract(small_state(0)))
    expected = small_state(int(state.step))
    jax.tree.map(np.testing.assert_array_equal, state, expected)
    return int(state.step)


def names(folder):
    return sorted(int(path.name) for path in (folder / "checkpoints").iterdir() if path.name.isdigit())


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    save(folder, (2, 4))
    return folder


def files_of(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def truncated(file):
    file.write_bytes(file.read_bytes()[:-1])


def emptied(file):
    file.write_bytes(b"")


def changed(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("damage", [truncated, emptied, changed, Path.unlink], ids=lambda damage: damage.__name__)
def test_any_file_that_is_cut_changed_or_removed_is_found(two, tmp_path, capsys, damage):
    """Each file of the newest checkpoint in turn: the one before it is the latest then, and the reason is said."""
    copy = tmp_path / "run"
    shutil.copytree(two, copy)
    files = files_of(copy / "checkpoints" / "4")
    assert {"manifest.json", "_METADATA", "_CHECKPOINT_METADATA", "_sharding"} <= {file.name for file in files}
    for file in files:
        content = file.read_bytes()
        damage(file)
        with Checkpoints(copy, read_only=True) as checkpoints:
            assert checkpoints.latest_step == 2, file
        said = capsys.readouterr().err
        assert "the checkpoint of step 4" in said
        assert file.name in said or "it was not finished" in said
        file.write_bytes(content)
    with Checkpoints(copy, read_only=True) as checkpoints:
        assert checkpoints.latest_step == 4


def test_a_damaged_checkpoint_gives_way_and_its_step_is_saved_again(two, tmp_path, capsys):
    copy = tmp_path / "run"
    shutil.copytree(two, copy)
    largest = max((copy / "checkpoints" / "4" / "params").rglob("d/*"), key=lambda file: file.stat().st_size)
    size = largest.stat().st_size
    truncated(largest)
    assert restored_step(copy) == 2
    assert f"{largest.name} has {size - 1} of {size} bytes" in capsys.readouterr().err
    assert names(copy) == [2]
    save(copy, (4,))
    assert restored_step(copy) == 4
    for step in ("2", "4"):
        emptied(copy / "checkpoints" / step / "manifest.json")
    with pytest.raises(UserError, match=r"no finished checkpoint; that of step 4 is damaged: manifest\.json cannot"):
        restored_step(copy)


def test_a_checkpoint_whose_manifest_is_missing_was_not_finished(two, tmp_path, capsys):
    """A run that was killed just then begins anew where it had none before."""
    copy = tmp_path / "run"
    shutil.copytree(two, copy)
    for step in ("2", "4"):
        (copy / "checkpoints" / step / "manifest.json").unlink()
    with Checkpoints(copy) as checkpoints:
        assert checkpoints.steps == []
    assert "step 2 in" in capsys.readouterr().err


def test_reading_leaves_a_damaged_checkpoint_and_a_save_in_progress_alone(two, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(two, copy)
    (copy / "checkpoints" / "6.orbax-checkpoint-tmp").mkdir()
    (copy / "checkpoints" / "4" / "manifest.json").unlink()
    before = files_of(copy)
    with Checkpoints(copy, read_only=True) as checkpoints:
        params = checkpoints.restore_params(abstract(small_state(0).params))
    jax.tree.map(np.testing.assert_array_equal, params, small_state(2).params)
    assert files_of(copy) == before
    assert (copy / "checkpoints" / "6.orbax-checkpoint-tmp").is_dir()


def test_a_checkpoint_from_before_there_were_manifests_is_restored(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("rlvr_jax.training.checkpoint._MARK", {})
    save(tmp_path, (2,))
    monkeypatch.undo()
    (tmp_path / "checkpoints" / "2" / "manifest.json").unlink()
    assert restored_step(tmp_path) == 2
    assert "not checked" in capsys.readouterr().err


def test_the_newest_and_the_best_are_kept(tmp_path):
    accuracies = {1: 0.2, 2: 0.9, 4: 0.9, 5: 0.1}
    assert kept_steps(range(1, 8), accuracies, 2) == {4, 6, 7}
    assert kept_steps(range(1, 8), {}, 3) == {5, 6, 7}
    assert kept_steps([], {}, 2) == set()
    for steps in ((1, 2, 3), (4, 5, 6)):
        with Checkpoints(tmp_path, keep=1) as checkpoints:
            for step in steps:
                checkpoints.save(small_state(step), accuracies.get(step))
    assert names(tmp_path) == [4, 6]
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(small_state(7), 0.95)
        checkpoints.save(small_state(7), 0.0)
    assert names(tmp_path) == [7]


def test_saved_on_eight_devices_restored_on_fewer(tmp_path):
    """Parameters and moments, sharded in one way and in another, under a policy that computes in bfloat16."""

    def on(count, shape, config=TINY):
        mesh = make_mesh(shape, jax.devices()[:count])
        placed = jax.device_put(init_params(TINY, seed=1), param_shardings(TINY, mesh))
        return init_state(placed, 3, config=config, optimizer=OPTIMIZER, mesh=mesh), mesh

    state, _ = on(8, MeshShape(data=2, fsdp=2, tensor=2))
    saved = jax.device_get(state)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(state)
    config = dataclasses.replace(TINY, compute_dtype="bfloat16")
    for count, shape in ((1, MeshShape()), (2, MeshShape(tensor=2)), (4, MeshShape(data=1, fsdp=4))):
        mesh = make_mesh(shape, jax.devices()[:count])
        like = abstract_state(config, OPTIMIZER, saved.params, mesh)
        with Checkpoints(tmp_path) as checkpoints:
            restored = checkpoints.restore(like)
        jax.tree.map(
            lambda x, y: x.sharding.is_equivalent_to(y.sharding, x.ndim) or pytest.fail(str(y)), restored, like
        )
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(restored), saved)


def test_another_model_or_objective_is_refused_by_the_first_difference(tmp_path):
    of = {"hidden_size": 32, "objective": "sign", "lora_targets": ("q_proj",)}
    with Checkpoints(tmp_path, of=of) as checkpoints:
        checkpoints.save(small_state(2))
    assert restored_step(tmp_path, of=of) == 2
    with pytest.raises(UserError, match=r"objective is 'grpo', but the checkpoint of step 2 in .* has 'sign'"):
        restored_step(tmp_path, of=of | {"objective": "grpo"})
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(UserError, match=r"layer\.kernel has shape \(3, 4\) in it and shape \(3, 5\) in this run"):
            checkpoints.restore_params(abstract(small_state(0, width=5).params))
        with pytest.raises(UserError, match=r"layer\.bias has no such array in it and shape \(3,\) in this run"):
            checkpoints.restore_params(abstract({"layer": {**small_state(0).params["layer"], "bias": jnp.ones(3)}}))


# Orbax leaves tasks of the other arrays behind.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_write_that_fails_ends_the_run_and_leaves_the_checkpoints_before(tmp_path):
    """The system refuses files above a size, as a full disk would."""
    save(tmp_path, (2,))
    large = jnp.arange(2.0**18)
    state = TrainState(jnp.int32(4), {"kernel": large}, large, jnp.uint32(0), jnp.int32(0))

    def save_large():
        with Checkpoints(tmp_path) as checkpoints, files_of_at_most(2**18):
            checkpoints.save(state)
            checkpoints.wait()

    with pytest.raises(
        RunStopped, match=r"of step 4 could not be written to .*File too large.*; that of step 2 is untouched"
    ):
        save_large()
    assert restored_step(tmp_path) == 2


@contextlib.contextmanager
def files_of_at_most(size):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_what_cannot_be_written_to_is_known_before_the_first_step(tmp_path, monkeypatch):
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(UserError, match=r"checkpoint_folder is '.*checkpoints': .*; accepted is a folder"):
        Checkpoints(tmp_path)
    (tmp_path / "checkpoints").unlink()
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(small_state(0)))

    def free(amount):
        monkeypatch.setattr(disk.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 0, amount))

    with Checkpoints(tmp_path, keep=3) as checkpoints:
        for saves, needed in ((1, size), (4, 4 * size), (100, 5 * size)):
            free(needed)
            checkpoints.require_room(small_state(0), saves)
            free(needed - 1)
            with pytest.raises(UserError, match=r"checkpoint_folder is .* free: \d checkpoints of 0\.0 GB"):
                checkpoints.require_room(small_state(0), saves)


def test_manifest_names_every_file_and_what_it_is_of(two):
    folder = two / "checkpoints" / "4"
    content = json.loads((folder / "manifest.json").read_text())["content"]
    assert set(content["files"]) == {
        str(file.relative_to(folder)) for file in files_of(folder) if file.name != "manifest.json"
    }
    assert content["held_out_accuracy"] is None


def test_a_host_that_looks_whether_it_can_write_leaves_the_others_probes(tmp_path, monkeypatch):
    for host in range(2):
        (tmp_path / f".probe_{host}").write_bytes(b"0")
    for host in range(2):
        monkeypatch.setattr(jax, "process_index", lambda host=host: host)
        disk.require_writable(epath.Path(tmp_path))
        assert sorted(path.name for path in tmp_path.iterdir()) == [f".probe_{other}" for other in range(host + 1, 2)]


def test_a_bucket_without_rights_is_said_before_the_first_step(tmp_path, monkeypatch):
    """Clients of object stores raise errors of their own kind, not OSError."""

    class Forbidden(Exception):
        pass

    def refuse(path, data):
        raise Forbidden("403 POST: caller does not have storage.objects.create access")

    monkeypatch.setattr(type(epath.Path(tmp_path)), "write_bytes", refuse)
    with pytest.raises(UserError, match=r"checkpoint_folder is '.*': 403 POST: caller does not have"):
        disk.require_writable(epath.Path(tmp_path))
