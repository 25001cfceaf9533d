"""Mesh, hosts and logical-axis rules: one table decides where every weight and batch lives."""

from rlvr_jax.sharding.hosts import (
    agreed,
    all_of,
    all_rows,
    batch_array,
    batch_size,
    check_batch,
    has_other_hosts,
    is_first_host,
    join_hosts,
    judged_here,
    own_rows,
    own_values,
    replicated_array,
    wait_for_hosts,
)
from rlvr_jax.sharding.mesh import RULES, MeshShape, batch_shards, make_mesh, named_sharding, partition_spec

__all__ = [
    "RULES",
    "MeshShape",
    "agreed",
    "all_of",
    "all_rows",
    "batch_array",
    "batch_shards",
    "batch_size",
    "check_batch",
    "has_other_hosts",
    "is_first_host",
    "join_hosts",
    "judged_here",
    "make_mesh",
    "named_sharding",
    "own_rows",
    "own_values",
    "partition_spec",
    "replicated_array",
    "wait_for_hosts",
]
