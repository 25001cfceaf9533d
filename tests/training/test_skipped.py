"""Updates whose loss or gradient is not finite: left out, counted, kept, run again, and too many of them in a row."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import PREFIX, TINY, sampled_batch

from rlvr_jax.errors import RunStopped, UserError
from rlvr_jax.models import param_shardings
from rlvr_jax.objectives import Loss
from rlvr_jax.training import (
    Checkpoints,
    TrainConfig,
    UpdateSettings,
    init_state,
    make_optimizer,
    prepare,
    replay,
    restore_policy,
    train,
    update,
)
from rlvr_jax.training import run as run_module
from rlvr_jax.training.batch import make_batch
from rlvr_jax.training.optimizer import OptimizerSettings
from rlvr_jax.training.skipped import SkippedUpdates


@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e30])
def test_an_update_that_is_not_finite_leaves_the_whole_state_as_it_was(params, prompts, one_device, poison):
    """A NaN, an infinite loss, and a gradient whose norm is too large for float32."""
    settings = OptimizerSettings(1e-3, 2, 0.0, 0.9, 0.95, 1.0)
    batch = sampled_batch(params, prompts)
    memory = {"seen": jnp.arange(3.0)}

    def first():
        placed = jax.device_put(params, param_shardings(TINY, one_device))
        return init_state(placed, 0, config=TINY, optimizer=make_optimizer(settings), mesh=one_device, objective=memory)

    def updated(batch):
        after = {"seen": memory["seen"] + 1}
        how = {"settings": UpdateSettings(TINY, Loss(), settings), "mesh": one_device}
        return jax.device_get(update(first(), batch, PREFIX, jnp.float32(1.0), None, after, **how))

    state, metrics = updated(batch)
    assert metrics["skipped"] == 0
    assert state.objective["seen"].tolist() == [1, 2, 3]
    assert any(
        (x != y).any() for x, y in zip(*map(jax.tree.leaves, (state.params, jax.device_get(params))), strict=True)
    )
    advantages = np.array(batch.advantages)
    advantages[np.nonzero(batch.loss_mask)[0][0], :, 0] *= poison
    advantages[np.nonzero(batch.loss_mask)[0][0], 0, 0] = poison
    state, metrics = updated(dataclasses.replace(batch, advantages=advantages))
    assert metrics["skipped"] == 1
    assert not np.isfinite([metrics["loss"], metrics["gradient_norm"]]).all()
    jax.tree.map(np.testing.assert_array_equal, state, jax.device_get(first()))


@pytest.fixture(scope="module")
def config(tiny_model, tmp_path_factory):
    return TrainConfig(
        model=str(tiny_model.folder),
        steps=6,
        learning_rate=1e-3,
        temperature=0.7,
        evaluate_every=0,
        evaluation_questions=20,
        evaluation_batch=16,
        checkpoint_every=3,
        output=tmp_path_factory.mktemp("runs") / "whole",
    )


@pytest.fixture(scope="module")
def setup(config):
    return prepare(config)


def poisoned(monkeypatch, poison, kept):
    """One token's advantage is NaN in the batches, counted from 1, that `poison` picks; batches are `kept`."""

    def make(*args, **kwargs):
        batch, memory = make_batch(*args, **kwargs)
        if poison(len(kept) + 1):
            advantages = np.array(batch.advantages)
            advantages[0, 0, 0] = np.nan
            batch = dataclasses.replace(batch, advantages=jax.device_put(advantages, batch.advantages.sharding))
        kept.append(jax.device_get(batch))
        return batch, memory

    monkeypatch.setattr(run_module, "make_batch", make)


def test_a_run_goes_on_after_a_skipped_update_which_can_be_run_again(config, setup, monkeypatch, one_device):
    batches = []
    clean = train(dataclasses.replace(config, output=config.output.parent / "clean", steps=2), setup)
    poisoned(monkeypatch, {3, 4, 6}.__contains__, batches)
    result = train(config, setup, before=clean.before)
    monkeypatch.undo()
    assert [line["skipped"] for line in result.metrics] == [0, 0, 1, 1, 0, 1]
    assert [bool(np.isfinite(line["loss"])) for line in result.metrics] == [True, True, False, False, True, False]
    assert [line["compilations"] for line in result.timings[1:]] == [0] * 5
    names = sorted(file.name for file in (result.folder / "skipped").iterdir())
    # Steps 3 and 4 met the same parameters, those after step 2.
    assert names == [*(f"params_00000{i}.npz" for i in (3, 6)), *(f"step_00000{i}.npz" for i in (3, 4, 6))]

    loss, metrics, gradients = replay(result.folder, 4)
    assert np.isnan(loss)
    assert np.isnan(jax.tree.leaves(gradients)[0]).any()
    assert float(metrics["sampler_difference_max"]) == result.metrics[3]["sampler_difference_max"]
    after_two, step = restore_policy(clean.folder, setup.model, setup.mesh)
    assert step == 2
    with np.load(result.folder / "skipped" / "params_000003.npz") as kept:
        for path, leaf in jax.tree_util.tree_flatten_with_path(after_two)[0]:
            np.testing.assert_array_equal(kept[jax.tree_util.keystr(path, simple=True, separator=".")], leaf)
    with np.load(result.folder / "skipped" / "step_000004.npz") as kept:
        np.testing.assert_array_equal(kept["batch.advantages"], batches[3].advantages)
        np.testing.assert_array_equal(kept["batch.rollouts.tokens"], batches[3].rollouts.tokens)
    with pytest.raises(UserError, match=r"step is 5: accepted are the steps of .* that skipped: 3, 4, 6"):
        replay(result.folder, 5)


def test_too_many_in_a_row_end_the_run_with_the_last_good_state_saved(config, setup, monkeypatch):
    """The row is counted across a resume, and a run that is mended goes on."""
    broken = dataclasses.replace(config, output=config.output.parent / "broken", max_skipped_in_a_row=3, steps=9)
    poisoned(monkeypatch, lambda batch: batch > 4, [])
    with pytest.raises(
        RunStopped, match=r"no finite loss and gradient in 3 steps in a row, the last of them 7, .*saved"
    ):
        train(broken, setup)
    with Checkpoints(broken.folder) as checkpoints:
        assert checkpoints.latest_step == 7
    stopped, _ = restore_policy(broken.folder, setup.model, setup.mesh)
    with np.load(broken.folder / "skipped" / "params_000005.npz") as kept:
        np.testing.assert_array_equal(kept["norm.scale"], stopped["norm"]["scale"])
    assert SkippedUpdates(broken.folder).in_a_row == 3
    with pytest.raises(RunStopped, match="in 4 steps in a row, the last of them 8"):
        train(broken, setup, resume=True)
    monkeypatch.undo()
    mended = train(broken, setup, resume=True)
    assert [line["skipped"] for line in mended.metrics] == [0] * 4 + [1] * 4 + [0]


@pytest.mark.slow
def test_two_hundred_steps_with_two_skipped(config, setup, monkeypatch):
    """Steps 50 and 120 are left out; the run before them is the same, and what it comes to is about the same."""
    long = dataclasses.replace(config, steps=200, checkpoint_every=100, learning_rate=3e-3)
    clean = train(dataclasses.replace(long, output=config.output.parent / "long"), setup)
    poisoned(monkeypatch, {50, 120}.__contains__, [])
    hurt = train(dataclasses.replace(long, output=config.output.parent / "hurt"), setup, before=clean.before)
    assert [line["step"] for line in hurt.metrics if line["skipped"]] == [50, 120]
    assert [line["step"] for line in hurt.metrics if not np.isfinite(line["loss"])] == [50, 120]
    assert hurt.metrics[:49] == clean.metrics[:49]

    def curve(result, name):
        values = np.array([line[name] for line in result.metrics if np.isfinite(line["loss"])])
        return np.array([part.mean() for part in np.array_split(values, 8)])

    for name in ("loss", "reward"):
        print(name, *(np.round(curve(result, name), 3) for result in (clean, hurt)))
    learnt = np.ptp(curve(clean, "reward"))
    assert np.abs(curve(clean, "reward") - curve(hurt, "reward")).max() < max(0.5 * learnt, 0.1)
    with pytest.raises(UserError, match="skipped: 50, 120"):
        replay(hurt.folder, 51)
