"""TPU chips by their published figures, and topologies of them without any being there."""

import dataclasses
import importlib.util
import math
import os
import re
from collections.abc import Mapping
from types import MappingProxyType

import jax

from rlvr_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Chip:
    """Peak figures of one chip."""

    hbm_bytes: float
    flops: float
    """A second, bfloat16."""
    hbm_bandwidth: float
    """Bytes a second."""
    ici_bandwidth: float
    """Bytes a second that it sends through all its ports together: half of what is published for both directions."""
    source: str


CHIPS: Mapping[str, Chip] = MappingProxyType(
    {
        "v5e": Chip(16e9, 197e12, 819e9, 200e9, "https://docs.cloud.google.com/tpu/docs/v5e"),
        "v5p": Chip(95e9, 459e12, 2765e9, 600e9, "https://docs.cloud.google.com/tpu/docs/v5p"),
        "v6e": Chip(32e9, 918e12, 1638e9, 400e9, "https://docs.cloud.google.com/tpu/docs/v6e"),
    }
)
"""Per chip, from the tables "key specifications" of Google Cloud's pages: HBM capacity and bandwidth, peak compute
(bf16), bidirectional inter-chip interconnect bandwidth (400, 1,200 and 800 GB/s)."""


_LIBTPU = {
    # Else libtpu asks a cloud's metadata server which machine this is, and complains of every answer that it misses.
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-16",
    "TPU_WORKER_HOSTNAMES": "localhost",
    # Else one process alone may use it.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


def chip_of(topology: str) -> Chip:
    """Of a topology like v5e:4x4. Raises UserError for another kind or form."""
    found = re.fullmatch(r"(\w+):\d+(x\d+){1,2}", topology)
    if not found or found[1] not in CHIPS:
        raise UserError(
            f"topology is {topology!r}, accepted is one of {', '.join(CHIPS)} with its sides, like v5e:4x4 or v5p:2x2x2"
        )
    return CHIPS[found[1]]


def chips_in(topology: str) -> int:
    """Number of chips. Raises UserError as `chip_of`."""
    chip_of(topology)
    return math.prod(int(side) for side in topology.split(":")[1].split("x"))


def topology_devices(topology: str) -> list[jax.Device]:
    """Devices to compile for, of which none needs to exist. Raises UserError for what libtpu does not know."""
    chip_of(topology)
    if importlib.util.find_spec("libtpu") is None:
        raise UserError("libtpu, the TPU compiler, is not installed: accepted is pip install libtpu")
    # JAX looks for real devices in the first computation of a process; here it shall find the host alone.
    jax.config.update("jax_platforms", "cpu")
    # What was compiled for devices that are not there can be written to JAX's cache, but not read from it.
    jax.config.update("jax_enable_compilation_cache", False)
    for name, value in _LIBTPU.items():
        os.environ.setdefault(name, value)
    from jax.experimental import topologies

    sides = topology.split(":")[1].split("x")
    # A host of v5e and v6e holds 2 x 2 chips or more unless it is told otherwise.
    small = {"chips_per_host_bounds": [1, 1, 1]} if set(sides) == {"1"} else {}
    # libtpu ends the process over a flag of XLA that only other platforms have; its own are in LIBTPU_INIT_ARGS.
    os.environ.pop("XLA_FLAGS", None)
    try:
        return list(topologies.get_topology_desc(topology_name=topology, platform="tpu", **small).devices)
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"topology is {topology!r}, which libtpu refuses ({reason})") from None
