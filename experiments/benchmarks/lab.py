"""The lab's runs side by side, beside the same runs one after another, in processes of their own, by turns.

Both compile the whole run; one after another each has all cores to itself. Exit status 1 when the side by side are not
faster by the floor: 14 runs on two CPU cores are, by 1.8, and miss it. `processor_seconds` say why: side by side is an
eighth less work, and two cores can do it at most twice as fast as one.
"""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np

from experiments.benchmarks.turns import OURS, Turn, report, take_turns
from experiments.lab.arms import Lab, arm
from experiments.lab.devices import use_all_cores
from experiments.lab.policy import stacked
from experiments.lab.run import Program, Runs, simulate
from rlvr_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class LabBenchmark:
    """Time the lab."""

    objectives: tuple[str, ...] = ("sign", "group_mean")
    seeds: int = 7
    steps: int = 20
    prompts: int = Lab.prompts
    samples: int = Lab.samples
    repeats: int = 3
    floor: float | None = 4.0
    """Side by side must be faster by so much."""
    json: bool = False
    """Print all figures as one JSON object on the last line."""

    def __post_init__(self) -> None:
        if self.seeds < 1 or not self.objectives:
            raise UserError(
                f"seeds is {self.seeds}, objectives are {self.objectives}: accepted are one or more of each"
            )


def benchmark_lab(arguments: LabBenchmark) -> int:
    """Prints the table; 1 when the floor is missed."""
    sides = {OURS: functools.partial(side_by_side, arguments), "one_by_one": functools.partial(one_by_one, arguments)}
    measured = take_turns(sides, arguments.repeats)
    count = len(arguments.objectives) * arguments.seeds
    ours, theirs = measured.figures[OURS]["accuracy"], measured.figures["one_by_one"]["accuracy"]
    figures = {
        "runs": count,
        "steps": arguments.steps,
        "seconds": measured.seconds,
        **measured.ratios(),
        "processor_seconds": measured.processor_seconds(),
        "peak_bytes": measured.peaks(),
        "run_steps_per_second": measured.rates(count * arguments.steps),
        "accuracy_difference": float(np.abs(np.subtract(ours, theirs)).max()),
    }
    caption = f"{count} runs of {arguments.steps} steps, {arguments.prompts} prompts x {arguments.samples} samples."
    floors = {"ratio_to_one_by_one": arguments.floor}
    return report(figures, {"runs": measured.seconds}, floors, caption=caption, json=arguments.json)


def side_by_side(arguments: LabBenchmark, turn: Turn) -> dict[str, Any]:
    use_all_cores()
    bases, runs, program = _work(arguments)
    while turn():
        accuracy = _accuracy(simulate(bases, runs, program).log_success)
    return {"accuracy": accuracy}


def one_by_one(arguments: LabBenchmark, turn: Turn) -> dict[str, Any]:
    bases, runs, program = _work(arguments)
    while turn():
        accuracy = []
        for i in range(len(runs.seed)):
            one = jax.tree.map(lambda x, i=i: x[i : i + 1], runs)
            accuracy += _accuracy(simulate(bases, one, program).log_success)
    return {"accuracy": accuracy}


def _work(arguments: LabBenchmark) -> tuple[Any, Runs, Program]:
    lab = Lab(
        samples=arguments.samples, prompts=arguments.prompts, steps=arguments.steps, evaluate_every=arguments.steps
    )
    objectives = tuple(arm(lab, name).objective for name in arguments.objectives)
    program = dataclasses.replace(arm(lab, arguments.objectives[0]).program(lab), objectives=objectives)
    count = len(objectives) * arguments.seeds
    runs = Runs(
        np.tile(np.arange(arguments.seeds, dtype=np.uint32), len(objectives)),
        np.zeros(count, np.int32),
        np.repeat(np.arange(len(objectives), dtype=np.int32), arguments.seeds),
        np.full(count, lab.learning_rate, np.float32),
        np.full(count, lab.max_gradient_norm, np.float32),
    )
    return stacked([lab.base]), runs, program


def _accuracy(log_success: np.ndarray) -> list[float]:
    return np.exp(log_success[:, -1]).mean(-1).tolist()
