"""Mesh sizes and logical axes."""

import jax
import pytest
from jax.sharding import PartitionSpec

from rlvr_jax.errors import UserError
from rlvr_jax.sharding import MeshShape, batch_shards, make_mesh, partition_spec


def test_the_rest_of_the_devices():
    mesh = make_mesh(MeshShape(data=-1, fsdp=2, tensor=2))
    assert dict(mesh.shape) == {"data": 2, "fsdp": 2, "tensor": 2}
    assert batch_shards(mesh) == 4


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (
            MeshShape(data=16),
            "mesh is data=16, fsdp=1, tensor=1: the product must be the number of devices, which is 8",
        ),
        (MeshShape(data=-1, fsdp=3), "the product must be the number of devices, which is 8"),
        (MeshShape(data=-1, fsdp=-1), "at most one -1"),
        (MeshShape(data=0), "accepted are positive sizes"),
    ],
)
def test_sizes_that_do_not_fit_name_the_numbers(shape, message):
    with pytest.raises(UserError, match=message):
        make_mesh(shape, jax.devices())


def test_colliding_axes_are_an_error():
    assert partition_spec(("layers", "heads", "embed")) == PartitionSpec(None, "tensor", "fsdp")
    with pytest.raises(ValueError, match="collide on one mesh axis"):
        partition_spec(("heads", "mlp"))
