"""Whole runs on the tiny model: exact repetition, exact resume, no recompilation, clear errors."""

import contextlib
import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pyarrow.parquet
import pytest

from rlvr_jax.errors import UserError
from rlvr_jax.models import abstract_params, load_params
from rlvr_jax.objectives import OBJECTIVES
from rlvr_jax.sampling import Precision
from rlvr_jax.sharding import MeshShape, named_sharding
from rlvr_jax.tasks.pipeline import train_batches
from rlvr_jax.training import (
    Checkpoints,
    TrainConfig,
    UpdateSettings,
    init_state,
    loss_and_gradients,
    make_batch,
    make_optimizer,
    prepare,
    train,
    update,
)
from rlvr_jax.training.batch import trainer_log_probabilities
from rlvr_jax.training.optimizer import OptimizerSettings
from rlvr_jax.training.run_folder import RunFolder


@pytest.fixture(scope="module")
def config(tiny_model, tmp_path_factory):
    return TrainConfig(
        model=str(tiny_model.folder),
        steps=6,
        learning_rate=1e-3,
        temperature=0.7,
        evaluate_every=3,
        evaluation_questions=20,
        evaluation_batch=16,
        checkpoint_every=2,
        output=tmp_path_factory.mktemp("runs") / "first",
    )


@pytest.fixture(scope="module")
def setup(config):
    return prepare(config)


@pytest.fixture(scope="module")
def result(config, setup):
    return train(config, setup)


def elsewhere(config, name, **changes):
    return dataclasses.replace(config, output=config.output.parent / name, **changes)


def changes_of(changed, config):
    fields = {field.name for field in dataclasses.fields(config)} - {"output"}
    return {name: getattr(changed, name) for name in fields if getattr(changed, name) != getattr(config, name)}


def params_of(folder, setup):
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0])),
        abstract_params(setup.model.config),
    )
    with Checkpoints(folder) as checkpoints:
        return jax.device_get(checkpoints.restore_params(shapes))


def assert_same_run(a, b, setup):
    for name in ("metrics.jsonl", "evaluations"):
        files = [a / name] if (a / name).is_file() else sorted((a / name).iterdir())
        for file in files:
            assert file.read_bytes() == (b / file.relative_to(a)).read_bytes(), file
    jax.tree.map(np.testing.assert_array_equal, params_of(a, setup), params_of(b, setup))


def test_a_run_leaves_everything(result, config):
    assert [line["step"] for line in result.metrics] == list(range(1, 7))
    assert sorted(result.evaluations) == [0, 3, 6]
    assert result.before.rewards.shape == (20, 4)
    assert all(np.isfinite(value) for line in result.metrics for value in line.values())
    # At temperature 0.7; the untempered policy is further away than that.
    assert max(line["sampler_difference_max"] for line in result.metrics) < 1e-4
    assert all(0 < line["sampler_difference_mean"] <= line["sampler_difference_max"] for line in result.metrics)
    table = pyarrow.parquet.read_table(result.folder / "completions" / "step_000004.parquet").to_pylist()
    assert len(table) == 32
    assert sum(row["correct"] for row in table) / 32 == pytest.approx(result.metrics[3]["reward"])
    assert list((result.folder / "tensorboard").iterdir())
    assert not list(result.folder.rglob("*.part"))


def test_nothing_recompiles_after_the_first_step(result):
    assert [line["compilations"] for line in result.timings[1:]] == [0] * 5


def test_the_same_command_gives_the_same_bits(result, config, setup):
    again = train(elsewhere(config, "again"), setup)
    assert_same_run(result.folder, again.folder, setup)
    other = train(elsewhere(config, "other seed", seed=1), setup)
    assert (other.folder / "metrics.jsonl").read_bytes() != (result.folder / "metrics.jsonl").read_bytes()


def test_a_shorter_run_is_continued_exactly(result, config, setup):
    part = elsewhere(config, "continued", steps=4)
    train(part, setup)
    whole = train(dataclasses.replace(part, steps=6), setup, resume=True)
    # The shorter run evaluated after its own last step, which the longer one does not.
    (whole.folder / "evaluations" / "step_000004.json").unlink()
    assert_same_run(result.folder, whole.folder, setup)


def test_an_output_folder_with_another_run_is_refused(result, config, setup):
    with pytest.raises(UserError, match="the folder holds another run; accepted are --resume"):
        train(config, setup)
    with pytest.raises(UserError, match=r"learning_rate is 0\.5, but the run in .* has 0\.001"):
        train(dataclasses.replace(config, learning_rate=0.5), setup, resume=True)
    (config.output.parent / "mine").mkdir()
    (config.output.parent / "mine" / "thesis.tex").write_text("precious")
    with pytest.raises(UserError, match="not empty and holds no run"):
        train(elsewhere(config, "mine"), setup)


def test_more_updates_micro_batches_and_a_kl(config, setup):
    varied = elsewhere(
        config,
        "varied",
        objective="half_reference",
        surrogate="ppo_clip",
        clip_high=0.01,
        clip_low=0.01,
        updates_per_rollout=3,
        learning_rate=1e-2,
        kl_coefficient=0.1,
        steps=3,
        evaluate_every=0,
        checkpoint_every=0,
    )
    result = train(varied, setup)
    assert result.metrics[-1]["kl"] > 0
    assert max(line["clipped_share"] for line in result.metrics) > 0
    assert result.timings[-1]["compilations"] == 0
    assert sorted(result.evaluations) == [0, 3]


NOT_IN_THE_LOOP = {"greedy_rewards", "divergence"}
TRAINABLE = [name for name, objective in OBJECTIVES.items() if not NOT_IN_THE_LOOP & set(objective.needs)]


@pytest.fixture(scope="module")
def rolled(config, setup):
    params = load_params(setup.model.folder, setup.model.config, setup.mesh)
    rows = [setup.roller.task.row("train", i) for i in range(8)]
    return params, setup.roller(params, rows, seed=0, step=1, samples=4, max_new_tokens=5, temperature=1.0)


def batch_for(objective, graded):
    rewards = (np.arange(32).reshape(8, 4) % 5 == 0).astype(np.float32)
    memory = None if objective.start is None else objective.start()
    return make_batch(graded.prompts, graded.rollouts, rewards, None, memory, objective=objective)[0]


@pytest.mark.parametrize("name", TRAINABLE)
def test_every_objective_that_needs_no_more_than_rollouts_has_a_gradient(name, rolled):
    """On real rollouts, with respect to their log-probabilities; the numbers are checked where the functions are."""
    _, graded = rolled
    batch = batch_for(OBJECTIVES[name], graded)
    log_probabilities = batch.rollouts.log_probabilities

    @jax.jit
    def gradient(new):
        def loss(new):
            total, weight = OBJECTIVES[name].loss(
                new, log_probabilities, batch.advantages, batch.loss_mask, rewards=batch.rewards
            )
            return total / weight

        return jax.grad(loss)(new)

    assert 0 < float(jnp.linalg.norm(gradient(log_probabilities))) < np.inf


@pytest.mark.parametrize("name", ["real", "c2gspg", "rl_zvp"])
def test_objectives_with_other_inputs_go_through_the_update(name, setup, rolled):
    """Rewards as labels, and advantages that differ by token."""
    params, graded = rolled
    optimizer = OptimizerSettings(1e-3, 1, 0.0, 0.9, 0.95, 1.0)
    settings = UpdateSettings(setup.model.config, OBJECTIVES[name].loss, optimizer)
    arguments = (params, batch_for(OBJECTIVES[name], graded), setup.roller.prefix, jnp.float32(1.0), None)
    gradients_of = jax.jit(loss_and_gradients, static_argnames=("settings", "rows"))
    loss, metrics, gradients = gradients_of(*arguments, settings=settings, rows=8)
    assert np.isfinite([float(loss), *map(float, metrics.values())]).all()
    assert 0 < float(optax.tree.norm(gradients)) < np.inf


@pytest.mark.parametrize("name", sorted(set(OBJECTIVES) - set(TRAINABLE)))
def test_an_objective_that_needs_more_is_refused_by_what_it_needs(name, config):
    (missing,) = NOT_IN_THE_LOOP & set(OBJECTIVES[name].needs)
    with pytest.raises(UserError, match=f"objective is '{name}': .* needs .*{missing}"):
        dataclasses.replace(config, objective=name)


def test_an_objective_that_remembers_resumes_exactly(config, setup):
    whole = train(elsewhere(config, "remembers", objective="ebpo"), setup)
    part = elsewhere(config, "remembers in parts", objective="ebpo", steps=4)
    train(part, setup)
    continued = train(dataclasses.replace(part, steps=6), setup, resume=True)
    (continued.folder / "evaluations" / "step_000004.json").unlink()
    assert_same_run(whole.folder, continued.folder, setup)


def test_dynamic_sampling_takes_more_prompts_until_enough_groups_are_mixed(config, setup):
    resampled = elsewhere(
        config, "dapo", objective="dapo", rollouts_per_step=3, steps=4, checkpoint_every=2, evaluate_every=0
    )
    result = train(resampled, setup)
    sampled = [line["sampled_groups"] for line in result.metrics]
    assert max(sampled) > 8
    assert all(groups in (8, 16, 24) for groups in sampled)
    part = elsewhere(config, "dapo in parts", **{**changes_of(resampled, config), "steps": 2})
    train(part, setup)
    continued = train(dataclasses.replace(part, steps=4), setup, resume=True)
    (continued.folder / "evaluations" / "step_000002.json").unlink()
    assert_same_run(result.folder, continued.folder, setup)


def test_staleness_is_one_update_and_none_after_a_checkpoint(config, setup, monkeypatch):
    """Beside a loop made by hand, step by step. Stopped with rollouts in flight, it resumes exactly."""
    stale = elsewhere(
        config,
        "stale",
        staleness=1,
        importance_cap=1.05,
        surrogate="ppo_clip",
        updates_per_rollout=2,
        learning_rate=1e-2,
        steps=5,
        checkpoint_every=3,
        evaluate_every=0,
    )
    result = train(stale, setup)
    assert [line["compilations"] for line in result.timings[1:]] == [0] * 4
    assert [line["importance_weight"] != pytest.approx(1, abs=1e-5) for line in result.metrics] == [0, 1, 1, 0, 1]
    assert [line["capped_share"] > 0 for line in result.metrics] == [0, 1, 1, 0, 1]

    model, mesh, objective = setup.model, setup.mesh, stale.resolved_objective
    optimizer = OptimizerSettings(1e-2, 5, 0.0, 0.9, 0.95, 1.0)
    settings = UpdateSettings(model.config, objective.loss, optimizer)
    params = load_params(model.folder, model.config, mesh)
    state = init_state(params, 0, config=model.config, optimizer=make_optimizer(optimizer), mesh=mesh)
    policies, temperature = [jax.tree.map(jnp.copy, state.params)], jnp.float32(config.temperature)
    sampling = {"samples": 4, "max_new_tokens": setup.roller.task.max_new_tokens, "temperature": config.temperature}
    with contextlib.closing(train_batches(setup.roller.task, 0, 0, 8)) as batches:
        for step, updates in enumerate((0, 0, 1, 3, 3), 1):
            graded = setup.roller(policies[updates], next(batches), seed=0, step=step, **sampling)
            rewards = jax.device_put(graded.rewards, named_sharding(mesh, ("batch",)))
            batch, _ = make_batch(graded.prompts, graded.rollouts, rewards, None, None, objective=objective)
            arguments = (batch.prompts, batch.rollouts.tokens, setup.roller.prefix, temperature)
            old = trainer_log_probabilities(state.params, *arguments, settings=settings, mesh=mesh)
            batch = dataclasses.replace(batch, old_log_probabilities=old)
            for _ in range(2):
                state, metrics = update(
                    state, batch, setup.roller.prefix, temperature, None, settings=settings, mesh=mesh
                )
            policies.append(jax.tree.map(jnp.copy, state.params))
            assert {name: result.metrics[step - 1][name] for name in metrics} == jax.device_get(metrics)
            assert result.metrics[step - 1]["reward"] == graded.rewards.mean()
    jax.tree.map(np.testing.assert_array_equal, params_of(result.folder, setup), jax.device_get(state.params))

    stopped, write = elsewhere(stale, "stale and stopped"), RunFolder.write_step

    def stop(folder, step, *figures):
        if step == 4:
            raise KeyboardInterrupt
        write(folder, step, *figures)

    monkeypatch.setattr(RunFolder, "write_step", stop)
    with pytest.raises(KeyboardInterrupt):
        train(stopped, setup, before=result.before)
    monkeypatch.undo()
    assert_same_run(result.folder, train(stopped, setup, resume=True).folder, setup)
    with pytest.raises(UserError, match=r"checkpoint_every is 2, but the run in .* has 3"):
        train(dataclasses.replace(stopped, checkpoint_every=2), setup, resume=True)


def test_bfloat16_computes_beside_float32_weights(config):
    less = {
        "compute_dtype": "bfloat16",
        "rollout": Precision(int8_weights=True, int8_cache=True),
        "importance_cap": 2.0,
    }
    rounded = elsewhere(config, "rounded", **less, steps=2, evaluate_every=0, checkpoint_every=0)
    result = train(rounded, prepare(rounded))
    assert all(np.isfinite(value) for line in result.metrics for value in line.values())
    # Sampler and trainer round differently; how much is measured at every step.
    assert 1e-5 < result.metrics[0]["sampler_difference_max"] < 0.5


def test_kl_in_the_reward_and_overlong_penalty(config, setup):
    changed = elsewhere(
        config,
        "penalties",
        kl_coefficient=0.1,
        kl_where="reward",
        kl_estimator="k1",
        max_new_tokens=5,
        overlong_cache=2,
        drop_truncated=True,
        steps=2,
        evaluate_every=0,
        checkpoint_every=0,
    )
    result = train(changed, setup)
    assert all(np.isfinite(value) for line in result.metrics for value in line.values())
    with pytest.raises(UserError, match="overlong_cache is 2: max_new_tokens must be given"):
        dataclasses.replace(changed, max_new_tokens=None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompts_per_step": 12}, "prompts_per_step is 12: accepted is a multiple of 8"),
        ({"micro_batches": 3}, "prompts_per_step is 8: accepted is a multiple of 24"),
        ({"evaluation_batch": 20}, "evaluation_batch is 20: accepted is a multiple of 8"),
        ({"mesh": MeshShape(data=3)}, "which is 8"),
        ({"task": "nothing"}, "task is 'nothing'"),
    ],
)
def test_what_does_not_fit_is_named_before_anything_starts(config, change, message):
    with pytest.raises(UserError, match=message):
        prepare(dataclasses.replace(config, **change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps is 0, accepted is 1 or more"),
        ({"learning_rate": -1.0}, r"learning_rate is -1\.0, accepted is a number above 0"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"beta2": 1.0}, r"beta2 is 1\.0"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"objective": "magic"}, "objective is 'magic', accepted are sign"),
        ({"objective": "group_mean", "samples_per_prompt": 1}, "group_mean compares the samples"),
        ({"seed": 2**32}, "seed is 4294967296"),
        ({"importance_cap": 0.0}, r"importance_cap is 0\.0, accepted is a number above 0"),
        ({"staleness": 1, "rollouts_per_step": 2, "objective": "dapo"}, "rollouts_per_step is 2, accepted .* is 1"),
        ({"rollout": Precision(int8_cache=True)}, r"rollout is Precision.*: importance_cap must be given with it"),
        ({"staleness": 1}, "staleness is 1, but the surrogate reinforce has no ratio .* accepted are importance_cap"),
        ({"stop": ("User:", "")}, r"stop is \['User:', ''\]: one is empty"),
        ({"objective": "nsr", "kl_coefficient": 0.1, "kl_where": "reward"}, "objective is 'nsr': negative_only takes"),
    ],
)
def test_configuration_is_checked_when_built(change, message):
    with pytest.raises(UserError, match=message):
        TrainConfig(**change)
    json.dumps(dataclasses.asdict(TrainConfig()), default=str)
