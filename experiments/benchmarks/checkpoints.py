"""What saving in the background costs: steps of a run that saves, beside the same run without checkpoints, by turns.

A round of each side is as many steps as there are from one save to the next. It begins with the step that is followed
by the save, so what is written in the background falls into the same round. The cost is the median over rounds of how
much longer the saving side took. Exit status 1 when it is above its ceiling.
"""

import dataclasses
import functools
import tempfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from experiments.benchmarks.turns import Side, Turn, take_turns
from experiments.command import print_json
from experiments.presets import PRESETS
from rlvr_jax.errors import UserError
from rlvr_jax.evaluation import Pending, Roller
from rlvr_jax.evaluation.evaluate import EVALUATION_STEP
from rlvr_jax.training import TrainConfig, prepare, train

SAVING, WITHOUT = "saving", "without"


@dataclasses.dataclass(frozen=True)
class CheckpointsBenchmark:
    """Time steps with checkpoints and without."""

    config: Annotated[TrainConfig, tyro.conf.arg(name="")] = PRESETS["smollm2_arithmetic"]
    """Its checkpoint_every is the number of steps of a round."""
    repeats: int = 3
    """Rounds, after one that compiles."""
    ceiling: float = 0.05
    """Highest cost, as a share of the time without."""
    json: bool = False
    """Print all figures as one JSON object on the last line."""


class _TakingTurns(Roller):
    """Waits for its turn at the beginning of the first step, and of each that is followed by a save."""

    def __init__(self, roller: Roller, turn: Turn, every: int):
        vars(self).update(vars(roller))
        self._turn, self._every = turn, every

    def dispatch(self, *args: Any, **kwargs: Any) -> Pending:
        step = kwargs["step"]
        if step == 1 or (step != EVALUATION_STEP and step % self._every == 0):
            self._turn()
        return super().dispatch(*args, **kwargs)


def steps(arguments: CheckpointsBenchmark, every: int, turn: Turn) -> dict[str, Any]:
    """The loop as it is, with the smallest evaluations, at the beginning and at the end; saves each `every` steps."""
    config, between = arguments.config, arguments.config.checkpoint_every
    with tempfile.TemporaryDirectory() as folder:
        config = dataclasses.replace(
            config,
            steps=between * (arguments.repeats + 1),
            checkpoint_every=every,
            evaluate_every=0,
            evaluation_questions=config.prompts_per_step,
            evaluation_batch=config.prompts_per_step,
            evaluation_samples=config.samples_per_prompt,
            output=Path(folder) / "run",
        )
        setup = prepare(config)
        roller = _TakingTurns(setup.roller, turn, between)
        train(config, dataclasses.replace(setup, roller=roller), name=SAVING if every else WITHOUT)
        saved = sorted((Path(folder) / "run" / "checkpoints").glob("[0-9]*"))
        sizes = [sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) for path in saved]
    return {"checkpoint_bytes": max(sizes, default=0)}


def benchmark_checkpoints(arguments: CheckpointsBenchmark) -> int:
    """Prints the table; 1 when saving costs too much."""
    between = arguments.config.checkpoint_every
    if between < 2:
        raise UserError(f"checkpoint_every is {between}, accepted is 2 or more")
    sides: dict[str, Side] = {
        SAVING: functools.partial(steps, arguments, between),
        WITHOUT: functools.partial(steps, arguments, 0),
    }
    measured = take_turns(sides, arguments.repeats)
    pairs = list(zip(measured.seconds[SAVING], measured.seconds[WITHOUT], strict=True))
    costs = [saving / without - 1 for saving, without in pairs]
    cost, size = float(np.median(costs)), measured.figures[SAVING]["checkpoint_bytes"]
    passes = cost <= arguments.ceiling
    figures = {
        "seconds": measured.seconds,
        "costs": costs,
        "cost": cost,
        "checkpoint_bytes": size,
        "ceiling": arguments.ceiling,
        "passes": passes,
    }
    if arguments.json:
        print_json(figures)
        return int(not passes)
    table = Table(
        caption=f"A checkpoint of {size / 1e9:.2f} GB every {between} steps costs {cost:+.1%} of their time, "
        f"at most {arguments.ceiling:.0%} is asked: {'holds' if passes else 'missed'}."
    )
    for column in ("seconds a step", "median", "least", "most"):
        table.add_column(column, justify="right" if column != "seconds a step" else "left")
    for name, seconds in measured.seconds.items():
        of_step = [value / between for value in seconds]
        table.add_row(name, *(f"{value:.3f}" for value in (np.median(of_step), min(of_step), max(of_step))))
    Console().print(table)
    return int(not passes)
