"""The rollouts of one step, sampled again until enough groups say something (DAPO's dynamic sampling)."""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from rlvr_jax.evaluation import GradedRollouts, Pending
from rlvr_jax.sharding import named_sharding


@dataclasses.dataclass(frozen=True)
class Collected:
    """What one step samples and what it trains on."""

    graded: GradedRollouts
    """The P groups to train on."""
    rewards: np.ndarray
    """`[N, G]` of all groups that were sampled, N a multiple of P."""
    tokens: int
    """Sampled in all groups."""


def collect(
    pending: Pending,
    dispatch: Callable[[], Pending],
    *,
    prompts: int,
    rollouts: int,
    mesh: Mesh,
) -> Collected:
    """Grades `pending`, of `prompts` rows, and as many again by `dispatch` until so many of them have mixed groups.

    With `rollouts=1` every group is taken as it comes. When the `rollouts` in all run out, uniform groups fill the
    places that are left, so that shapes stay the same.
    """
    parts = [pending.graded()]
    while True:
        rewards = np.concatenate([part.rewards for part in parts])
        mixed = rewards.min(-1) < rewards.max(-1)
        if mixed.sum() >= prompts or len(parts) == rollouts:
            break
        parts.append(dispatch().graded())
    tokens = int(sum(part.lengths.sum() for part in parts))
    if len(parts) == 1:
        return Collected(parts[0], rewards, tokens)
    chosen = np.sort(np.argsort(~mixed, kind="stable")[:prompts])
    return Collected(_choose(parts, chosen, mesh), rewards, tokens)


def _choose(parts: Sequence[GradedRollouts], chosen: np.ndarray, mesh: Mesh) -> GradedRollouts:
    sharding = named_sharding(mesh, ("batch",))

    def on_device(*arrays: jax.Array) -> jax.Array:
        return jax.device_put(jnp.concatenate(arrays)[chosen], sharding)

    def on_all_hosts(name: str) -> np.ndarray:
        return np.concatenate([getattr(part, name) for part in parts])[chosen]

    groups = [group for part in parts for group in zip(part.rows, part.completions, part.verdicts, strict=True)]
    sampled = np.cumsum([0, *(len(part.outcomes) for part in parts)])
    places = np.concatenate([first + part.places for first, part in zip(sampled, parts, strict=False)])
    here = dict(zip(places.tolist(), groups, strict=True))
    kept = [i for i, place in enumerate(chosen.tolist()) if place in here]
    rows, completions, verdicts = ([here[chosen[i]][part] for i in kept] for part in range(3))
    return GradedRollouts(
        rows,
        np.array(kept, int),
        jax.tree.map(on_device, *(part.prompts for part in parts)),
        jax.tree.map(on_device, *(part.rollouts for part in parts)),
        completions,
        verdicts,
        on_all_hosts("outcomes"),
        on_all_hosts("lengths"),
        on_all_hosts("truncated"),
        {name: sum(part.seconds[name] for part in parts) for name in parts[0].seconds},
    )
