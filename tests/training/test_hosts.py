"""The training command on several hosts: the run of one device again, and its end when a host disappears."""

import dataclasses
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import optax
import pyarrow.parquet
import pytest
from conftest import TINY, relative, write_model

from rlvr_jax.models import abstract_params, open_model
from rlvr_jax.training import Checkpoints, make_optimizer
from rlvr_jax.training.optimizer import OptimizerSettings
from rlvr_jax.training.state import abstract_state

ROOT = Path(__file__).parents[2]
# Every token is a character, so that equal texts are equal tokens; four heads of keys and values.
MODEL = dataclasses.replace(TINY, num_kv_heads=4, vocab_size=44)
STEPS = 5


@pytest.fixture(scope="module")
def arguments(tmp_path_factory):
    """Of a run whose groups are sometimes mixed, so that dynamic sampling has something to choose."""
    folder = tmp_path_factory.mktemp("model and data")
    write_model(folder, MODEL)
    rows = [{"question": f"{i:02d}", "answer": f"#### {i % 3}"} for i in range(60)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:48]))
    (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[48:]))
    values = {
        "model": folder,
        "task": "rows:gsm8k",
        "data": folder,
        "prompt-format": "plain",
        "max-new-tokens": 6,
        "rollouts-per-step": 2,
        "learning-rate": 1e-2,
        "evaluate-every": 0,
        "evaluation-batch": 8,
        "checkpoint-every": 1,
        "keep-checkpoints": STEPS,
    }
    return ["smollm2_arithmetic", *(word for name, value in values.items() for word in (f"--{name}", str(value)))]


def start(hosts, devices, arguments, cwd=None):
    """The command on so many hosts of this machine, each with so many devices."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    flags = re.sub(r"(device_count=)\d+", rf"\g<1>{devices}", os.environ["XLA_FLAGS"])
    environment = os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": str(ROOT)}
    if hosts > 1:
        environment |= {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": str(hosts)}
    return [
        subprocess.Popen(
            [sys.executable, "-m", "experiments.train", *arguments],
            env=environment | ({"JAX_PROCESS_ID": str(host)} if hosts > 1 else {}),
            cwd=(cwd or [ROOT] * hosts)[host],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for host in range(hosts)
    ]


def ended(processes, timeout=500):
    """(exit status, standard output, standard error) of each."""
    try:
        said = [process.communicate(timeout=timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, *texts) for process, texts in zip(processes, said, strict=True)]


def run(hosts, devices, arguments):
    found = ended(start(hosts, devices, arguments))
    assert [status for status, *_ in found] == [0] * hosts, found
    return found


def state_after(step, folder, scratch):
    """The state that the run kept after a step, on one device."""
    model = open_model(str(folder_of(folder)))
    optimizer = make_optimizer(OptimizerSettings(1e-2, 5, 0.0, 0.9, 0.95, 1.0))
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1, 1), ("data", "fsdp", "tensor"))
    shutil.copytree(folder / "checkpoints" / str(step), scratch / "checkpoints" / str(step))
    with Checkpoints(scratch) as checkpoints:
        return checkpoints.restore(abstract_state(model.config, optimizer, abstract_params(model.config), mesh))


def folder_of(run_folder):
    return json.loads((run_folder / "run.json").read_text())["model"]


def completions(folder, step):
    rows = [
        row
        for file in sorted((folder / "completions").glob(f"step_{step:06d}*.parquet"))
        for row in pyarrow.parquet.ParquetFile(file).read().to_pylist()
    ]
    return sorted(rows, key=lambda row: (row["question_id"], row["sample"]))


def lines(folder, name="metrics.jsonl"):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def assert_same_run(folder, alone, scratch):
    for step in range(1, STEPS + 1):
        rows = completions(alone, step)
        assert len(rows) == 32
        assert completions(folder, step) == rows
    for step in (0, STEPS):
        file = Path("evaluations") / f"step_{step:06d}.json"
        assert (folder / file).read_bytes() == (alone / file).read_bytes()
    assert lines(folder) == [pytest.approx(line, rel=1e-3, abs=1e-5) for line in lines(alone)]
    first, first_alone = (state_after(1, each, scratch / name) for each, name in ((folder, "a1"), (alone, "b1")))
    of_gradients = relative(*(optax.tree.get(state.optimizer, "mu") for state in (first, first_alone)))
    assert of_gradients < 1e-5
    last, last_alone = (state_after(STEPS, each, scratch / name) for each, name in ((folder, "a"), (alone, "b")))
    difference = relative(last.params, last_alone.params)
    assert difference < 1e-4
    print(f"relative difference of gradients {of_gradients:.1e}, of parameters {difference:.1e}")
    assert relative(first.params, last.params) > 10 * difference
    assert int(last.cursor) == int(last_alone.cursor)


@pytest.fixture(scope="module")
def alone(arguments, tmp_path_factory):
    """One process with one device."""
    output = tmp_path_factory.mktemp("alone") / "run"
    run(1, 1, [*arguments, "--steps", str(STEPS), "--output", str(output)])
    return output


@pytest.fixture(scope="module")
def pair(arguments, tmp_path_factory):
    """(run folder, what the hosts said) of two hosts with two devices each."""
    output = tmp_path_factory.mktemp("pair") / "run"
    mesh = ["--mesh.data", "1", "--mesh.fsdp", "2", "--mesh.tensor", "2"]
    return output, run(2, 2, [*arguments, *mesh, "--steps", str(STEPS), "--output", str(output)])


def test_two_hosts_do_what_one_device_does(pair, alone, tmp_path):
    folder, _ = pair
    assert_same_run(folder, alone, tmp_path)
    # Some groups were mixed, and more were sampled than trained on.
    assert any(line["degeneracy"] < 1 and line["sampled_groups"] == 16 for line in lines(folder))
    # The first step that samples only once has nothing to put together, the first that samples twice has.
    assert [line["compilations"] for line in lines(folder, "timings.jsonl")[2:]] == [0] * (STEPS - 2)


def test_files_are_written_and_lines_are_said_once(pair):
    folder, ((_, shown, progress), (_, silent, other)) = pair
    assert [line["step"] for line in lines(folder)] == list(range(1, STEPS + 1))
    assert len(list((folder / "tensorboard").iterdir())) == 1
    assert "kept in" in shown
    assert "held-out accuracy" in progress
    assert "kept in" not in silent
    # XLA's own remarks on a program are each host's.
    assert not [line for line in other.splitlines() if not re.match(r"[WI]\d{4} ", line)]
    each = [len(completions(folder, step)) for step in range(1, STEPS + 1)]
    assert each == [32] * STEPS
    assert len(list((folder / "completions").iterdir())) == 2 * STEPS
    assert not list(folder.rglob("*.part"))


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(8, 1, 1), (1, 8, 1), (2, 2, 2), (1, 2, 4)], ids=str)
def test_four_hosts_do_what_one_device_does(shape, arguments, alone, tmp_path):
    mesh = [
        word
        for axis, size in zip(("data", "fsdp", "tensor"), shape, strict=True)
        for word in (f"--mesh.{axis}", str(size))
    ]
    output = tmp_path / "run"
    run(4, 2, [*arguments, *mesh, "--steps", str(STEPS), "--output", str(output)])
    assert_same_run(output, alone, tmp_path)


def lose_one(hosts, which, file, by):
    """Sends a host that signal as soon as there is the file; seconds until the other ended, and what it said."""
    deadline = time.monotonic() + 300
    while not file.exists():
        assert all(host.poll() is None for host in hosts), ended(hosts)
        assert time.monotonic() < deadline
        time.sleep(0.01)
    hosts[which].send_signal(by)
    lost = time.monotonic()
    ((status, _, error),) = ended([hosts[1 - which]], 90)
    seconds = time.monotonic() - lost
    hosts[which].kill()
    ended([hosts[which]])
    return seconds, status, error


@pytest.mark.slow
# A host that is frozen keeps its connections: it is missed for its heartbeats alone, as one whose network is gone.
@pytest.mark.parametrize(
    ("which", "by"),
    [(0, signal.SIGKILL), (1, signal.SIGKILL), (1, signal.SIGSTOP)],
    ids=["first killed", "second killed", "second frozen"],
)
def test_a_lost_host_ends_the_other_and_both_resume_to_the_same_bits(which, by, arguments, tmp_path):
    endless = [*arguments, "--rollouts-per-step", "1", "--checkpoint-every", "4", "--steps", "24"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run(2, 1, [*endless, "--output", str(whole)])
    again = [*endless, "--output", str(killed), "--resume"]
    file = killed / "completions" / "step_000010_host_001.parquet"
    seconds, status, error = lose_one(start(2, 1, again), which, file, by)
    print(f"the other ended after {seconds:.1f} s with status {status}")
    assert seconds < 60
    assert status not in (0, 2, None)
    assert f"error: host {1 - which} of 2 ends" in error or "another task died" in error
    assert len(lines(killed)) < 24
    run(2, 1, again)
    for name in ("metrics.jsonl", "evaluations/step_000024.json"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes()
    last, last_whole = (state_after(24, each, tmp_path / f"{each.name} copy") for each in (killed, whole))
    jax.tree.map(np.testing.assert_array_equal, last, last_whole)


def test_an_error_of_one_host_ends_all_and_is_said_once(arguments, tmp_path):
    """The second host has no model where the first has one."""
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    (here / "model").symlink_to(arguments[2])
    mine = [arguments[0], "--model", "./model", *arguments[3:], "--output", str(tmp_path / "run")]
    (first, _, said), (second, _, silent) = ended(start(2, 1, mine, cwd=(here, there)))
    assert (first, second) == (2, 2)
    assert said.startswith("error: model is './model': no such file or folder")
    assert "(on host 1 of 2)" in said
    assert not silent
    assert not (tmp_path / "run").exists()
