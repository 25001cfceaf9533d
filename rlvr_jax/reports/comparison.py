"""Several objectives side by side: the table that is printed, the JSON that programs read, the figure."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import rich.box
from rich.table import Table

from rlvr_jax.evaluation import Evaluation
from rlvr_jax.starvation import degeneracy, mean_interval, share_interval
from rlvr_jax.training import RunResult

Arms = Mapping[str, Sequence[RunResult]]
"""Objective to its runs, one for each seed, all with the same seeds in the same order."""


def summarize(arms: Arms) -> dict[str, Any]:
    """Every figure of a comparison, as plain JSON values."""
    base = next(iter(arms.values()))[0].before
    groups = degeneracy(base.rewards)
    summary: dict[str, Any] = {
        "questions": base.rewards.shape[0],
        "samples_per_prompt": base.rewards.shape[1],
        "seeds": len(next(iter(arms.values()))),
        "base": {
            "accuracy": base.accuracy._asdict(),
            "degeneracy": float(groups.degenerate),
            "degeneracy_predicted": float(groups.predicted),
        },
        "objectives": {name: _arm(runs) for name, runs in arms.items()},
    }
    summary["differences"] = _differences(arms)
    return summary


def _arm(runs: Sequence[RunResult]) -> dict[str, Any]:
    def over_runs(name: str) -> float:
        return float(np.mean([line[name] for run in runs for line in run.metrics]))

    # Seeds share the questions: the question is the unit, its share of right samples is averaged over seeds.
    after = _pooled([run.after for run in runs])
    before = _pooled([run.before for run in runs])
    seconds = [line["step_seconds"] for run in runs for line in run.timings[1:]]
    return {
        "accuracy": share_interval(after)._asdict(),
        "gain": mean_interval(after - before)._asdict(),
        "accuracy_by_seed": [run.after.accuracy.mean for run in runs],
        "degeneracy": over_runs("degeneracy"),
        "degeneracy_predicted": over_runs("degeneracy_predicted"),
        "wasted_samples": over_runs("zero_advantage"),
        "truncated": float(np.mean([run.after.truncated.mean() for run in runs])),
        "step_seconds": float(np.median(seconds)) if seconds else None,
        "recompilations": int(sum(line["compilations"] for run in runs for line in run.timings[1:])),
    }


def _pooled(evaluations: Sequence[Evaluation]) -> np.ndarray:
    return np.mean([evaluation.rewards.mean(-1) for evaluation in evaluations], axis=0)


def _differences(arms: Arms) -> list[dict[str, Any]]:
    """Final accuracy of the first objective minus each other's, paired by seed; needs at least two seeds."""
    (first, first_runs), *others = arms.items()
    if len(first_runs) < 2:
        return []
    rows = []
    for other, runs in others:
        pairs = [a.after.accuracy.mean - b.after.accuracy.mean for a, b in zip(first_runs, runs, strict=True)]
        rows.append({"objectives": [first, other], "difference": mean_interval(np.array(pairs))._asdict()})
    return rows


def comparison_table(summary: Mapping[str, Any]) -> Table:
    """One row an objective, after a row for the untrained policy; fits 80 columns."""
    table = Table(
        box=rich.box.SIMPLE_HEAD, padding=0, pad_edge=False, caption=_caption(summary), caption_justify="left"
    )
    for i, column in enumerate(("objective", "accuracy", "gain (paired)", "degenerate", "wasted", "s/step")):
        table.add_column(column, justify="left" if i == 0 else "right", no_wrap=True)

    def groups(figures: Mapping[str, Any]) -> str:
        return f"{figures['degeneracy']:.2f} ({figures['degeneracy_predicted']:.2f})"

    base = summary["base"]
    table.add_row("(untrained)", _interval(base["accuracy"]), "", groups(base), "", "")
    for name, arm in summary["objectives"].items():
        seconds = "" if arm["step_seconds"] is None else f"{arm['step_seconds']:.1f}"
        gain = _interval(arm["gain"], sign="+")
        table.add_row(name, _interval(arm["accuracy"]), gain, groups(arm), f"{arm['wasted_samples']:.0%}", seconds)
    return table


def _caption(summary: Mapping[str, Any]) -> str:
    text = (
        f"Accuracy: {summary['questions']} held-out questions x {summary['samples_per_prompt']} samples, "
        "95 % intervals over questions. Degenerate: share of prompts whose samples are all right or all wrong; "
        "in brackets the share if every prompt had the mean success rate. Untrained: of the held-out questions; "
        "else over training. "
        "Wasted: samples in groups of zero advantage. "
    )
    if not summary["differences"] and len(summary["objectives"]) > 1:
        return text + "One seed: no objective is the winner; give --seeds 0 1 2 ... to compare them."
    for row in summary["differences"]:
        difference = _interval(row["difference"], sign="+")
        text += f"{' minus '.join(row['objectives'])}: {difference} over {summary['seeds']} seeds. "
    return text


def _interval(interval: Mapping[str, float], sign: str = "") -> str:
    return f"{interval['mean']:{sign}.2f} [{interval['low']:.2f}, {interval['high']:.2f}]"


def comparison_figure(arms: Arms, file: Path) -> None:
    """Learning curves beside degeneracy, observed and predicted, as PNG."""
    # The object interface draws without a display and leaves a notebook's own settings alone.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    accuracy_axes, degeneracy_axes = figure.subplots(1, 2)
    for i, (name, runs) in enumerate(arms.items()):
        color = f"C{i}"
        # Points of the same step side by side, a fiftieth of the run apart.
        _draw_accuracy(accuracy_axes, name, runs, color, shift=i * len(runs[0].metrics) / 50)
        _draw_degeneracy(degeneracy_axes, name, runs, color)
    accuracy_axes.set(xlabel="step", ylabel="share right", title="Accuracy: held-out (points) and training (lines)")
    degeneracy_axes.set(
        xlabel="step", ylabel="share of groups", ylim=(0, 1),
        title="Degenerate groups: observed (solid), predicted (dashed)",
    )  # fmt: skip
    for axes in (accuracy_axes, degeneracy_axes):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    accuracy_axes.legend(loc="lower right", frameon=False)
    degeneracy_axes.legend(loc="lower right", frameon=False)
    scratch = file.with_suffix(".part")
    figure.savefig(scratch, format="png", dpi=150)
    os.replace(scratch, file)


def _draw_accuracy(axes: Any, name: str, runs: Sequence[RunResult], color: str, shift: float) -> None:
    steps = sorted(runs[0].evaluations)
    intervals = [share_interval(_pooled([run.evaluations[step] for run in runs])) for step in steps]
    means, lows, highs = (np.array(x) for x in zip(*intervals, strict=True))
    axes.errorbar(
        np.array(steps) + shift,
        means,
        (means - lows, highs - means),
        color=color,
        marker="o",
        capsize=3,
        linestyle="none",
        label=name,
    )
    axes.plot(*_smoothed(runs, "reward"), color=color, alpha=0.6)


def _draw_degeneracy(axes: Any, name: str, runs: Sequence[RunResult], color: str) -> None:
    axes.plot(*_smoothed(runs, "degeneracy"), color=color, label=name)
    axes.plot(*_smoothed(runs, "degeneracy_predicted"), color=color, linestyle="--")


def _smoothed(runs: Sequence[RunResult], metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Mean over seeds, smoothed."""
    values = np.mean([[line[metric] for line in run.metrics] for run in runs], axis=0)
    return np.array([line["step"] for line in runs[0].metrics]), smoothed(values)


def smoothed(values: Sequence[float] | np.ndarray, width: int = 5) -> np.ndarray:
    """Mean over a centred window of `width` steps, shorter at the ends, `[steps]`."""
    values, half = np.asarray(values, np.float64), width // 2
    return np.array([values[max(0, i - half) : i + half + 1].mean() for i in range(len(values))])


def write_summary(summary: Mapping[str, Any], file: Path) -> None:
    """Aside, then renamed."""
    scratch = file.with_suffix(".part")
    scratch.write_text(json.dumps(summary, indent=2))
    os.replace(scratch, file)
