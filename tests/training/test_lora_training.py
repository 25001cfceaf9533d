"""Runs that train adapters: the same update on any mesh, what is kept, exact resume, and the evaluation of a run."""

import dataclasses
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from conftest import PREFIX, TINY, relative, sampled_batch

from experiments import evaluate as evaluate_command
from experiments.command import run
from rlvr_jax.errors import UserError
from rlvr_jax.evaluation import evaluate
from rlvr_jax.models import LoraSettings, adapted, init_adapters, load_params, param_shardings
from rlvr_jax.models.lora import abstract_adapters, adapter_shardings
from rlvr_jax.objectives import KL, Loss
from rlvr_jax.reports import evaluation_summary
from rlvr_jax.sharding import MeshShape, make_mesh, named_sharding
from rlvr_jax.training import (
    TrainConfig,
    UpdateSettings,
    init_state,
    make_optimizer,
    prepare,
    restore_policy,
    train,
    update,
)
from rlvr_jax.training import loss_and_gradients as eager_loss_and_gradients
from rlvr_jax.training import run as run_module
from rlvr_jax.training.optimizer import OptimizerSettings

LORA = LoraSettings(rank=3, alpha=6.0)
OPTIMIZER = OptimizerSettings(
    learning_rate=1e-3, warmup_steps=2, weight_decay=0.0, beta1=0.9, beta2=0.95, max_gradient_norm=1.0
)
SETTINGS = UpdateSettings(TINY, Loss(kl=KL(0.1)), OPTIMIZER, lora=LORA)
ONE = jnp.float32(1.0)

loss_and_gradients = jax.jit(eager_loss_and_gradients, static_argnames=("settings", "rows"))


@pytest.fixture(scope="module")
def adapters():
    generator = np.random.default_rng(0)
    return jax.tree.map(lambda x: np.float32(0.1 * generator.normal(size=x.shape)), abstract_adapters(TINY, LORA))


@pytest.fixture(scope="module")
def batch(params, adapters, prompts):
    return sampled_batch(adapted(params, adapters, LORA), prompts)


def test_the_same_update_on_every_mesh(params, adapters, batch, one_device):
    """One device against eight, gradient and adapters after the step; the base is neither changed nor donated."""

    def on(mesh):
        placed = jax.device_put(batch, named_sharding(mesh, ("batch",)))
        prefix = jax.device_put(PREFIX, named_sharding(mesh))
        base = jax.device_put(params, param_shardings(TINY, mesh))
        trained = jax.device_put(adapters, adapter_shardings(TINY, LORA, mesh))
        arguments = (placed, prefix, ONE, base)
        state = init_state(trained, 0, config=TINY, optimizer=make_optimizer(OPTIMIZER), mesh=mesh, lora=LORA)
        state, metrics = update(state, *arguments, settings=SETTINGS, mesh=mesh)
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(base), jax.device_get(params))
        jax.tree.map(
            lambda x, where: x.sharding.is_equivalent_to(where, x.ndim) or pytest.fail(str(where)),
            state.params,
            adapter_shardings(TINY, LORA, mesh),
        )
        # The first moments are the clipped gradient times 1 - beta1.
        return jax.device_get((optax.tree.get(state.optimizer, "mu"), state.params, metrics))

    expected, got = on(one_device), on(make_mesh(MeshShape(data=2, fsdp=2, tensor=2)))
    assert relative(got[0], expected[0]) < 1e-5
    assert relative(got[1], expected[1]) < 1e-5
    assert relative(expected[1], adapters) > 1e-4
    assert expected[2]["sampler_difference_max"] < 1e-4
    assert expected[2]["kl"] > 1e-4


def test_micro_batches_change_nothing_and_the_base_is_the_reference(params, adapters, batch):
    arguments = (batch, PREFIX, ONE, params)
    expected = loss_and_gradients(adapters, *arguments, settings=SETTINGS, rows=1)
    pieces = dataclasses.replace(SETTINGS, micro_batches=4, remat="full")
    got = loss_and_gradients(adapters, *arguments, settings=pieces, rows=1)
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-5)
    assert relative(got[2], expected[2]) < 1e-5
    _, metrics, gradients = loss_and_gradients(init_adapters(TINY, LORA, 0), *arguments, settings=SETTINGS, rows=1)
    assert float(metrics["kl"]) == 0.0
    # With B zero only B moves.
    factors = gradients["layers"]["mlp"]["up"]
    assert not factors["a"].any()
    assert factors["b"].any()


@pytest.fixture(scope="module")
def config(tiny_model, tmp_path_factory):
    return TrainConfig(
        model=str(tiny_model.folder),
        lora_rank=2,
        lora_alpha=4.0,
        lora_targets=("q_proj", "v_proj", "down_proj"),
        kl_coefficient=0.01,
        steps=4,
        learning_rate=1e-2,
        evaluate_every=2,
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


def test_a_run_trains_and_keeps_adapters_alone(config, result, setup):
    assert all(np.isfinite(value) for line in result.metrics for value in line.values())
    assert [line["kl"] > 0 for line in result.metrics] == [False, True, True, True]
    assert max(line["sampler_difference_max"] for line in result.metrics) < 1e-4
    assert [line["compilations"] for line in result.timings[1:]] == [0] * 3
    base = load_params(setup.model.folder, setup.model.config, setup.mesh)
    checkpoint = result.folder / "checkpoints" / "4"
    kept = [
        np.prod(leaf.shape)
        for item in ("params", "rest")
        for leaf in jax.tree.leaves(ocp.StandardCheckpointer().metadata(checkpoint / item).item_metadata.tree)
    ]
    adapters = sum(leaf.size for leaf in jax.tree.leaves(abstract_adapters(TINY, config.lora)))
    # Adapters, Adam's two moments of each, and a few numbers such as the step.
    assert 0 <= sum(kept) - 3 * adapters < 10
    policy, step = restore_policy(result.folder, setup.model, setup.mesh)
    assert step == 4
    moved = jax.tree.map(lambda a, b: bool(jnp.any(a != b)), policy, base)
    block = {name: moved["layers"]["attention"][name] for name in ("query", "key", "value", "output")}
    assert block == {"query": True, "key": False, "value": True, "output": False}
    assert sum(jax.tree.leaves(moved)) == 3


def test_a_shorter_run_is_continued_exactly(result, config, setup):
    part = dataclasses.replace(config, output=config.output.parent / "in parts", steps=2)
    train(part, setup)
    whole = train(dataclasses.replace(part, steps=4), setup, resume=True)
    for name in ("metrics.jsonl", "evaluations/step_000004.json"):
        assert (whole.folder / name).read_bytes() == (result.folder / name).read_bytes()
    policies = [restore_policy(folder, setup.model, setup.mesh)[0] for folder in (whole.folder, result.folder)]
    jax.tree.map(np.testing.assert_array_equal, *policies)


def test_evaluating_the_run_gives_its_last_evaluation(config, setup, monkeypatch, capsys):
    """The command has the very weights that the run had, and says the same of them."""
    seen = []

    def observed(roller, params, **how):
        seen.append(jax.device_get(params))
        return evaluate(roller, params, **how)

    monkeypatch.setattr(run_module, "evaluate", observed)
    monkeypatch.setattr(evaluate_command, "evaluate", observed)
    result = train(dataclasses.replace(config, output=config.output.parent / "evaluated", steps=2), setup)
    monkeypatch.setenv("GLIBC_TUNABLES", "")
    monkeypatch.setattr(sys, "argv", ["evaluate", str(result.folder), "--questions", "20", "--json"])
    with pytest.raises(SystemExit) as ended:
        run(evaluate_command.main)
    assert ended.value.code == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == evaluation_summary(result.after)
    before, after, commanded = seen
    jax.tree.map(np.testing.assert_array_equal, commanded, after)
    assert relative(commanded, before) > 1e-3


def test_a_target_that_the_model_does_not_have_is_refused_before_a_folder_is_made(config, tmp_path):
    wrong = dataclasses.replace(config, lora_targets=("in_proj_qkv",), output=tmp_path / "run")
    with pytest.raises(UserError, match="targets has 'in_proj_qkv', which this model does not have"):
        prepare(wrong)
    assert not wrong.output.exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lora_rank": -1}, "lora_rank is -1, accepted is 0 or more"),
        ({"lora_alpha": 0.0}, r"lora_alpha is 0\.0, accepted is a number above 0"),
        ({"lora_targets": ("head",)}, r"lora_targets are \('head',\), accepted are"),
    ],
)
def test_configuration_is_checked_when_built(change, message):
    with pytest.raises(UserError, match=message):
        TrainConfig(**change)
