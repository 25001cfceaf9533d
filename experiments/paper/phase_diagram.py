"""Where Sign beats group-mean centring and where it does not, against the exact signal-to-noise theory.

    python -m experiments.paper.phase_diagram
    python -m experiments.paper.phase_diagram --success-rates 0.05 0.2 --seeds 7 --steps 300

Sweeps, in the lab, the base's success rate and heterogeneity with: the group size at equal samples, the step size of
Adam, and that of plain SGD. A cell is the difference of held-out accuracy after the last step, paired by seed. Theory:
the ratio of the two advantages' signal to noise (see `experiments.lab.theory`) on the base's own success rates.
540 runs by default: 47 minutes on two CPU cores that had other work too.
"""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import rich.box
from rich.console import Console
from rich.table import Table

from experiments.command import parse, print_json, run
from experiments.lab.arms import Lab, arm, run_arms
from experiments.lab.devices import use_all_cores
from experiments.lab.policy import Base, skill
from experiments.lab.report import PALETTE, save_figure, success_rates
from experiments.lab.run import Optimizer
from experiments.lab.theory import beta_binomial_prediction, signal_to_noise
from experiments.paper.results import RESULTS, open_results
from rlvr_jax.errors import UserError
from rlvr_jax.objectives import named_objective
from rlvr_jax.reports import write_summary
from rlvr_jax.starvation import jensen_gap, mean_interval


@dataclasses.dataclass(frozen=True)
class PhaseDiagram:
    """Sweep the lab."""

    objectives: tuple[str, str] = ("sign", "group_mean")
    success_rates: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2, 0.4)
    """Of the base, mean over held-out questions."""
    heterogeneities: tuple[float, ...] = (0.0, 1.0)
    group_sizes: tuple[int, ...] = (2, 4, 8, 16)
    learning_rates: tuple[float, ...] = (3e-5, 1e-4, 3e-4)
    """Of Adam; group sizes are swept at the middle one."""
    sgd_learning_rates: tuple[float, ...] = (0.003, 0.01, 0.03)
    seeds: int = 3
    steps: int = 150
    completions: int = 64
    """P x G of each step, in all cells."""
    output: Path = Path("runs/phase_diagram")
    json: bool = False
    """Print all figures as one JSON object on the last line."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """One place of the diagram."""

    success_rate: float
    heterogeneity: float
    samples: int
    optimizer: Optimizer
    learning_rate: float


def cells(arguments: PhaseDiagram) -> list[Cell]:
    """Each once: group sizes at the middle step size of Adam, step sizes at G = 4 or else the first group size."""
    rates, usual = arguments.learning_rates, 4 if 4 in arguments.group_sizes else arguments.group_sizes[0]
    middle = rates[len(rates) // 2]
    ways: list[tuple[int, Optimizer, float]] = [(samples, "adam", middle) for samples in arguments.group_sizes]
    ways += [(usual, "adam", rate) for rate in rates]
    ways += [(usual, "sgd", rate) for rate in arguments.sgd_learning_rates]
    places = [(p, h) for h in arguments.heterogeneities for p in arguments.success_rates]
    return [Cell(*place, *way) for way in dict.fromkeys(ways) for place in places]


def main() -> None:
    arguments = parse(PhaseDiagram, __doc__)
    for name in ("success_rates", "heterogeneities", "group_sizes", "learning_rates"):
        if not getattr(arguments, name):
            raise UserError(f"{name} is empty, accepted are one or more values")
    if arguments.seeds < 2:
        raise UserError(f"seeds is {arguments.seeds}, accepted are whole numbers from 2: cells have intervals")
    open_results(arguments.output, arguments)
    use_all_cores()
    summary = sweep(arguments)
    write_summary(summary, arguments.output / RESULTS)
    draw(summary, arguments, arguments.output / "phase_diagram")
    Console().print(table(summary))
    print(f"kept in {arguments.output}: results.json, phase_diagram.png, phase_diagram.svg")
    if arguments.json:
        print_json(summary)


def sweep(arguments: PhaseDiagram) -> dict[str, Any]:
    """Every figure, as plain JSON values."""
    swept, first, second = cells(arguments), *arguments.objectives
    steps = {"steps": arguments.steps, "evaluate_every": arguments.steps}
    labs = [_lab(cell, arguments.completions, steps) for cell in swept]
    places = list(dict.fromkeys((cell.success_rate, cell.heterogeneity) for cell in swept))
    bases = [
        Lab(success_rate=p, heterogeneity=h, **steps).base for p, h in places
    ]  # one compilation, a few seconds each
    index = [places.index((cell.success_rate, cell.heterogeneity)) for cell in swept]
    arms = [arm(lab, name, base=i) for lab, i in zip(labs, index, strict=True) for name in (first, second)]
    traces = run_arms(Lab(**steps), arms, range(arguments.seeds), bases)
    before = [_rates(base) for base in bases]
    rows = []
    for i, cell in enumerate(swept):
        pair = [success_rates(trace)[:, -1] for trace in traces[2 * i : 2 * i + 2]]
        rows.append(
            {
                **dataclasses.asdict(cell),
                "base": float(bases[index[i]].success_rate),
                "accuracy": {name: values.tolist() for name, values in zip((first, second), pair, strict=True)},
                "difference": mean_interval(pair[0] - pair[1])._asdict(),
                "signal_to_noise_ratio": _ratio(arguments.objectives, before[index[i]], cell.samples),
            }
        )
    return {
        "objectives": [first, second],
        "seeds": arguments.seeds,
        "steps": arguments.steps,
        "completions": arguments.completions,
        "bases": [_described(place, base, rates) for place, base, rates in zip(places, bases, before, strict=True)],
        "cells": rows,
        "verdict": verdict(rows),
    }


def _lab(cell: Cell, completions: int, steps: dict[str, int]) -> Lab:
    if completions % cell.samples:
        raise UserError(f"completions is {completions}, accepted is a multiple of every group size ({cell.samples})")
    rate = "learning_rate" if cell.optimizer == "adam" else "sgd_learning_rate"
    return Lab(
        samples=cell.samples, prompts=completions // cell.samples, optimizer=cell.optimizer,
        **{rate: cell.learning_rate}, **steps,
    )  # fmt: skip


def _rates(base: Base) -> np.ndarray:
    lab = Lab()
    found = skill(base.params, lab.task.split()[1], model=lab.model, task=lab.task)
    return np.exp(np.float64(found.log_success))


def _ratio(objectives: Sequence[str], rates: np.ndarray, samples: int) -> float:
    ours, theirs = (signal_to_noise(named_objective(name).advantage, rates, samples) for name in objectives)
    return ours / theirs


def _described(place: tuple[float, float], base: Base, rates: np.ndarray) -> dict[str, Any]:
    gap = jensen_gap(rates.astype(np.float32), 4)
    return {
        "success_rate": place[0],
        "heterogeneity": place[1],
        "reached": float(rates.mean()),
        "supervised_steps": int(base.steps),
        "degeneracy_at_4": float(gap.degenerate),
        "bernoulli_at_4": float(gap.predicted),
        "beta_binomial_at_4": beta_binomial_prediction(rates, 4),
    }


def verdict(rows: Sequence[dict[str, Any]]) -> dict[str, int]:
    """How many cells are decided, and on how many of those theory and runs agree."""
    decided = [row for row in rows if row["difference"]["low"] > 0 or row["difference"]["high"] < 0]
    ahead = [row for row in decided if row["difference"]["mean"] > 0]
    agreed = [row for row in decided if (row["difference"]["mean"] > 0) == (row["signal_to_noise_ratio"] > 1)]
    return {"cells": len(rows), "first_ahead": len(ahead), "second_ahead": len(decided) - len(ahead),
            "undecided": len(rows) - len(decided), "theory_agrees": len(agreed)}  # fmt: skip


def table(summary: dict[str, Any]) -> Table:
    """One row a cell."""
    first, second = summary["objectives"]
    counts = summary["verdict"]
    result = Table(
        box=rich.box.SIMPLE_HEAD, padding=0, pad_edge=False, caption_justify="left",
        caption=f"Held-out accuracy after {summary['steps']} steps of {summary['completions']} completions, "
        f"{summary['seeds']} seeds, 95 % intervals of paired differences. Theory: ratio of signal to noise. "
        f"{first} ahead in {counts['first_ahead']} of {counts['cells']} cells, {second} in {counts['second_ahead']}; "
        f"theory names the winner in {counts['theory_agrees']} of the decided.",
    )  # fmt: skip
    for name in ("base p", "heterog.", "G", "step size", first, second, "difference", "theory"):
        result.add_column(name, justify="right")
    for row in summary["cells"]:
        means = (f"{np.mean(values):.3f}" for values in row["accuracy"].values())
        mean, low, high = row["difference"].values()
        result.add_row(
            f"{row['base']:.3f}", f"{row['heterogeneity']:g}", str(row["samples"]),
            f"{row['optimizer']} {row['learning_rate']:g}", *means, f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]",
            f"{row['signal_to_noise_ratio']:.2f}",
        )  # fmt: skip
    return result


def draw(summary: dict[str, Any], arguments: PhaseDiagram, file: Path) -> None:
    """A map for each sweep and heterogeneity, decided cells marked by a star; theory beside runs in the last panel."""
    from matplotlib.figure import Figure

    rows = summary["cells"]
    usual = 4 if 4 in arguments.group_sizes else arguments.group_sizes[0]
    middle = arguments.learning_rates[len(arguments.learning_rates) // 2]
    sweeps = [
        (f"Adam, step size {middle:g}", "samples", "G", {"optimizer": "adam", "learning_rate": middle}),
        (f"Adam, G = {usual}", "learning_rate", "step size", {"optimizer": "adam", "samples": usual}),
        (f"SGD, G = {usual}", "learning_rate", "step size", {"optimizer": "sgd"}),
    ]
    heights = len(arguments.heterogeneities)
    drawing = Figure(figsize=(14, 0.6 + 3 * heights), layout="constrained")
    axes = drawing.subplots(heights, 4, squeeze=False)
    # A few cells where one side collapsed would take the colour from all others.
    limit = max(0.05, float(np.quantile([abs(row["difference"]["mean"]) for row in rows], 0.95)))
    for line, heterogeneity in zip(axes, arguments.heterogeneities, strict=True):
        here = [row for row in rows if row["heterogeneity"] == heterogeneity]
        for panel, (title, name, label, fixed) in zip(line, sweeps, strict=False):
            chosen = [row for row in here if all(row[key] == value for key, value in fixed.items())]
            panel.set_title(f"{title}, heterogeneity {heterogeneity:g}", fontsize="medium")
            panel.set(xlabel="base success rate", ylabel=label)
            if chosen:
                shown = _map(panel, chosen, name, limit)
            else:
                panel.set_axis_off()
        _against_theory(line[-1], here, summary["objectives"])
    label = f"accuracy: {' minus '.join(summary['objectives'])}"
    drawing.colorbar(shown, ax=axes[:, :3], label=label, shrink=0.8, extend="both")
    save_figure(drawing, file)


def _map(panel: Any, rows: Sequence[dict[str, Any]], name: str, limit: float) -> Any:
    xs, ys = (sorted({row[key] for row in rows}) for key in ("success_rate", name))
    values = np.full((len(ys), len(xs)), np.nan)
    for row in rows:
        place = ys.index(row[name]), xs.index(row["success_rate"])
        values[place] = row["difference"]["mean"]
        decided = row["difference"]["low"] > 0 or row["difference"]["high"] < 0
        text = f"{values[place]:+.2f}{'*' if decided else ''}"
        color = "white" if abs(values[place]) > limit / 2 else "black"
        panel.text(*place[::-1], text, ha="center", va="center", fontsize=7, color=color)
    panel.set_xticks(range(len(xs)), [f"{x:g}" for x in xs])
    panel.set_yticks(range(len(ys)), [f"{y:g}" for y in ys])
    return panel.imshow(values, cmap="PuOr_r", vmin=-limit, vmax=limit, origin="lower", aspect="auto")


def _against_theory(panel: Any, rows: Sequence[dict[str, Any]], objectives: Sequence[str]) -> None:
    for place, optimizer in enumerate(("adam", "sgd")):
        own = [row for row in rows if row["optimizer"] == optimizer]
        if own:
            panel.errorbar(
                [math.log2(row["signal_to_noise_ratio"]) for row in own],
                [row["difference"]["mean"] for row in own],
                [[row["difference"]["mean"] - row["difference"]["low"] for row in own],
                 [row["difference"]["high"] - row["difference"]["mean"] for row in own]],
                color=PALETTE[place], marker="os"[place], linestyle="none", alpha=0.7, label=optimizer,
            )  # fmt: skip
    for line in (panel.axhline, panel.axvline):
        line(0, color="0.5", linewidth=0.8)
    panel.set(xlabel="log2 ratio of signal to noise", ylabel=" minus ".join(objectives), title="runs against theory")
    panel.legend(frameon=False)


if __name__ == "__main__":
    run(main)
