"""Time of every advantage that needs no more than rewards, as a multiple of plain mean-centring, `r - mean(r)`.

Compiled, 4,096 groups of 64 binary rewards; without the checks for `checkify`, which plain centring has none of (the
table says what a call costs with one). All are timed in turn, again and again; each ratio is of two medians over the
same rounds, so that a slow moment of a shared machine meets both sides. Exit status 1 when a ratio is above the limit.
"""

import dataclasses
import inspect
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from rich.console import Console
from rich.table import Table

from experiments.command import print_json
from rlvr_jax.checks import traced_checks
from rlvr_jax.objectives import advantages, using


@dataclasses.dataclass(frozen=True)
class ObjectivesBenchmark:
    """Time the advantages that need rewards alone."""

    groups: int = 4096
    samples: int = 64
    repeats: int = 200
    """Rounds over all advantages."""
    limit: float = 3.0
    """Largest ratio to plain mean-centring."""
    json: bool = False
    """Print all figures as one JSON object on the last line."""


def reward_only() -> dict[str, Callable[[Array], Array]]:
    """Every public advantage that can be called with rewards alone, and the variants that cost something else."""
    found = {}
    for name in advantages.__all__:
        function = getattr(advantages, name)
        parameters = list(inspect.signature(function).parameters.values()) if inspect.isfunction(function) else []
        needed = [parameter.name for parameter in parameters if parameter.default is parameter.empty]
        if needed == ["rewards"]:
            found[name] = function
    return found | {
        "group_mean, std": using(advantages.group_mean, normalize="std"),
        "opmd, log-mean-exp": using(advantages.opmd, baseline="log_mean_exp"),
        "virtual_rewards": using(advantages.virtual_rewards, samples=1),
        "pkpo, loo": using(advantages.pkpo, baseline="loo"),
    }


def benchmark_objectives(arguments: ObjectivesBenchmark) -> int:
    """Prints the table; 1 when an advantage is slower than the limit."""
    rewards = jax.random.bernoulli(jax.random.key(0), 0.3, (arguments.groups, arguments.samples)).astype(jnp.float32)
    plain, checked = "r - mean(r)", "sign, with its check"
    functions = {plain: lambda r: r - r.mean(-1, keepdims=True)} | reward_only() | {checked: advantages.sign}
    compiled = {name: jax.jit(lambda r, f=function: f(r)) for name, function in functions.items()}
    seconds = {name: np.zeros(arguments.repeats) for name in compiled}
    for i in range(-1, arguments.repeats):  # the first round compiles
        for name, function in compiled.items():
            with traced_checks(name == checked):
                started = time.perf_counter()
                jax.block_until_ready(function(rewards))
                seconds[name][i] = time.perf_counter() - started

    halves = np.array_split(np.arange(arguments.repeats), 2)
    rows = {}
    for name, times in seconds.items():
        of_halves = [float(np.median(times[half]) / np.median(seconds[plain][half])) for half in halves]
        ratio = float(np.median(times) / np.median(seconds[plain]))
        rows[name] = {"microseconds": float(np.median(times) * 1e6), "ratio": ratio, "ratio_of_halves": of_halves}
    slowest = max(row["ratio"] for name, row in rows.items() if name != checked)
    if arguments.json:
        print_json({"advantages": rows, "slowest_ratio": slowest, "limit": arguments.limit})
    else:
        table = Table(
            caption=f"{arguments.groups} groups of {arguments.samples}, medians of {arguments.repeats} rounds; in "
            f"brackets the ratios of the run's two halves. Slowest: {slowest:.2f}, limit {arguments.limit:g}."
        )
        for column in ("advantage", "microseconds", "times plain centring"):
            table.add_column(column, justify="left" if column == "advantage" else "right")
        for name, row in sorted(rows.items(), key=lambda item: item[1]["ratio"]):
            low, high = sorted(row["ratio_of_halves"])
            table.add_row(name, f"{row['microseconds']:.0f}", f"{row['ratio']:.2f} ({low:.2f}, {high:.2f})")
        Console().print(table)
    return int(slowest > arguments.limit)
