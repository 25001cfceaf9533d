"""How many groups are uniform through training, and what chance alone predicts.

    python -m experiments.paper.degeneracy
    python -m experiments.paper.degeneracy --runs runs/compare-arithmetic/sign-seed0 runs/compare-arithmetic/sign-seed1

Without run folders: Sign and group-mean in the lab, on a base whose questions differ in difficulty. Exit status 1 where
the observed share lies below the Bernoulli prediction by more than its 95 % interval over runs.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import rich.box
from rich.console import Console
from rich.table import Table

from experiments.command import parse, print_json, run
from experiments.lab.arms import Lab, arm, run_arms
from experiments.lab.devices import use_all_cores
from experiments.lab.report import PALETTE, save_figure
from experiments.lab.theory import beta_binomial_prediction
from experiments.paper.results import RESULTS, open_results
from rlvr_jax.errors import UserError
from rlvr_jax.reports import write_summary
from rlvr_jax.starvation import bernoulli_prediction, mean_interval
from rlvr_jax.training import read_result


@dataclasses.dataclass(frozen=True)
class DegeneracyThroughTraining:
    """Observed and predicted degeneracy by step."""

    runs: tuple[Path, ...] = ()
    """Run folders of equal length; none: the lab."""
    seeds: int = 7
    """Of the lab."""
    success_rate: float = Lab.success_rate
    heterogeneity: float = 1.0
    samples: int = Lab.samples
    steps: int = Lab.steps
    stretches: int = 10
    """Parts that training is cut into."""
    output: Path = Path("runs/degeneracy")
    json: bool = False
    """Print all figures as one JSON object on the last line."""


def main() -> int:
    arguments = parse(DegeneracyThroughTraining, __doc__)
    if arguments.seeds < 1:
        raise UserError(f"seeds is {arguments.seeds}, accepted are whole numbers from 1")
    open_results(arguments.output, arguments)
    summary = of_folders(arguments) if arguments.runs else of_lab(arguments)
    write_summary(summary, arguments.output / RESULTS)
    draw(summary, arguments.output / "degeneracy")
    Console().print(table(summary))
    print(f"kept in {arguments.output}: results.json, degeneracy.png, degeneracy.svg")
    if arguments.json:
        print_json(summary)
    return int(any(row["gap"]["high"] < 0 for rows in summary["arms"].values() for row in rows))


def of_folders(arguments: DegeneracyThroughTraining) -> dict[str, Any]:
    metrics = [read_result(path).metrics for path in arguments.runs]
    for path, lines in zip(arguments.runs, metrics, strict=True):
        if not lines:
            raise UserError(f"run {str(path)!r} has no finished step; accepted is a run folder with metrics.jsonl")
    if len({len(lines) for lines in metrics}) > 1:
        raise UserError(
            f"runs have {[len(lines) for lines in metrics]} steps, accepted are run folders of equal length"
        )
    columns = {
        name: np.array([[line[name] for line in lines] for lines in metrics])
        for name in ("degeneracy", "degeneracy_predicted")
    }
    return {"arms": {"runs": _stretches(columns, arguments.stretches)}, "by_difficulty": {}}


def of_lab(arguments: DegeneracyThroughTraining) -> dict[str, Any]:
    """Beside observed and Bernoulli also the Beta law of the held-out success rates, and uniform groups by tenths."""
    every = arguments.steps // arguments.stretches
    lab = Lab(
        samples=arguments.samples,
        steps=arguments.steps,
        evaluate_every=every,
        success_rate=arguments.success_rate,
        heterogeneity=arguments.heterogeneity,
    )
    use_all_cores()
    arms = [arm(lab, name) for name in ("sign", "group_mean")]
    traces = run_arms(lab, arms, range(arguments.seeds), [lab.base])
    summary: dict[str, Any] = {"arms": {}, "by_difficulty": {}}
    for each, trace in zip(arms, traces, strict=True):
        rows = _stretches(trace.metrics, arguments.stretches)
        rates = np.exp(np.float64(trace.log_success))
        for i, row in enumerate(rows):
            # At the beginning of the stretch.
            laws = [beta_binomial_prediction(rates[seed, i], lab.samples) for seed in range(len(rates))]
            row["beta_binomial"] = float(np.mean(laws))
        summary["arms"][each.name] = rows
        order = np.argsort(rates[0, 0])
        tenths = [
            bernoulli_prediction(rates[:, :, part], lab.samples).mean((0, 2)) for part in np.array_split(order, 10)
        ]
        summary["by_difficulty"][each.name] = np.array(tenths).tolist()
    return summary


def _stretches(metrics: dict[str, np.ndarray], count: int) -> list[dict[str, Any]]:
    steps = metrics["degeneracy"].shape[1]
    if not 1 <= count <= steps:
        raise UserError(f"stretches is {count}, accepted are numbers from 1 to the {steps} steps")
    rows = []
    for part in np.array_split(np.arange(steps), count):
        observed, predicted = (
            np.float64(metrics[name][:, part]).mean(1) for name in ("degeneracy", "degeneracy_predicted")
        )
        rows.append(
            {
                "steps": [int(part[0]) + 1, int(part[-1]) + 1],
                "observed": float(observed.mean()),
                "bernoulli": float(predicted.mean()),
                "gap": mean_interval(observed - predicted)._asdict(),
            }
        )
    return rows


def table(summary: dict[str, Any]) -> Table:
    """One row for each stretch of steps."""
    result = Table(
        box=rich.box.SIMPLE_HEAD,
        caption="Share of groups all right or all wrong. Bernoulli: independent samples at each step's mean reward; "
        "gap: observed minus that, 95 % interval over runs; Beta: at the held-out questions' mean and variance.",
        caption_justify="left",
    )
    for column in ("arm", "steps", "observed", "Bernoulli", "gap", "Beta"):
        result.add_column(column, justify="left" if column == "arm" else "right")
    for name, rows in summary["arms"].items():
        for row in rows:
            mean, low, high = row["gap"].values()
            law = f"{row['beta_binomial']:.3f}" if "beta_binomial" in row else ""
            result.add_row(
                name, "{}-{}".format(*row["steps"]), f"{row['observed']:.3f}", f"{row['bernoulli']:.3f}",
                f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]", law,
            )  # fmt: skip
    return result


def draw(summary: dict[str, Any], file: Path) -> None:
    """Observed, Bernoulli and Beta-binomial by step; beside it, uniform groups by difficulty before and after."""
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(10, 3.8), layout="constrained")
    by_step, by_difficulty = drawing.subplots(1, 2)
    for place, (name, rows) in enumerate(summary["arms"].items()):
        middle = [sum(row["steps"]) / 2 for row in rows]
        for key, style in (("observed", "-"), ("bernoulli", "--"), ("beta_binomial", ":")):
            if key in rows[0]:
                values = [row[key] for row in rows]
                by_step.plot(middle, values, style, color=PALETTE[place], label=f"{name}, {key.replace('_', '-')}")
    for place, (name, tenths) in enumerate(summary["by_difficulty"].items()):
        for when, style in ((0, "--"), (-1, "-")):
            label = f"{name}, {'after' if when else 'before'}"
            by_difficulty.plot(range(1, 11), np.array(tenths)[:, when], style, color=PALETTE[place], label=label)
    by_step.set(xlabel="step", ylabel="share of groups", ylim=(0, 1))
    by_difficulty.set(xlabel="tenth of held-out questions, hardest first", ylabel="share of groups", ylim=(0, 1))
    for axes in (by_step, by_difficulty) if summary["by_difficulty"] else (by_step,):
        axes.legend(frameon=False, fontsize="small")
        axes.grid(alpha=0.3)
    if not summary["by_difficulty"]:
        by_difficulty.set_axis_off()
    save_figure(drawing, file)


if __name__ == "__main__":
    run(main)
