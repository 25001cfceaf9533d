"""Search compression: what the trained policy finds in one sample, the base finds in k.

    python -m experiments.paper.pass_at_k
    python -m experiments.paper.pass_at_k --success-rate 0.05 --objectives sign group_mean max_rl

In the lab, where success rates are exact, so that pass@k has no sampling noise: `mean of 1 - (1 - p)^k`. The paper's
claim is that training lifts pass@1 to the base's pass@k at a moderate k, and moves pass@k at large k little.
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
from experiments.lab.report import draw_band, save_figure
from experiments.paper.results import RESULTS, open_results
from rlvr_jax.errors import UserError
from rlvr_jax.reports import write_summary
from rlvr_jax.starvation import mean_interval

KS = tuple(2**i for i in range(11))


@dataclasses.dataclass(frozen=True)
class PassAtK:
    """Base against trained policies."""

    objectives: tuple[str, ...] = ("sign", "group_mean", "group_mean_std")
    seeds: int = 7
    success_rate: float = Lab.success_rate
    heterogeneity: float = Lab.heterogeneity
    steps: int = Lab.steps
    output: Path = Path("runs/pass_at_k")
    json: bool = False
    """Print all figures as one JSON object on the last line."""


def main() -> None:
    arguments = parse(PassAtK, __doc__)
    if arguments.seeds < 2:
        raise UserError(f"seeds is {arguments.seeds}, accepted are whole numbers from 2: figures have intervals")
    lab = Lab(
        success_rate=arguments.success_rate,
        heterogeneity=arguments.heterogeneity,
        steps=arguments.steps,
        evaluate_every=arguments.steps,
    )
    open_results(arguments.output, arguments)
    use_all_cores()
    arms = [arm(lab, name) for name in arguments.objectives]
    traces = run_arms(lab, arms, range(arguments.seeds), [lab.base])
    rates = {each.name: np.exp(np.float64(trace.log_success)) for each, trace in zip(arms, traces, strict=True)}
    base = next(iter(rates.values()))[0, 0]
    summary = {
        "ks": KS,
        "base": curve(base).tolist(),
        "objectives": {name: figures(base, values[:, -1]) for name, values in rates.items()},
    }
    write_summary(summary, arguments.output / RESULTS)
    draw({"base": base[None]} | {name: values[:, -1] for name, values in rates.items()}, arguments.output / "pass_at_k")
    Console().print(table(summary))
    print(f"kept in {arguments.output}: results.json, pass_at_k.png, pass_at_k.svg")
    if arguments.json:
        print_json(summary)


def curve(rates: np.ndarray) -> np.ndarray:
    """Exact pass@k `[..., ks]` of success rates `[..., Q]`."""
    log_failure = np.log1p(-np.minimum(rates, 1 - 1e-15))
    return np.stack([-np.expm1(k * log_failure).mean(-1) for k in KS], -1)


def worth(base: np.ndarray, trained: float) -> float:
    """The real k at which the base's pass@k is `trained`; infinite where no k up to a million is enough."""

    def at(log_k: float) -> float:
        return float(-np.expm1(np.exp(log_k) * np.log1p(-np.minimum(base, 1 - 1e-15))).mean())

    from scipy.optimize import brentq

    low, high = np.log(1e-3), np.log(1e6)
    if at(high) < trained:
        return float("inf")
    return float(np.exp(brentq(lambda log_k: at(log_k) - trained, low, high)))


def figures(base: np.ndarray, trained: np.ndarray) -> dict[str, Any]:
    """Of one objective; `trained` are success rates `[seeds, Q]`."""
    curves = curve(trained)
    return {
        "pass_at_k": [mean_interval(column)._asdict() for column in curves.T],
        "worth_in_base_samples": mean_interval([worth(base, row[0]) for row in curves])._asdict(),
        "gain_at_largest_k": mean_interval(curves[:, -1] - curve(base)[-1])._asdict(),
    }


def table(summary: dict[str, Any]) -> Table:
    """One row an objective, after the base's."""
    shown = [i for i, k in enumerate(KS) if k in (1, 4, 16, 64, 256, 1024)]
    result = Table(
        box=rich.box.SIMPLE_HEAD, caption="Exact on held-out questions, mean over seeds. One sample is worth: base "
        "samples that find as much; 95 % interval over seeds.", caption_justify="left",
    )  # fmt: skip
    for column in ("policy", *(f"pass@{KS[i]}" for i in shown), "one sample is worth"):
        result.add_column(column, justify="left" if column == "policy" else "right")
    result.add_row("(base)", *(f"{summary['base'][i]:.3f}" for i in shown), "1")
    for name, values in summary["objectives"].items():
        mean, low, high = values["worth_in_base_samples"].values()
        cells = (f"{values['pass_at_k'][i]['mean']:.3f}" for i in shown)
        result.add_row(name, *cells, f"{mean:.2f} [{low:.2f}, {high:.2f}]")
    return result


def draw(rates: dict[str, np.ndarray], file: Path) -> None:
    """pass@k over k, with bands over seeds."""
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(5.5, 4), layout="constrained")
    axes = drawing.subplots()
    for place, (name, values) in enumerate(rates.items()):
        draw_band(axes, np.array(KS), curve(values), name, place)
    axes.set_xscale("log", base=2)
    axes.set(xlabel="k", ylabel="pass@k on held-out questions")
    axes.legend(frameon=False)
    save_figure(drawing, file)


if __name__ == "__main__":
    run(main)
