"""Seconds per training step, split by phase, beside what this machine's matrix product can do.

Medians with the range over repeats, after a first step that compiles. Timings on a shared machine wander: compare
only what was measured in one run.
"""

import dataclasses
import tempfile
import time
from pathlib import Path
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from experiments.command import print_json
from rlvr_jax.training import TrainConfig, prepare, train


@dataclasses.dataclass(frozen=True)
class StepBenchmark:
    """Time the steps of a preset."""

    config: Annotated[TrainConfig, tyro.conf.arg(name="")]
    repeats: int = 10
    """Steps that are timed."""
    json: bool = False
    """Print all figures as one JSON object on the last line."""


def matrix_product_gflops(size: int = 2048, repeats: int = 5) -> float:
    """Best rate of a square float32 matrix product, the ceiling of everything else here."""
    x = jnp.ones((size, size), jnp.float32)
    product = jax.jit(lambda x: x @ x)
    seconds = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        jax.block_until_ready(product(x))
        seconds.append(time.perf_counter() - started)
    return 2 * size**3 / min(seconds) / 1e9


def benchmark_step(arguments: StepBenchmark) -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = dataclasses.replace(
            arguments.config,
            steps=arguments.repeats + 1,
            evaluate_every=0,
            evaluation_questions=arguments.config.prompts_per_step,
            evaluation_batch=arguments.config.prompts_per_step,
            evaluation_samples=arguments.config.samples_per_prompt,
            checkpoint_every=0,
            output=Path(folder) / "run",
        )
        timings = train(config, prepare(config), name="benchmark").timings[1:]
    summary = {
        name: {"median": float(np.median(values)), "least": min(values), "most": max(values)}
        for name in ("step_seconds", "sample_seconds", "verify_seconds", "update_seconds")
        for values in [[line[name] for line in timings]]
    }
    recompilations = sum(line["compilations"] for line in timings)
    gflops = matrix_product_gflops()
    if arguments.json:
        print_json(summary | {"recompilations": recompilations, "matrix_product_gflops": gflops})
        return
    table = Table(caption=f"{len(timings)} steps, {recompilations} recompilations; matrix product {gflops:.0f} GFLOP/s")
    for column in ("", "median", "least", "most"):
        table.add_column(column, justify="right" if column else "left")
    for name, figures in summary.items():
        table.add_row(name.replace("_", " "), *(f"{value:.3f}" for value in figures.values()))
    Console().print(table)
