"""Arrays of a run by shape, type and place alone: what it keeps, and what its programs are given."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from rlvr_jax.models import ModelConfig, abstract_params, param_shardings
from rlvr_jax.models.lora import abstract_adapters
from rlvr_jax.records import Batch, Prompts, Rollouts
from rlvr_jax.sampling import Request
from rlvr_jax.sharding import AnyMesh, named_sharding
from rlvr_jax.training import TrainConfig, make_optimizer
from rlvr_jax.training.setup import optimizer_settings
from rlvr_jax.training.state import abstract_state, policy_params


@dataclasses.dataclass(frozen=True)
class Lengths:
    """Tokens, of which a run learns the first two from its data."""

    prefix: int
    prompt: int
    completion: int


@dataclasses.dataclass(frozen=True)
class Kept:
    """What a run keeps from step to step, as trees of `jax.ShapeDtypeStruct`."""

    state: Any
    """A `TrainState`."""
    reference: Any
    """The first policy's weights, where a KL or adapters need them, or None."""
    sampled: Any
    """The weights that are sampled from."""
    is_copy: bool
    """Whether these are arrays of their own: with adapters, or on a mesh of their own."""

    def bytes_beside_sampling(self) -> float:
        """Of one device: what stays while it samples, without the weights that are sampled from."""
        return device_bytes((self.state, self.reference)) - (0 if self.is_copy else device_bytes(self.state.params))


def kept_arrays(config: TrainConfig, model: ModelConfig, mesh: AnyMesh, decode_mesh: AnyMesh) -> Kept:
    """Of a run that updates on `mesh` and samples on `decode_mesh`."""
    params = jax.tree.map(with_sharding, abstract_params(model), param_shardings(model, mesh))
    trained = abstract_adapters(model, config.lora) if config.lora else abstract_params(model)
    start = config.resolved_objective.start
    memory = None if start is None else jax.eval_shape(start)
    state = abstract_state(model, make_optimizer(optimizer_settings(config)), trained, mesh, memory, config.lora)
    reference = params if config.kl_coefficient or config.lora else None
    sampled = jax.tree.map(
        with_sharding,
        jax.eval_shape(lambda t, r: policy_params(t, r, config.lora, config.compute_dtype), trained, reference),
        param_shardings(model, decode_mesh),
    )
    return Kept(state, reference, sampled, bool(config.lora) or decode_mesh != mesh)


def with_sharding(x: jax.ShapeDtypeStruct, sharding: Any) -> jax.ShapeDtypeStruct:
    """The same array, placed."""
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)


def batch_arrays(config: TrainConfig, mesh: AnyMesh, lengths: Lengths) -> Batch:
    """What an update is given."""
    groups = (config.prompts_per_step, config.samples_per_prompt)
    rows = named_sharding(mesh, ("batch",))

    def array(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=rows)

    prompts = _record(
        Prompts,
        tokens=array(jnp.int32, groups[0], lengths.prompt),
        mask=array(jnp.bool, groups[0], lengths.prompt),
        ids=array(jnp.uint32, groups[0]),
    )
    per_token = array(jnp.float32, *groups, lengths.completion)
    mask = array(jnp.bool, *groups, lengths.completion)
    rollouts = _record(
        Rollouts,
        tokens=array(jnp.int32, *groups, lengths.completion),
        mask=mask,
        log_probabilities=per_token,
        policy_log_probabilities=per_token,
        entropies=per_token,
        truncated=array(jnp.bool, *groups),
    )
    several = config.resolved_objective.loss.importance_cap and config.updates_per_rollout > 1
    return _record(
        Batch,
        prompts=prompts,
        rollouts=rollouts,
        rewards=array(jnp.float32, *groups),
        advantages=per_token,
        loss_mask=mask,
        old_log_probabilities=per_token if several else None,
    )


def request_arrays(config: TrainConfig, mesh: AnyMesh, lengths: Lengths) -> Request:
    """What a sampling is given."""
    everywhere = named_sharding(mesh)

    def array(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=everywhere)

    return Request(
        prefix=array(jnp.int32, lengths.prefix),
        prompts=batch_arrays(config, mesh, lengths).prompts,
        stop_tokens=array(jnp.int32, 2),
        seed=array(jnp.uint32),
        step=array(jnp.int32),
        temperature=array(jnp.float32),
    )


def _record(kind: type, **fields: Any) -> Any:
    """A record of shapes, which its constructor would refuse where types are checked."""
    names = [field.name for field in dataclasses.fields(kind)]
    none = object.__new__(kind)
    for name in names:
        object.__setattr__(none, name, fields[name])
    return none


def device_bytes(tree: Any) -> float:
    """Of one device's shares."""
    return float(sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree)))
