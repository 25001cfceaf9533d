"""Runs that are killed, told to stop, or refused by the disk, and end in the same bits all the same."""

import dataclasses
import functools
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from rlvr_jax.errors import Preempted, RunStopped, UserError
from rlvr_jax.evaluation import evaluate
from rlvr_jax.models import abstract_params
from rlvr_jax.training import (
    Checkpoints,
    TrainConfig,
    make_optimizer,
    preemption,
    prepare,
    read_config,
    read_result,
    train,
)
from rlvr_jax.training import run as run_module
from rlvr_jax.training.optimizer import OptimizerSettings
from rlvr_jax.training.run_folder import RunFolder
from rlvr_jax.training.state import abstract_state


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
        output=tmp_path_factory.mktemp("runs") / "whole",
    )


@pytest.fixture(scope="module")
def setup(config):
    return prepare(config)


@pytest.fixture(scope="module")
def result(config, setup):
    return train(config, setup)


@pytest.fixture(scope="module")
def stale(config, setup, result):
    changes = {
        "staleness": 1,
        "importance_cap": 1.05,
        "surrogate": "ppo_clip",
        "updates_per_rollout": 2,
        "learning_rate": 1e-2,
        "steps": 5,
        "checkpoint_every": 4,
        "evaluate_every": 2,
    }
    config = elsewhere(config, "stale", **changes)
    return config, train(config, setup, before=result.before)


def elsewhere(config, name, **changes):
    return dataclasses.replace(config, output=config.output.parent / name, **changes)


def state_of(config, setup):
    """The whole state of the last checkpoint."""
    settings = OptimizerSettings(config.learning_rate, 5, 0.0, 0.9, 0.95, 1.0)
    like = abstract_state(setup.model.config, make_optimizer(settings), abstract_params(setup.model.config), setup.mesh)
    with Checkpoints(config.folder) as checkpoints:
        return jax.device_get(checkpoints.restore(like))


def assert_same_run(a, b, setup):
    """Metrics and evaluations byte for byte, the state bit for bit, and no step twice."""
    for name in ("metrics.jsonl", *(f"evaluations/{file.name}" for file in (a.folder / "evaluations").iterdir())):
        assert (a.folder / name).read_bytes() == (b.folder / name).read_bytes(), name
    steps = [line["step"] for line in read_result(b.folder).timings]
    assert steps == list(range(1, a.steps + 1))
    assert len(list((b.folder / "completions").iterdir())) == a.steps
    expected, got = state_of(a, setup), state_of(b, setup)
    assert (int(got.step), int(got.cursor)) == (a.steps, 8 * a.steps)
    jax.tree.map(np.testing.assert_array_equal, got, expected)


def until_done(config, setup, **how):
    """What a user's loop around the command does; what the run said each time it was told to stop."""
    said = []
    while len(said) < 20:
        try:
            train(config, setup, resume=True, **how)
            return said
        except Preempted as preempted:
            said.append(str(preempted))
    raise AssertionError("never done")


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


def at_every_second(function, calls, act=terminate):
    """`function`, with SIGTERM after every second call, the first one not."""

    def wrapped(*args, **kwargs):
        done = function(*args, **kwargs)
        calls.append(1)
        if len(calls) % 2 == 0:
            act()
        return done

    return wrapped


@pytest.mark.parametrize("where", [pytest.param("write_step", marks=pytest.mark.slow), "collect", "update"])
def test_sigterm_in_a_step_saves_and_the_run_goes_on_in_the_same_bits(where, config, setup, result, monkeypatch):
    """After the step's metrics; between its rollouts and its update, when it is given up; in the update."""
    stopped = elsewhere(config, f"stopped in {where}")
    owner = RunFolder if where == "write_step" else run_module
    monkeypatch.setattr(owner, where, at_every_second(getattr(owner, where), []))
    said = until_done(stopped, setup, before=result.before)
    steps = {"write_step": (2, 4, 6), "collect": (1, 2, 3, 4, 5), "update": (2, 4, 6)}[where]
    assert [text.partition(" in ")[0] for text in said] == [f"saved after step {step}" for step in steps]
    monkeypatch.undo()
    assert_same_run(config, stopped, setup)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_sigterm_in_an_evaluation_gives_it_up_and_it_is_made_later(config, setup, result, monkeypatch):
    """In the one before the first step and in the others, the last one too."""
    stopped, asked = elsewhere(config, "stopped in evaluations"), []

    def interrupted(*args, progress, **how):
        def told(done):
            if done < 20:
                asked.append(done)
                if len(asked) % 2:
                    terminate()
            progress(done)

        return evaluate(*args, progress=told, **how)

    monkeypatch.setattr(run_module, "evaluate", interrupted)
    steps = [
        text.partition(":")[0].removesuffix(f" in {stopped.folder.resolve() / 'checkpoints'}")
        for text in until_done(stopped, setup)
    ]
    assert steps == ["that before the first step", "saved after step 3", "saved after step 6"]
    monkeypatch.undo()
    assert_same_run(config, stopped, setup)


@pytest.mark.parametrize("where", [pytest.param("collect", marks=pytest.mark.slow), "update"])
def test_sigterm_with_rollouts_of_an_older_policy_in_flight(where, stale, setup, result, monkeypatch):
    """They are part of the checkpoint, so that what follows is not sampled from a newer policy."""
    config, whole = stale
    stopped = dataclasses.replace(config, output=config.output.parent / f"stale, stopped in {where}")
    monkeypatch.setattr(run_module, where, at_every_second(getattr(run_module, where), []))
    assert len(until_done(stopped, setup, before=result.before)) == {"collect": 4, "update": 5}[where]
    monkeypatch.undo()
    assert [line["importance_weight"] != pytest.approx(1, abs=1e-5) for line in whole.metrics] == [0, 1, 1, 1, 0]
    assert_same_run(config, stopped, setup)


def test_where_several_processes_run_jax_says_at_which_step_they_stop(config, setup, result, monkeypatch):
    """It is asked once before each step, and listens for signals itself."""
    stopped, asked = elsewhere(config, "together"), []
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    with monkeypatch.context() as told:
        told.setattr(
            preemption.multihost_utils, "reached_preemption_sync_point", lambda step: asked.append(step) or step == 4
        )
        handlers = []
        told.setattr(
            run_module,
            "collect",
            at_every_second(run_module.collect, [1], lambda: handlers.append(signal.getsignal(signal.SIGTERM))),
        )
        with pytest.raises(Preempted, match="saved after step 3 in"):
            train(stopped, setup, before=result.before)
    assert [asked.index(step) for step in (1, 2, 3, 4)] == sorted(asked.index(step) for step in (1, 2, 3, 4))
    assert handlers == [signal.SIG_DFL] * 2
    assert until_done(stopped, setup) == []
    assert_same_run(config, stopped, setup)


def test_a_finished_run_ends_at_once(config, setup, result, monkeypatch):
    without = elsewhere(config, "without checkpoints", steps=1, checkpoint_every=0, evaluate_every=0)
    train(without, setup, before=result.before)
    monkeypatch.delattr(run_module, "update")
    monkeypatch.delattr(run_module, "evaluate")
    for finished in (config, without):
        before = {file: file.read_bytes() for file in finished.folder.glob("*.jsonl")}
        assert len(train(finished, setup, resume=True).metrics) == finished.steps
        assert {file: file.read_bytes() for file in before} == before


def test_a_damaged_checkpoint_costs_the_steps_since_the_one_before(config, setup, result, monkeypatch, capsys):
    part = elsewhere(config, "damaged", steps=4)
    train(part, setup, before=result.before)
    (part.folder / "evaluations" / "step_000004.json").unlink()
    file = max((part.folder / "checkpoints" / "4").rglob("d/*"), key=lambda file: file.stat().st_size)
    file.write_bytes(file.read_bytes()[:-1])
    whole = dataclasses.replace(part, steps=6)
    train(whole, setup, resume=True)
    said = capsys.readouterr().err
    assert "the checkpoint of step 4" in said
    assert "resumed after step 2" in said
    assert_same_run(config, whole, setup)


def test_a_folder_of_an_earlier_version_is_resumed(config, setup, result):
    """Its run.json lacks what was not known then, which counts as its default."""
    part = elsewhere(config, "earlier", steps=4)
    train(part, setup, before=result.before)
    (part.folder / "evaluations" / "step_000004.json").unlink()
    file = part.folder / "run.json"
    known = json.loads(file.read_text())
    for name in ("max_skipped_in_a_row", "checkpoint_folder", "packing", "remat"):
        del known[name]
    del known["rollout"]["int8_cache"]
    file.write_text(json.dumps(known))
    assert read_config(part.folder) == part
    with pytest.raises(UserError, match=r"remat is 'full', but the run in .* has 'none'"):
        train(dataclasses.replace(part, remat="full"), setup, resume=True)
    whole = dataclasses.replace(part, steps=6)
    train(whole, setup, resume=True)
    assert_same_run(config, whole, setup)


def test_checkpoints_elsewhere(config, setup, result, tmp_path):
    """They are resumed from where the run's own folder was lost, and another run keeps away from them."""
    part = elsewhere(config, "apart", steps=2, checkpoint_folder=str(tmp_path / "kept"), evaluate_every=0)
    train(part, setup, before=result.before)
    assert not (part.folder / "checkpoints").exists()
    other = dataclasses.replace(part, output=part.output.parent / "another", steps=4)
    with pytest.raises(UserError, match=r"checkpoint_folder is '.*kept': it holds another run's checkpoints"):
        train(other, setup)
    with pytest.raises(UserError, match=r"objective is 'group_mean', but the checkpoint of step 2 in .* has 'sign'"):
        train(elsewhere(other, "third", objective="group_mean"), setup, resume=True)
    assert [line["step"] for line in train(other, setup, resume=True).metrics] == [3, 4]
    with pytest.raises(UserError, match=r"output is 'gs:/bucket/run': accepted is a local folder; checkpoint_folder"):
        dataclasses.replace(part, output=run_module.Path("gs://bucket/run"))


def command(config):
    names = (
        "model steps learning_rate temperature evaluate_every evaluation_questions evaluation_batch checkpoint_every "
        "output"
    )
    program = "from experiments.train import main; from experiments.command import run; run(main)"
    flags = [word for name in names.split() for word in (f"--{name.replace('_', '-')}", str(getattr(config, name)))]
    return [sys.executable, "-c", program, "smollm2_arithmetic", *flags, "--resume"]


def start(config):
    return subprocess.Popen(command(config), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def wait_for(process, ready):
    """Until `ready`; False when the process ended before."""
    deadline = time.monotonic() + 300
    while not ready():
        if process.poll() is not None:
            return False
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return True


def is_saving(config):
    return any("tmp" in path.name for path in (config.folder / "checkpoints").glob("*"))


def end(process, number):
    """Its exit status after the signal."""
    try:
        os.kill(process.pid, number)
        return process.wait(300)
    finally:
        process.kill()
        process.wait()


def test_killed_in_a_save(config, setup, result):
    """A process of the command line that dies while it writes a checkpoint."""
    killed = elsewhere(config, "killed")
    process = start(killed)
    assert wait_for(process, functools.partial(is_saving, killed)), "ended before it could be killed"
    assert end(process, signal.SIGKILL) == -signal.SIGKILL
    train(killed, setup, resume=True)
    assert_same_run(config, killed, setup)


@pytest.mark.slow
def test_twenty_runs_killed_at_any_moment(config, setup):
    """Twelve steps; the first ten by SIGKILL, the others by SIGTERM, each twice, every third time within a save."""
    chance = random.Random(0)
    whole = elsewhere(config, "twelve", steps=12)
    train(whole, setup)
    started = time.monotonic()
    assert start(elsewhere(whole, "timed")).wait(600) == 0
    seconds = time.monotonic() - started
    kills, statuses = 0, []
    for number in range(20):
        killed = elsewhere(whole, f"killed {number}")
        signal_number = signal.SIGKILL if number < 10 else signal.SIGTERM
        for attempt in range(2):
            process = start(killed)
            until = time.monotonic() + chance.uniform(0, seconds)
            if (number + attempt) % 3 == 0:
                running = wait_for(process, functools.partial(is_saving, killed))
            else:
                running = wait_for(process, lambda until=until: time.monotonic() > until)
            if running:
                statuses.append(end(process, signal_number))
                kills += 1
        while (status := start(killed).wait(600)) != 0:
            raise AssertionError(f"ended with {status}")
        assert_same_run(whole, killed, setup)
    print(f"{kills} kills in {seconds:.0f} s runs, exit statuses {sorted(set(statuses))}")
    assert kills >= 20
    # Before the program's first line, while Python still imports, SIGTERM has its default.
    assert set(statuses) <= {-signal.SIGKILL, 75, -signal.SIGTERM, 0}
    assert 75 in statuses


def test_a_log_that_cannot_be_written_ends_the_run_and_does_not_hang(config, setup, result, monkeypatch):
    full = elsewhere(config, "full disk")
    limits, write = resource.getrlimit(resource.RLIMIT_FSIZE), RunFolder.write_step

    def fill(folder, step, *figures):
        if step == 4:
            resource.setrlimit(resource.RLIMIT_FSIZE, ((folder.path / "metrics.jsonl").stat().st_size + 10, limits[1]))
        write(folder, step, *figures)

    monkeypatch.setattr(RunFolder, "write_step", fill)
    try:
        with pytest.raises(RunStopped, match=r"could not be written: File too large"):
            train(full, setup, before=result.before)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    monkeypatch.undo()
    train(full, setup, resume=True)
    assert_same_run(config, full, setup)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own, for those who may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("mounting a file system is not permitted")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_disk_without_room_or_rights_is_known_before_the_first_step(config, setup, small_disk):
    with pytest.raises(UserError, match=r"with 0\.0 GB free: 4 checkpoints of 0\.0 GB are kept .*keep_checkpoints"):
        train(dataclasses.replace(config, output=small_disk / "run", steps=20), setup)
    assert not (small_disk / "run" / "metrics.jsonl").exists()
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(UserError, match=r"output is .*Read-only file system; accepted is a folder that can be written"):
        train(dataclasses.replace(config, output=small_disk / "other"), setup)
    with pytest.raises(UserError, match=r"checkpoint_folder is .*Read-only file system; accepted"):
        train(elsewhere(config, "read-only", checkpoint_folder=str(small_disk / "kept")), setup)
