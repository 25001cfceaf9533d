"""The promises of a run, on the embedded language model itself. Minutes: python -m pytest -m slow."""

import dataclasses
import os
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rlvr_jax.models import abstract_params, load_params
from rlvr_jax.objectives import sign
from rlvr_jax.records import Batch
from rlvr_jax.sharding import MeshShape, named_sharding
from rlvr_jax.training import Checkpoints, TrainConfig, UpdateSettings, init_state, make_optimizer, prepare, update
from rlvr_jax.training.state import OptimizerSettings

pytestmark = pytest.mark.slow


def on_mesh(shape: MeshShape):
    """Tokens, and first moments (a tenth of the clipped gradient) and parameters after one step, all on the host."""
    config = TrainConfig(mesh=shape)
    setup = prepare(config)
    rows = [setup.roller.task.row("train", i) for i in range(config.prompts_per_step)]
    params = load_params(setup.model.folder, setup.model.config, setup.mesh)
    graded = setup.roller(params, rows, seed=0, step=1, samples=4, max_new_tokens=5, temperature=1.0)
    settings = OptimizerSettings(1e-5, 1, 0.0, 0.9, 0.95, 1.0)
    optimizer = make_optimizer(settings)
    state = init_state(params, 0, config=setup.model.config, optimizer=optimizer, mesh=setup.mesh)
    rewards = jax.device_put(graded.rewards, named_sharding(setup.mesh, ("batch",)))
    state, _ = update(
        state,
        Batch(graded.prompts, graded.rollouts, sign(rewards)),
        setup.roller.prefix,
        jnp.float32(1.0),
        None,
        settings=UpdateSettings(setup.model.config, config.resolved_objective.loss, settings),
        mesh=setup.mesh,
    )
    moments = optax.tree.get(state.optimizer, "mu")
    return jax.device_get((graded.rollouts.tokens, moments, state.params))


def relative(a, b) -> float:
    squares = [
        (np.sum((x - y) ** 2, dtype=np.float64), np.sum(y**2, dtype=np.float64))
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    ]
    difference, norm = np.sum(squares, 0)
    return float(np.sqrt(difference / norm))


def test_one_and_eight_devices(monkeypatch):
    """Same tokens; gradient within 1e-5 and parameters after the step within 1e-6, in relative norm."""
    tokens, moments, params = on_mesh(MeshShape(data=8))
    one = jax.devices()[:1]
    monkeypatch.setattr(jax, "devices", lambda *_: one)
    expected_tokens, expected_moments, expected_params = on_mesh(MeshShape())
    np.testing.assert_array_equal(tokens, expected_tokens)
    differences = relative(moments, expected_moments), relative(params, expected_params)
    print(f"gradient {differences[0]:.1e}, parameters {differences[1]:.1e}")
    assert differences[0] < 1e-5
    assert differences[1] < 1e-6


def test_killed_at_step_17_of_40(tmp_path):
    """SIGKILL in step 18, resumed: the same metrics, evaluations and parameters, bit for bit."""

    def command(folder, *more):
        flags = ["--evaluation-questions", "64", "--evaluate-every", "20", "--checkpoint-every", "10", *more]
        arguments = [sys.executable, "-m", "experiments.train", "smollm2_arithmetic", "--output", str(folder), *flags]
        environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
        return {"args": arguments, "env": environment, "stdout": subprocess.DEVNULL}

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run(**command(whole), check=True)
    process = subprocess.Popen(**command(killed))
    while not (killed / "completions" / "step_000017.parquet").is_file():
        assert process.poll() is None, "ended before it could be killed"
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert len((killed / "metrics.jsonl").read_text().splitlines()) in (17, 18)
    subprocess.run(**command(killed, "--resume"), check=True)
    for name in ("metrics.jsonl", *(f"evaluations/step_{step:06d}.json" for step in (0, 20, 40))):
        assert (whole / name).read_bytes() == (killed / name).read_bytes(), name

    config = dataclasses.replace(TrainConfig(), mesh=MeshShape())
    setup = prepare(config)
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), abstract_params(setup.model.config)
    )
    params = []
    for folder in (whole, killed):
        with Checkpoints(folder) as checkpoints:
            assert checkpoints.latest_step == 40
            params.append(jax.device_get(checkpoints.restore_params(shapes)))
    jax.tree.map(np.testing.assert_array_equal, *params)
