"""`TrainState`: the whole truth of a run. Saving it and nothing else makes resume bit-exact."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Int, PyTree, UInt32

from rlvr_jax.models import LoraSettings, ModelConfig, adapted, param_shardings
from rlvr_jax.models.lora import adapter_shardings
from rlvr_jax.records import AnyArray, Rollouts, record
from rlvr_jax.sharding import AnyMesh, named_sharding


@record
class TrainState:
    """What an update reads and writes."""

    step: Int[AnyArray, ""]
    """Rollout steps done."""
    params: PyTree
    """What is trained: the policy's parameters, or adapters of frozen ones (see `policy_params`)."""
    optimizer: PyTree
    seed: UInt32[AnyArray, ""]
    """The base key: all sampling noise and the order of prompts follow from it and the step."""
    cursor: Int[AnyArray, ""]
    """Train rows consumed: the whole state of the data pipeline (`tasks.pipeline`)."""
    objective: PyTree = None
    """What an objective that remembers carries from step to step; None for the others."""
    ahead: PyTree = None
    """Rollouts of the next step, where an older policy sampled them (`staleness`); only in a checkpoint that was not
    planned, of a run that was told to stop."""


def policy_params(trained: PyTree, base: PyTree, lora: LoraSettings | None, dtype: str | None = None) -> PyTree:
    """The policy's parameters: `trained` itself, or with `lora` the frozen `base` joined with the trained adapters.

    `dtype`: see `adapted`.
    """
    return trained if lora is None else adapted(base, trained, lora, dtype)


def state_shardings(
    config: ModelConfig,
    optimizer: optax.GradientTransformation,
    params: PyTree,
    objective: PyTree,
    mesh: AnyMesh,
    lora: LoraSettings | None,
) -> TrainState:
    """The sharding of every leaf of a state; moments live where their weights do, all the rest everywhere."""
    replicated = named_sharding(mesh)
    of_params = param_shardings(config, mesh) if lora is None else adapter_shardings(config, lora, mesh)
    of_optimizer = optax.tree_utils.tree_map_params(
        optimizer,
        lambda _, sharding: sharding,
        jax.eval_shape(optimizer.init, params),
        of_params,
        transform_non_params=lambda _: replicated,
    )
    # Put together leaf by leaf: the constructor would reject shardings where arrays belong.
    structure = jax.tree.structure(_shapes(optimizer, params, objective))
    scalars = [replicated, replicated, jax.tree.map(lambda _: replicated, objective)]
    return jax.tree.unflatten(structure, jax.tree.leaves([replicated, of_params, of_optimizer, *scalars]))


def _shapes(optimizer: optax.GradientTransformation, params: PyTree, objective: PyTree) -> TrainState:
    return jax.eval_shape(lambda p, o: _new_state(p, jnp.uint32(0), o, optimizer), params, objective)


def _new_state(
    params: PyTree, seed: UInt32[AnyArray, ""], objective: PyTree, optimizer: optax.GradientTransformation
) -> TrainState:
    return TrainState(jnp.int32(0), params, optimizer.init(params), seed, jnp.int32(0), objective)


def init_state(
    params: PyTree,
    seed: int,
    *,
    config: ModelConfig,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    objective: PyTree = None,
    lora: LoraSettings | None = None,
) -> TrainState:
    """The state before the first step. Takes over `params`; do not use them afterwards.

    `objective` is the first state of an objective that remembers. With `lora`, `params` are its adapters.
    """
    shardings = state_shardings(config, optimizer, params, objective, mesh, lora)
    build = jax.jit(lambda p, seed, o: _new_state(p, seed, o, optimizer), out_shardings=shardings)
    return build(params, np.uint32(seed), objective)


def abstract_state(
    config: ModelConfig,
    optimizer: optax.GradientTransformation,
    params: PyTree,
    mesh: AnyMesh,
    objective: PyTree = None,
    lora: LoraSettings | None = None,
) -> Any:
    """Shapes, types and shardings of a state, to restore one into; `params` may be abstract."""
    shardings = state_shardings(config, optimizer, params, objective, mesh, lora)
    return jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        _shapes(optimizer, params, objective),
        shardings,
    )


def abstract_rollouts(prompts: int, samples: int, max_new_tokens: int, mesh: Mesh) -> Any:
    """Shapes, types and shardings of a step's rollouts, to restore `TrainState.ahead` into."""

    def zeros() -> Rollouts:
        tokens = jnp.zeros((prompts, samples, max_new_tokens), jnp.int32)
        real = tokens.astype(jnp.float32)
        return Rollouts(tokens, tokens > 0, real, real, real, tokens[..., 0] > 0)

    sharding = named_sharding(mesh, ("batch",))
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), jax.eval_shape(zeros))
