"""Whole runs as one compiled function: sample, verify, update, evaluate, for many seeds and arms side by side.

Runs that share a `Program` differ in numbers alone, so they are one `vmap`, split over all devices. Runs of equal seed
meet the same questions and the same sampling noise, whatever their arm.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int, PyTree, UInt32

from experiments.lab.policy import skill
from experiments.lab.task import END, Sums, right, well_formed
from rlvr_jax.models import ModelConfig
from rlvr_jax.objectives import Objective, rollout_signals
from rlvr_jax.records import Batch, Prompts, record
from rlvr_jax.sampling import Request, SamplingSettings, sample
from rlvr_jax.starvation import degeneracy
from rlvr_jax.training.optimizer import OptimizerSettings
from rlvr_jax.training.update import UpdateSettings, loss_and_gradients

Optimizer = Literal["adam", "sgd"]

_ADAM = (0.9, 0.95)
_WARMUP_STEPS = 5


@dataclasses.dataclass(frozen=True)
class Program:
    """What is compiled: runs of one program differ in `Runs` alone."""

    model: ModelConfig
    task: Sums
    objectives: tuple[Objective, ...]
    """With one loss, that of the first."""
    optimizer: Optimizer
    prompts: int
    samples: int
    steps: int
    evaluate_every: int


@record
class Runs:
    """The numbers of R runs."""

    seed: UInt32[Array, " R"]
    base: Int[Array, " R"]
    """Which of the stacked bases it starts from."""
    objective: Int[Array, " R"]
    """Which of the program's."""
    learning_rate: Float[Array, " R"]
    max_gradient_norm: Float[Array, " R"]


class Trace(NamedTuple):
    """What R runs show; on the host."""

    metrics: dict[str, Float[np.ndarray, "R steps"]]
    log_success: Float[np.ndarray, "R evaluations Q"]
    """Of held-out questions: before the first step, and every `evaluate_every` steps."""
    greedy: Float[np.ndarray, "R evaluations"]
    """Greedy accuracy on them."""


def simulate(bases: PyTree, runs: Runs, program: Program, devices: Sequence[jax.Device] | None = None) -> Trace:
    """All runs, from parameters of the bases stacked on a leading axis, split over `devices` (default: all)."""
    mesh = Mesh(np.array(jax.devices() if devices is None else devices), ("runs",))
    count = len(runs.seed)
    # The last run is repeated up to a number that devices can share.
    padded = jax.tree.map(lambda x: np.concatenate([x, x[-1:].repeat(-count % mesh.size, 0)]), jax.device_get(runs))
    trace = jax.device_get(_simulate(bases, padded, program=program, mesh=mesh))
    return jax.tree.map(lambda x: x[:count], trace)


@functools.partial(jax.jit, static_argnames=("program", "mesh"))
def _simulate(bases: PyTree, runs: Runs, *, program: Program, mesh: Mesh) -> Trace:
    everywhere, split = PartitionSpec(), PartitionSpec("runs")

    def on_device(bases: PyTree, runs: Runs) -> Trace:
        return jax.vmap(functools.partial(_one_run, program=program), (None, 0))(bases, runs)

    return jax.shard_map(on_device, mesh=mesh, in_specs=(everywhere, split), out_specs=split, check_vma=False)(
        bases, runs
    )


def _one_run(bases: PyTree, run: Runs, *, program: Program) -> Trace:
    base = jax.tree.map(lambda x: x[run.base], bases)
    train, held_out = map(jnp.asarray, program.task.split())
    optimizer = optax.scale_by_adam(*_ADAM) if program.optimizer == "adam" else optax.identity()

    def evaluate(params: PyTree) -> tuple[Array, Array]:
        found = skill(params, held_out, model=program.model, task=program.task)
        return found.log_success, found.greedy.mean()

    def step(carry: tuple, step: Array) -> tuple[tuple, dict[str, Array]]:
        params, state = carry
        key = jax.random.fold_in(jax.random.key(run.seed), step)
        questions = train[jax.random.randint(key, (program.prompts,), 0, len(train))]
        batch, metrics = roll_out(params, questions, run.seed, step, run.objective, program=program)
        gradients = gradients_of(params, batch, base, program=program)
        norm = optax.tree.norm(gradients)
        clip = jnp.minimum(1.0, run.max_gradient_norm / jnp.maximum(norm, 1e-30))
        updates, state = optimizer.update(jax.tree.map(lambda x: x * clip, gradients), state)
        rate = run.learning_rate * jnp.minimum(1.0, (step + 1) / _WARMUP_STEPS)
        params = jax.tree.map(lambda x, update: x - rate * update, params, updates)
        return (params, state), metrics | {"gradient_norm": norm}

    def stretch(carry: tuple, steps: Array) -> tuple[tuple, Any]:
        carry, metrics = jax.lax.scan(step, carry, steps)
        return carry, (metrics, evaluate(carry[0]))

    steps = jnp.arange(program.steps).reshape(-1, program.evaluate_every)
    _, (metrics, later) = jax.lax.scan(stretch, (base, optimizer.init(base)), steps)
    evaluations = jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), evaluate(base), later)
    return Trace(jax.tree.map(jnp.ravel, metrics), *evaluations)


def roll_out(
    params: PyTree,
    questions: Int[Array, " P"],
    seed: UInt32[Array, ""],
    step: Int[Array, ""],
    objective: Int[Array, ""],
    *,
    program: Program,
) -> tuple[Batch, dict[str, Array]]:
    """Samples, verifies and weighs G completions of each question; and what there is to say of them."""
    tokens = program.task.prompts(questions)
    # Questions may be drawn twice; the place in the run's stream is what addresses the noise.
    ids = step * program.prompts + jnp.arange(program.prompts)
    prompts = Prompts(tokens, jnp.ones(tokens.shape, bool), ids.astype(jnp.uint32))
    settings = SamplingSettings(program.model, samples=program.samples, max_new_tokens=program.task.length)
    request = Request(jnp.zeros(0, jnp.int32), prompts, jnp.array([END]), seed, step, jnp.float32(1.0))
    rollouts = sample(params, request, settings=settings)
    rewards = right(rollouts.tokens, rollouts.mask, program.task.answers(questions)).astype(jnp.float32)
    signals = rollout_signals(rewards, rollouts.log_probabilities, rollouts.entropies, rollouts.mask)

    def weigh(objective: Objective) -> tuple[Array, Array]:
        advantages, _ = objective.advantages(signals)
        wide = jnp.broadcast_to(advantages[..., None], rollouts.mask.shape)
        return wide, objective.loss_mask(rollouts.mask, rewards, rollouts.truncated)

    branches = [functools.partial(weigh, each) for each in program.objectives]
    advantages, loss_mask = branches[0]() if len(branches) == 1 else jax.lax.switch(objective, branches)
    groups = degeneracy(rewards)
    metrics = {
        "reward": rewards.mean(),
        "degeneracy": groups.degenerate,
        "degeneracy_predicted": groups.predicted,
        "all_wrong": groups.all_wrong,
        "all_right": groups.all_right,
        "truncated": rollouts.truncated.mean(),
        "well_formed": well_formed(rollouts.tokens, rollouts.mask).mean(),
        "entropy": rollouts.entropies.sum() / rollouts.mask.sum(),
    }
    return Batch(prompts, rollouts, rewards, advantages, loss_mask), metrics


def gradients_of(params: PyTree, batch: Batch, base: PyTree, *, program: Program) -> PyTree:
    """Of the program's loss; `base` is the reference of its KL."""
    unused = OptimizerSettings(0.0, 0, 0.0, *_ADAM, 1.0)
    settings = UpdateSettings(program.model, program.objectives[0].loss, unused)
    no_prefix, temperature = jnp.zeros(0, jnp.int32), jnp.float32(1.0)
    return loss_and_gradients(params, batch, no_prefix, temperature, base, settings=settings, rows=1)[2]
