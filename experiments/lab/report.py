"""What a comparison in the lab shows: its figures as JSON values, its table, its learning curves."""

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import rich.box
from rich.table import Table

from experiments.lab.arms import Arm, Lab
from experiments.lab.run import Trace
from rlvr_jax.starvation import jensen_gap, mean_interval, permutation_test, welch_t_test

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's colours, which colour-blind readers can tell apart."""


def summarize(lab: Lab, arms: Sequence[Arm], traces: Sequence[Trace], seeds: Sequence[int]) -> dict[str, Any]:
    """Every figure, as plain JSON values. Arms are paired by seed with the first, under their own way of training."""
    rates = np.exp(np.float64(traces[0].log_success[0, 0]))
    before = jensen_gap(rates.astype(np.float32), lab.samples)
    finals = {each.name: success_rates(trace)[:, -1] for each, trace in zip(arms, traces, strict=True)}
    return {
        "base": {
            "accuracy": float(rates.mean()),
            "greedy": float(traces[0].greedy[0, 0]),
            "quantiles_10_50_90": np.quantile(rates, (0.1, 0.5, 0.9)).tolist(),
            "degeneracy": float(before.degenerate),
            "degeneracy_predicted": float(before.predicted),
        },
        "questions": rates.size,
        "seeds": list(seeds),
        "steps": lab.steps,
        "evaluated_at": list(range(0, lab.steps + 1, lab.evaluate_every)),
        "arms": {each.name: _arm(lab, each, trace) for each, trace in zip(arms, traces, strict=True)},
        "differences": [
            {"arms": [rival, name], **_difference(finals[rival], finals[name])}
            for name, rival in ((name, rival_of(name, finals)) for name in list(finals)[1:])
        ],
    }


def rival_of(name: str, names: Collection[str]) -> str:
    """What an arm is compared with: the first, trained in the way that follows the first comma of its name."""
    first, (_, *ways) = next(iter(names)), name.split(", ")
    while (rival := ", ".join([first, *ways])) == name or rival not in names:
        ways.pop()
    return rival


def success_rates(trace: Trace) -> np.ndarray:
    """Held-out accuracy at temperature 1, exact: `[R, evaluations]`."""
    return np.exp(np.float64(trace.log_success)).mean(-1)


def _arm(lab: Lab, arm: Arm, trace: Trace) -> dict[str, Any]:
    accuracy = success_rates(trace)
    last = {name: values[:, -lab.evaluate_every :].mean(-1, dtype=np.float64) for name, values in trace.metrics.items()}
    return {
        "samples": arm.samples,
        "prompts": arm.prompts,
        "optimizer": arm.optimizer,
        "learning_rate": float(arm.learning_rate),
        "accuracy": mean_interval(accuracy[:, -1])._asdict(),
        "accuracy_by_seed": accuracy[:, -1].tolist(),
        "deviation": float(accuracy[:, -1].std(ddof=1)) if len(accuracy) > 1 else None,
        "greedy": mean_interval(np.float64(trace.greedy[:, -1]))._asdict(),
        "curve": accuracy.mean(0).tolist(),
        "last_stretch": {name: float(values.mean()) for name, values in last.items()},
        "training": {
            name: trace.metrics[name].mean((0, 1), dtype=np.float64).item()
            for name in ("reward", "degeneracy", "degeneracy_predicted", "truncated", "well_formed")
        },
        "degeneracy_gap": _gap(trace, lab.evaluate_every),
        "held_out_pass_at_k": {k: _pass_at(trace, k).tolist() for k in ("1", "4", "16", "64")},
    }


def _gap(trace: Trace, width: int) -> list[dict[str, float]]:
    """Observed minus predicted degeneracy in each stretch between evaluations, over seeds."""
    gaps = np.float64(trace.metrics["degeneracy"]) - trace.metrics["degeneracy_predicted"]
    stretches = gaps.reshape(len(gaps), -1, width).mean(-1)
    return [mean_interval(stretch)._asdict() for stretch in stretches.T]


def _pass_at(trace: Trace, k: str) -> np.ndarray:
    """Exact pass@k before and after: `1 - (1 - p)^k`, over questions and seeds."""
    rates = np.exp(np.float64(trace.log_success[:, [0, -1]]))
    return (-np.expm1(int(k) * np.log1p(-np.minimum(rates, 1 - 1e-12)))).mean((0, 2))


def _difference(first: np.ndarray, other: np.ndarray) -> dict[str, Any]:
    figures: dict[str, Any] = {"difference": mean_interval(first - other)._asdict()}
    if len(first) > 1:
        figures["permutation"] = permutation_test(first, other, paired=True)._asdict()
        figures["welch_p"] = welch_t_test(first, other).p
    return figures


def table(summary: Mapping[str, Any]) -> Table:
    """One row an arm, after a row for the base; what Sign is ahead by, and the exact paired permutation test."""
    first = next(iter(summary["arms"]))
    base = summary["base"]
    result = Table(
        box=rich.box.SIMPLE_HEAD, padding=0, pad_edge=False, caption=_caption(summary, first), caption_justify="left"
    )
    for i, column in enumerate(("arm", "accuracy", "greedy", f"{first} minus it", "p", "degenerate", "cut", "form")):
        result.add_column(column, justify="left" if i == 0 else "right", no_wrap=i > 0)

    def groups(figures: Mapping[str, Any]) -> str:
        return f"{figures['degeneracy']:.2f} ({figures['degeneracy_predicted']:.2f})"

    result.add_row("(base)", f"{base['accuracy']:.3f}", f"{base['greedy']:.3f}", "", "", groups(base), "", "")
    tests = {row["arms"][1]: row for row in summary["differences"]}
    for name, figures in summary["arms"].items():
        ahead, p = "", ""
        if name in tests:
            ahead = _interval(tests[name]["difference"], "+")
            p = f"{tests[name]['permutation']['p']:.3f}" if "permutation" in tests[name] else ""
        last = figures["last_stretch"]
        result.add_row(
            name, _interval(figures["accuracy"]), f"{figures['greedy']['mean']:.3f}", ahead, p, groups(last),
            f"{last['truncated']:.0%}", f"{last['well_formed']:.0%}",
        )  # fmt: skip
    return result


def _caption(summary: Mapping[str, Any], first: str) -> str:
    return (
        f"Accuracy at temperature 1 on {summary['questions']} held-out questions, exact for each, after "
        f"{summary['steps']} steps; 95 % intervals over {len(summary['seeds'])} seeds of one base. {first} minus it: "
        f"paired by seed; under SGD, a KL or another G it is {first} under the same. p: of the exact permutation test "
        "of pairs. Degenerate: share of training groups all right or all wrong, in brackets what equal prompts would "
        "give; cut: completions without an end; form: completions that are one number; these over the last steps."
    )


def _interval(interval: Mapping[str, float], sign: str = "") -> str:
    """Student's intervals are symmetric."""
    return f"{interval['mean']:{sign}.3f} ±{interval['high'] - interval['mean']:.3f}"


def figure(lab: Lab, arms: Sequence[Arm], traces: Sequence[Trace], file: Path) -> None:
    """Held-out accuracy with bands over seeds, as PNG and as SVG: a panel each for objectives and kinds of control."""
    from matplotlib.figure import Figure

    panels: dict[str, list[int]] = {}
    for i, each in enumerate(arms):
        way = each.name.partition(", ")[2].split(",")[0]
        panels.setdefault(way if way.startswith(("SGD", "KL", "G =")) else "objectives", []).append(i)
    drawing = Figure(figsize=(3.6 * min(3, len(panels)), 3.2 * -(-len(panels) // 3)), layout="constrained")
    axes = drawing.subplots(-(-len(panels) // 3), min(3, len(panels)), squeeze=False, sharey=True).ravel()
    steps = np.arange(0, lab.steps + 1, lab.evaluate_every)
    for panel, (title, members) in zip(axes, panels.items(), strict=False):
        for place, i in enumerate(members):
            draw_band(panel, steps, success_rates(traces[i]), arms[i].name, place)
        panel.set(title=title, xlabel="step", ylabel="held-out accuracy")
        panel.legend(frameon=False, fontsize="x-small")
    for panel in axes[len(panels) :]:
        panel.set_axis_off()
    save_figure(drawing, file)


def draw_band(axes: Any, x: np.ndarray, values: np.ndarray, label: str, place: int) -> None:
    """Mean over seeds `[R, x]` with its 95 % band, in the palette's colour and one of four dash patterns."""
    # Where seeds agree exactly, as before the first step, there is no width to estimate.
    agreed = np.ptp(values, 0) == 0
    intervals = np.array([[x[0]] * 3 if same else mean_interval(x) for x, same in zip(values.T, agreed, strict=True)])
    color, style = PALETTE[place % len(PALETTE)], ("-", "--", "-.", ":")[place % 4]
    axes.plot(x, intervals[:, 0], color=color, linestyle=style, label=label)
    if len(values) > 1:
        axes.fill_between(x, intervals[:, 1], intervals[:, 2], color=color, alpha=0.2, linewidth=0)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def save_figure(drawing: Any, file: Path) -> None:
    """As `file`.png and `file`.svg, each aside and then renamed; the same bytes for the same drawing."""
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "rlvr_jax"}):
        for kind, metadata in (("png", None), ("svg", {"Date": None})):
            scratch = file.with_suffix(".part")
            drawing.savefig(scratch, format=kind, dpi=150, metadata=metadata)
            os.replace(scratch, file.with_suffix(f".{kind}"))
