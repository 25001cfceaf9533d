"""Mesh and logical-axis rules: one table decides where every weight and batch lives."""

from rlvr_jax.sharding.mesh import RULES, MeshShape, batch_shards, make_mesh, named_sharding, partition_spec

__all__ = ["RULES", "MeshShape", "batch_shards", "make_mesh", "named_sharding", "partition_spec"]
