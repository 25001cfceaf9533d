"""The device mesh and the one table that lays logical axes on it."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from rlvr_jax.errors import UserError

RULES: Mapping[str, str | tuple[str, ...] | None] = MappingProxyType(
    {
        # activations: a batch axis (prompts) is split over everything that is not tensor parallel
        "batch": ("data", "fsdp"),
        # weights
        "embed": "fsdp",
        "vocab": "tensor",
        "heads": "tensor",
        "kv_heads": "tensor",
        "mlp": "tensor",
        "head_dim": None,
        "layers": None,
        # the product with the head, where an fsdp group shares its rows and splits the vocabulary
        "head_rows": "data",
        "head_vocab": ("tensor", "fsdp"),
    }
)
"""Logical axis to mesh axis (or axes); `None` means replicated."""


@dataclasses.dataclass(frozen=True)
class MeshShape:
    """Sizes of the mesh axes; at most one may be -1 for "the rest of the devices"."""

    data: int = -1
    """Replicas of the weights, each with its share of the prompts."""
    fsdp: int = 1
    """Shards of the weights' embed axis; also splits the prompts."""
    tensor: int = 1
    """Shards of heads, MLP and vocabulary."""


AnyMesh = Mesh | AbstractMesh
"""One of devices, or one to plan for."""


def make_mesh(shape: MeshShape, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh over all `devices` (default: all of JAX's). Raises UserError when the sizes do not fit them."""
    devices = list(jax.devices() if devices is None else devices)
    sizes = _sizes(shape, len(devices))
    return Mesh(np.array(devices).reshape(tuple(sizes.values())), tuple(sizes))


def planned_mesh(shape: MeshShape, devices: int) -> AbstractMesh:
    """As `make_mesh`, over so many devices that need not be there."""
    sizes = _sizes(shape, devices)
    return AbstractMesh(tuple(sizes.values()), tuple(sizes))


def _sizes(shape: MeshShape, devices: int) -> dict[str, int]:
    sizes = dataclasses.asdict(shape)
    described = ", ".join(f"{name}={size}" for name, size in sizes.items())
    free = [name for name, size in sizes.items() if size == -1]
    if len(free) > 1 or any(size < 1 and size != -1 for size in sizes.values()):
        raise UserError(f"mesh is {described}: accepted are positive sizes and at most one -1")
    fixed = math.prod(size for size in sizes.values() if size != -1)
    if free:
        sizes[free[0]] = devices // fixed
    if math.prod(sizes.values()) != devices:
        raise UserError(f"mesh is {described}: the product must be the number of devices, which is {devices}")
    return sizes


def batch_shards(mesh: AnyMesh) -> int:
    """How many shares the prompts of a batch are split into."""
    return mesh.shape["data"] * mesh.shape["fsdp"]


def partition_spec(axes: Sequence[str | None]) -> PartitionSpec:
    """Where an array with these logical axes lives. Raises ValueError if two of them collide on one mesh axis."""
    placed = [None if axis is None else RULES[axis] for axis in axes]
    used = [name for entry in placed if entry for name in ((entry,) if isinstance(entry, str) else entry)]
    if len(set(used)) < len(used):
        raise ValueError(f"logical axes {tuple(axes)} collide on one mesh axis: {placed}")
    return PartitionSpec(*placed)


def named_sharding(mesh: AnyMesh, axes: Sequence[str | None] = ()) -> NamedSharding:
    """`partition_spec` on a mesh; with no axes, replicated."""
    return NamedSharding(mesh, partition_spec(axes))
