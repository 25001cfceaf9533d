"""Every named objective: what it is, what it needs, and what it does with a group that is all wrong or all right.

python -m experiments.objectives
python -m experiments.objectives grpo sign --json

The last two columns are computed, not claimed: how far one on-policy step on an example batch pushes the log-likelihood
of the samples of a uniform group, in units in which plain REINFORCE pushes by the reward.
"""

import dataclasses
import math
import shutil
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import rich.box
import tyro
from rich.console import Console
from rich.table import Table

from experiments.command import parse, print_json, run
from rlvr_jax.objectives import OBJECTIVES, Objective, advantages, named_objective, rollout_signals

NEEDS = {
    "lengths": "lengths",
    "sequence_log_probabilities": "log-probs",
    "entropies": "entropies",
    "completion_mask": None,
    "greedy_rewards": "a greedy sample",
    "state": "memory",
    "divergence": "drift",
}
"""In words; None: every rollout has it."""


@dataclasses.dataclass(frozen=True)
class Objectives:
    """List objectives."""

    names: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Which; default: all."""
    json: bool = False
    """Print the table as one JSON object on the last line."""


# All wrong, all right, twice each (a greedy sample of theirs is wrong once and right once), and two mixed groups.
_REWARDS = np.array([[0] * 4, [0] * 4, [1] * 4, [1] * 4, [1, 0, 0, 0], [1, 1, 0, 0]], np.float32)
_LOG_PROBABILITIES = np.log(np.broadcast_to(np.array([0.8, 0.6, 0.4, 0.2], np.float32)[:, None], (6, 4, 2)))
_ENTROPIES = np.broadcast_to(np.array([0.2, 1.0], np.float32), (6, 4, 2))
_MASK = np.ones((6, 4, 2), bool)


def push(objective: Objective) -> np.ndarray:
    """`[6, 4]`: minus the derivative of the loss with respect to each sample's mean token log-probability, on-policy.

    Taken of the per-token loss summed over a sample, so that the aggregation's weights, which all samples share, stay
    out of it: under plain REINFORCE it is the advantage.
    """
    signals = rollout_signals(_REWARDS, _LOG_PROBABILITIES, _ENTROPIES, _MASK) | {
        "greedy_rewards": np.array([0, 1, 0, 1, 0, 1], np.float32),
        "divergence": np.zeros(6, np.float32),
    }
    state = advantages.start_beta_tracker(np.zeros(6), 0) if "divergence" in objective.needs else None
    if objective.start is not None:  # as after a first batch: an empty memory has nothing to say yet
        _, state = objective.advantages(signals, objective.start())
    of_samples, _ = objective.advantages(signals, state)
    tokens = of_samples if of_samples.ndim == 3 else jnp.broadcast_to(of_samples[..., None], _MASK.shape)
    # A mask per sample would change nothing: each sample's tokens are summed, then divided by their number.
    loss = dataclasses.replace(objective.loss, aggregation="token_mean")
    mask = objective.loss_mask(_MASK, _REWARDS, np.zeros((6, 4), bool))

    def total(log_probabilities: jax.Array) -> jax.Array:
        return loss(log_probabilities, _LOG_PROBABILITIES, tokens, mask, rewards=_REWARDS)[0]

    gradient = jax.grad(total)(jnp.asarray(_LOG_PROBABILITIES))
    return -np.asarray(gradient).sum(-1) / _MASK.shape[-1]


def describe(name: str) -> dict[str, Any]:
    """A row of the table, as plain JSON values."""
    objective = named_objective(name)
    pushes = push(objective)
    function = getattr(objective.advantage, "function", objective.advantage)
    return {
        "name": name,
        "family": function.__module__.rsplit(".", 1)[-1].replace("_", " "),
        "formula": objective.formula,
        "loss": objective.loss.name,
        "aggregation": objective.loss.aggregation,
        "needs": [NEEDS[need] for need in objective.needs if NEEDS[need]],
        "all_wrong": [float(pushes[:2].min()), float(pushes[:2].max())],
        "all_right": [float(pushes[2:4].min()), float(pushes[2:4].max())],
        "source": objective.source,
    }


def objectives_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(
        box=rich.box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        caption="r: reward, z: (r - mean) / std of the group, w: pi / pi_old, c: confidence. All wrong, all right: the "
        "push on samples of such a group (one number, or lowest ... highest where they differ), in an example batch of "
        "groups of four. Sources: arXiv.",
        caption_justify="left",
    )
    for column in ("name", "family", "formula", "loss", "needs", "all wrong", "all right", "source"):
        side = "right" if column.startswith("all") else "left"
        table.add_column(column, justify=side, no_wrap=column in ("name", "family", "all wrong", "all right"))
    for previous, row in zip([None, *rows], rows, strict=False):
        if previous and previous["family"] != row["family"]:
            table.add_section()
        sides = (_range(*row[side]) for side in ("all_wrong", "all_right"))
        table.add_row(
            row["name"], row["family"], row["formula"], row["loss"], ", ".join(row["needs"]), *sides, row["source"]
        )
    return table


def _range(low: float, high: float) -> str:
    if math.isclose(low, high, abs_tol=1e-4):
        return _number(low)
    return f"{_number(low)} ... {_number(high)}"


def _number(x: float) -> str:
    return f"{x:+.2g}" if x else "0"


def main() -> None:
    arguments = parse(Objectives, __doc__)
    rows = [describe(name) for name in arguments.names or OBJECTIVES]
    if arguments.json:
        print_json({"objectives": rows})
        return
    # Into a file or a pipe a row stays one line.
    width = max(100, shutil.get_terminal_size((180, 24)).columns)
    families = list(dict.fromkeys(row["family"] for row in rows))
    Console(width=width).print(objectives_table(sorted(rows, key=lambda row: families.index(row["family"]))))


if __name__ == "__main__":
    run(main)
