"""Which rows each host has and verifies, on meshes of devices that belong to several hosts; how hosts meet."""

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils
from orbax.checkpoint import multihost

from rlvr_jax.errors import UserError
from rlvr_jax.sharding import (
    MeshShape,
    agreed,
    all_of,
    all_rows,
    batch_size,
    join_hosts,
    judged_here,
    make_mesh,
    own_rows,
)


class Device:
    """As much of a device as a mesh looks at."""

    def __init__(self, number, host):
        self.id, self.process_index, self.platform = number, host, "cpu"


# Four hosts of two devices; in the last order their devices alternate, as those of a torus may.
CASES = {
    "data": ((8, 1, 1), [0, 0, 1, 1, 2, 2, 3, 3], [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]),
    "mixed": ((2, 2, 2), [0, 0, 1, 1, 2, 2, 3, 3], [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]),
    "shared": ((1, 2, 4), [0, 0, 1, 1, 2, 2, 3, 3], [[*range(8)], [*range(8)], [*range(8, 16)], [*range(8, 16)]]),
    "tensor": ((1, 1, 8), [0, 0, 1, 1, 2, 2, 3, 3], [[*range(16)]] * 4),
    "alternating": (
        (8, 1, 1),
        [0, 1, 0, 1, 2, 3, 2, 3],
        [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]],
    ),
}


@pytest.fixture(params=CASES)
def case(request):
    shape, hosts, expected = CASES[request.param]
    devices = [Device(number, host) for number, host in enumerate(hosts)]
    return jax.sharding.Mesh(np.array(devices).reshape(shape), ("data", "fsdp", "tensor")), expected


def test_rows_follow_from_the_mesh(case, monkeypatch):
    mesh, expected = case
    judged = np.zeros(16, int)
    for host, rows in enumerate(expected):
        monkeypatch.setattr(jax, "process_index", lambda host=host: host)
        assert own_rows(mesh, 16).tolist() == rows
        assert batch_size(mesh, len(rows)) == 16
        here = judged_here(mesh, 16)
        assert set(np.flatnonzero(here)) <= set(rows)
        assert here.sum() == 4
        judged += here
    # Each completion has one judge.
    assert judged.tolist() == [1] * 16
    with pytest.raises(UserError, match="prompts sampled together are 9: accepted is a multiple of data x fsdp"):
        own_rows(make_mesh(MeshShape(), jax.devices()), 9)


@pytest.fixture
def others(monkeypatch):
    """Makes this process the second of three hosts; the others give what they are told to."""

    def give(first, third):
        monkeypatch.setattr(jax, "process_index", lambda: 1)
        monkeypatch.setattr(jax, "process_count", lambda: 3)
        answers = iter(zip(first, third, strict=True))

        def gather(mine):
            a, b = next(answers)
            return np.stack([a, mine, b])

        monkeypatch.setattr(multihost_utils, "process_allgather", gather)
        monkeypatch.setattr(multihost, "get_barrier_sync_fn", lambda: lambda **_: None)

    return give


def test_numbers_of_all_hosts_are_put_in_their_places(others):
    others([np.array([[0, 0], [7, 8], [0, 0]], np.int32)], [np.array([[0, 0], [0, 0], [5, 6]], np.int32)])
    found = all_rows(np.array([[1, 2]], np.int32), np.array([0]), 3)
    assert found.tolist() == [[1, 2], [7, 8], [5, 6]]
    assert found.dtype == np.int32


def padded(text, size):
    return np.frombuffer(text.encode().ljust(size, b"\0"), np.uint8)


def test_texts_of_different_lengths_are_exchanged(others):
    """Seven bytes at most, in arrays of eight."""
    others([np.int32(4), padded("null", 8)], [np.int32(7), padded('["abc"]', 8)])
    assert all_of([1]) == [None, [1], ["abc"]]


def test_an_error_of_another_host_ends_this_one_in_silence(others):
    others([np.int32(4), padded("null", 8)], [np.int32(5), padded('"bad"', 8)])
    with pytest.raises(SystemExit) as end, agreed():
        pass
    assert end.value.code == 2


def test_an_error_of_the_only_host_is_raised():
    with pytest.raises(UserError, match="mine"), agreed():
        raise UserError("mine")


@pytest.fixture
def joined(monkeypatch):
    """What `jax.distributed.initialize` is called with; no variable of a cluster is set."""
    calls = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda **arguments: calls.append(arguments))
    for name in ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"):
        monkeypatch.delenv(name, raising=False)
    for name in ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return calls


def test_hosts_meet_where_the_environment_says(joined, monkeypatch):
    join_hosts()
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    join_hosts()
    assert joined == []
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    join_hosts()
    limits = {"heartbeat_timeout_seconds": 30, "shutdown_timeout_seconds": 30}
    assert joined.pop() == limits
    for name, value in (("COORDINATOR_ADDRESS", "host:1234"), ("NUM_PROCESSES", "4"), ("PROCESS_ID", "3")):
        monkeypatch.setenv(f"JAX_{name}", value)
    join_hosts()
    named = {"coordinator_address": "host:1234", "num_processes": 4, "process_id": 3}
    assert joined == [{**limits, **named, "cluster_detection_method": "deactivate"}]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (("host:1", None, "0"), "JAX_NUM_PROCESSES is not set: accepted are all of JAX_COORDINATOR_ADDRESS, "),
        (("host:1", "2", "2"), "JAX_PROCESS_ID=2: accepted are HOST:PORT, the number of processes, and this one's"),
        (("host", "2", "1"), "JAX_COORDINATOR_ADDRESS=host, JAX_NUM_PROCESSES=2"),
        (("host:1", "two", "1"), "JAX_NUM_PROCESSES=two"),
    ],
)
def test_variables_that_do_not_fit_are_named(joined, monkeypatch, values, message):
    for name, value in zip(("COORDINATOR_ADDRESS", "NUM_PROCESSES", "PROCESS_ID"), values, strict=True):
        if value is not None:
            monkeypatch.setenv(f"JAX_{name}", value)
    with pytest.raises(UserError, match=message):
        join_hosts()
    assert not joined
