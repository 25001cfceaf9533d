"""Whole runs on the tiny model: exact repetition, exact resume after SIGKILL, no recompilation, clear errors."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pyarrow.parquet
import pytest

from rlvr_jax.errors import UserError
from rlvr_jax.models import abstract_params
from rlvr_jax.sharding import MeshShape
from rlvr_jax.training import Checkpoints, TrainConfig, prepare, train


@pytest.fixture(scope="module")
def config(tiny_model, tmp_path_factory):
    return TrainConfig(
        model=str(tiny_model.folder),
        steps=6,
        learning_rate=1e-3,
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
    assert max(line["sampler_difference_max"] for line in result.metrics) < 1e-4
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


def test_killed_and_resumed_ends_in_the_same_bits(result, config, setup):
    """SIGKILL of a real process somewhere between two checkpoints."""
    killed = elsewhere(config, "killed")
    program = "import sys, pathlib; from experiments.train import main; from experiments.command import run; main()"
    flags = {
        "model": killed.model,
        "steps": killed.steps,
        "learning-rate": killed.learning_rate,
        "evaluate-every": killed.evaluate_every,
        "evaluation-questions": killed.evaluation_questions,
        "evaluation-batch": killed.evaluation_batch,
        "checkpoint-every": killed.checkpoint_every,
        "output": killed.output,
    }
    arguments = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-c", program, "smollm2_arithmetic", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 240
        while not (killed.output / "completions" / "step_000003.parquet").is_file():
            assert process.poll() is None, "ended before it could be killed"
            assert time.monotonic() < deadline, "never came to step 3"
            time.sleep(0.01)
        # The checkpoint of step 2 is written in the background: wait for it, then kill in the middle of what follows.
        while not (killed.output / "checkpoints" / "2").is_dir():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    resumed = train(killed, setup, resume=True)
    assert_same_run(result.folder, resumed.folder, setup)


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
    ],
)
def test_configuration_is_checked_when_built(change, message):
    with pytest.raises(UserError, match=message):
        TrainConfig(**change)
    json.dumps(dataclasses.asdict(TrainConfig()), default=str)
