"""Many hosts that run one program: how they meet, which rows of a batch each has, and how all come to know the same.

A host is one JAX process. Every host calls the same functions in the same order; each reads and verifies a part of the
rows, and what decides how the program goes on is the same on all of them.
"""

import contextlib
import importlib.util
import itertools
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh
from jaxtyping import Bool, Int, PyTree, Shaped

from rlvr_jax.errors import UserError
from rlvr_jax.records import AnyArray
from rlvr_jax.sharding.mesh import batch_shards, named_sharding

HEARTBEAT_SECONDS = 30
"""A host that was not heard of for so long is given up, and with it the run on all others."""


PATIENCE_SECONDS = 3600
"""A host that is alive is waited for so long."""

_barriers = itertools.count()


def join_hosts() -> None:
    """Joins the other hosts that the environment tells of; without any, this process stays alone.

    On Cloud TPU by its metadata, under Slurm and Open MPI by their variables, elsewhere by JAX_COORDINATOR_ADDRESS
    (host:port of process 0), JAX_NUM_PROCESSES and JAX_PROCESS_ID. Must come before any device is touched. Raises
    UserError for variables that are not understood, or hosts that are not met.
    """
    given = {name: os.environ.get(name) for name in ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")}
    arguments: dict[str, Any] = {
        "heartbeat_timeout_seconds": HEARTBEAT_SECONDS,
        # One that has failed waits so long for the others, which then learn of it.
        "shutdown_timeout_seconds": HEARTBEAT_SECONDS,
    }
    if any(given.values()):
        _join(arguments | _explicit(given))
    elif any(int(os.environ.get(name, "1")) > 1 for name in ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")):
        _join(arguments)
    elif _on_tpu():
        try:
            jax.distributed.initialize(**arguments)
        # A TPU outside Google's own machines has no metadata: what fails then is of many kinds. Its runtime knows.
        except Exception as error:
            if jax.process_count() > 1:
                raise UserError(f"the {jax.process_count()} hosts of this TPU did not meet: {_line(error)}") from error


def _explicit(given: dict[str, str | None]) -> dict[str, Any]:
    if missing := [name for name, value in given.items() if not value]:
        raise UserError(f"{missing[0]} is not set: accepted are all of {', '.join(given)}, or none")
    address, *numbers = given.values()
    if not all(number.isdecimal() for number in numbers) or int(numbers[1]) >= int(numbers[0]) or ":" not in address:
        described = ", ".join(f"{name}={value}" for name, value in given.items())
        raise UserError(
            f"{described}: accepted are HOST:PORT, the number of processes, and this one's number, from 0 on"
        )
    return {
        "coordinator_address": address,
        "num_processes": int(numbers[0]),
        "process_id": int(numbers[1]),
        # All is said; another answer of a cluster around it is not asked for.
        "cluster_detection_method": "deactivate",
    }


def _join(arguments: dict[str, Any]) -> None:
    try:
        jax.distributed.initialize(**arguments)
    except (RuntimeError, ValueError) as error:
        raise UserError(f"the hosts did not meet: {_line(error)}") from error


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _on_tpu() -> bool:
    platforms = os.environ.get("JAX_PLATFORMS", "")
    chips = [*Path("/dev").glob("accel*"), *Path("/dev").glob("vfio/[0-9]*")]
    return bool((not platforms or "tpu" in platforms) and chips and importlib.util.find_spec("libtpu"))


def has_other_hosts() -> bool:
    """Whether `join_hosts` met any; touches no device where it met none."""
    return jax.distributed.is_initialized() and jax.process_count() > 1


def is_first_host() -> bool:
    """Whether this is the one host that writes what is written once, and speaks to the user."""
    return jax.process_index() == 0


def wait_for_hosts(what: str) -> None:
    """Returns when every host has come here; `what` names the place.

    By the coordination service: collectives on CPU give up after half a minute, and a host may have to fetch a model.
    """
    from orbax.checkpoint import multihost  # heavy, and loaded by then

    # A key serves once.
    multihost.get_barrier_sync_fn()(key=f"rlvr_jax: {what} ({next(_barriers)})", timeout_ms=PATIENCE_SECONDS * 1000)


def check_batch(mesh: Mesh, size: int) -> None:
    """Raises UserError for a number of rows that the mesh cannot share equally."""
    if size % batch_shards(mesh):
        raise UserError(
            f"prompts sampled together are {size}: accepted is a multiple of data x fsdp ({batch_shards(mesh)})"
        )


def own_rows(mesh: Mesh, size: int) -> Int[np.ndarray, " own"]:
    """Places, among the `size` rows of a batch, of those that lie on this host's devices, in order.

    A share of the batch whose devices belong to several hosts (tensor parallelism across hosts) is in all of theirs.
    Raises as `check_batch`.
    """
    check_batch(mesh, size)
    shares = _hosts_of_shares(mesh)
    mine = [share for share, hosts in enumerate(shares) if jax.process_index() in hosts]
    return np.arange(size).reshape(len(shares), -1)[mine].reshape(-1)


def judged_here(mesh: Mesh, size: int) -> Bool[np.ndarray, " size"]:
    """Which rows of a batch this host verifies: every row has one host that does, among those it lies on."""
    shares = _hosts_of_shares(mesh)
    rows = size // len(shares)
    return np.array([hosts[i % len(hosts)] == jax.process_index() for hosts in shares for i in range(rows)], bool)


def _hosts_of_shares(mesh: Mesh) -> list[list[int]]:
    """Of each share of the batch, in order, the hosts of its devices."""
    shares = mesh.devices.reshape(batch_shards(mesh), -1)
    return [sorted({device.process_index for device in devices}) for devices in shares]


def batch_size(mesh: Mesh, own: int) -> int:
    """Rows of a whole batch of which this host has `own`."""
    shares = _hosts_of_shares(mesh)
    return own * len(shares) // sum(jax.process_index() in hosts for hosts in shares)


def batch_array(mesh: Mesh, own: PyTree) -> PyTree:
    """Arrays over all rows of a batch, of the rows that `own_rows` gives to each host, on the devices."""
    sharding = named_sharding(mesh, ("batch",))

    def placed(rows: AnyArray) -> jax.Array:
        shape = (batch_size(mesh, len(rows)), *rows.shape[1:])
        return jax.make_array_from_process_local_data(sharding, rows, shape)

    return jax.tree.map(placed, own)


def replicated_array(mesh: Mesh, values: PyTree) -> PyTree:
    """Arrays that are whole on every device; each host must give the same.

    Without asking the others, as `device_put` would: what sets up a run may end on one host alone (see `agreed`).
    """
    sharding = named_sharding(mesh)
    return jax.tree.map(lambda x: jax.make_array_from_process_local_data(sharding, np.asarray(x), x.shape), values)


def own_values(array: jax.Array) -> np.ndarray:
    """The rows of a batch on the devices that `own_rows` gives to this host; waits for them, and for no other host."""
    if array.is_fully_addressable:
        return np.asarray(array)
    shares = {shard.index[0].start or 0: shard.data for shard in array.addressable_shards}
    return np.concatenate([np.asarray(shares[start]) for start in sorted(shares)])


def all_rows(values: Shaped[np.ndarray, "own ..."], places: np.ndarray, size: int) -> Shaped[np.ndarray, "size ..."]:
    """The numbers of all hosts' rows, on every host. Each of `size` places must be one host's."""
    whole = np.zeros((size, *values.shape[1:]), values.dtype)
    whole[places] = values
    if jax.process_count() == 1:
        return whole
    return multihost_utils.process_allgather(whole).sum(0, dtype=values.dtype)


def all_of(value: Any) -> list[Any]:
    """What every host gives, in their order, on every host: anything that JSON can hold."""
    if jax.process_count() == 1:
        return [value]
    text = json.dumps(value).encode()
    sizes = multihost_utils.process_allgather(np.int32(len(text)))
    # A power of two: every width is a program of its own.
    padded = np.zeros(1 << int(sizes.max() - 1).bit_length(), np.uint8)
    padded[: len(text)] = np.frombuffer(text, np.uint8)
    texts = multihost_utils.process_allgather(padded)
    return [json.loads(row[:size].tobytes()) for row, size in zip(texts, sizes, strict=True)]


@contextlib.contextmanager
def agreed() -> Iterator[None]:
    """A UserError on one host becomes one on all. The first host raises it, the others end in silence.

    What is done within must not wait for other hosts.
    """
    problem = None
    try:
        yield
    except UserError as error:
        problem = error
    wait_for_hosts("agreed")
    said = all_of(None if problem is None else str(problem))
    if not any(said):
        return
    if not is_first_host():
        sys.exit(2)
    if problem is not None:
        raise problem
    host = next(number for number, text in enumerate(said) if text)
    raise UserError(f"{said[host]} (on host {host} of {len(said)})")
