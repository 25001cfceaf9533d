"""Starvation in a log of rewards of your own: how many groups are silent, why, and what that costs.

python -m experiments.starvation rewards.jsonl --group-size 4
python -m experiments.starvation rewards.csv --group-size 8 --output figures/starvation.svg --json

The log has one sample a line, with its prompt (prompt_id, id, prompt, ...) and a binary reward (reward, correct,
score); a prompt's samples need not come in groups. Seconds for a million lines.
"""

import dataclasses
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import rich.box
import tyro
from rich.console import Console
from rich.table import Table

from experiments.command import parse, print_json, run
from rlvr_jax.errors import UserError
from rlvr_jax.starvation import (
    BetaBinomial,
    Interval,
    bernoulli_prediction,
    filtering_cost,
    fit_beta_binomial,
    pass_at_k,
    read_reward_log,
    share_interval,
)

FORMATS = (".png", ".pdf", ".svg")
OBSERVED, FITTED, ALIKE, INK = "#0b5394", "#d9730d", "#7a7a7a", "#222222"


@dataclasses.dataclass(frozen=True)
class Starvation:
    """Measure starvation in a reward log."""

    log: Annotated[Path, tyro.conf.Positional]
    """File of rewards, .csv or .jsonl, one sample a line."""
    group_size: int = 4
    """Samples of a prompt that are compared with each other in training; 2 or more."""
    output: Path | None = None
    """Figure (.png, .pdf, .svg). Default: <log>_starvation.png beside the log."""
    json: bool = False
    """Print all figures as one JSON object on the last line; null where there is no number."""


@dataclasses.dataclass(frozen=True)
class Analysis:
    """Figures of the prompts that have at least a group's samples."""

    group_size: int
    n: np.ndarray
    c: np.ndarray
    prompts_left_out: int
    success: Interval
    degenerate: Interval
    all_wrong: Interval
    all_right: Interval
    alike: float
    """Degeneracy if every prompt had the mean success rate."""
    law: BetaBinomial


def analyse(n: np.ndarray, c: np.ndarray, group_size: int) -> Analysis:
    """Raises UserError where no prompt has a group's samples."""
    if group_size < 2:
        raise UserError(f"group_size is {group_size}, accepted are whole numbers from 2")
    kept = n >= group_size
    if not kept.any():
        raise UserError(f"group_size is {group_size}, accepted are 2 to {n.max()}, the most samples that a prompt has")
    n, c = n[kept], c[kept]
    success = share_interval(c / n)
    return Analysis(
        group_size=group_size,
        n=n,
        c=c,
        prompts_left_out=int((~kept).sum()),
        success=success,
        degenerate=_degeneracy_interval(n, c, group_size),
        all_wrong=share_interval(1 - pass_at_k(n=n, c=c, k=group_size)),
        all_right=share_interval(1 - pass_at_k(n=n, c=n - c, k=group_size)),
        alike=float(bernoulli_prediction(success.mean, group_size)),
        law=fit_beta_binomial(n, c),
    )


def summarize(analysis: Analysis, figure: Path) -> dict[str, Any]:
    """Every figure, as plain JSON values."""
    law, size, degenerate = analysis.law, analysis.group_size, analysis.degenerate
    of_law = ("mean", "mean_error", "a", "a_error", "b", "b_error", "overdispersion", "log_likelihood")
    return {
        "group_size": size,
        "prompts": len(analysis.n),
        "prompts_left_out": analysis.prompts_left_out,
        "samples": int(analysis.n.sum()),
        "samples_per_prompt": [int(analysis.n.min()), int(analysis.n.max())],
        "success_rate": analysis.success._asdict(),
        "degeneracy": degenerate._asdict(),
        "all_wrong": analysis.all_wrong._asdict(),
        "all_right": analysis.all_right._asdict(),
        "degeneracy_predicted": analysis.alike,
        "jensen_gap": degenerate.mean - analysis.alike,
        "beta_binomial": {
            **{name: _number(getattr(law, name)) for name in of_law},
            "degeneracy": law.degeneracy(size),
            "degeneracy_error": _number(law.degeneracy_error(size)),
        },
        "filtering_cost": {key: _number(float(filtering_cost(x))) for key, x in degenerate._asdict().items()},
        "figure": str(figure),
    }


def summary_table(summary: Mapping[str, Any], name: str) -> Table:
    """Fits 80 columns."""
    table = Table(
        box=rich.box.SIMPLE_HEAD,
        padding=0,
        pad_edge=False,
        title=f"{name}: {summary['prompts']:,} prompts, {summary['samples']:,} samples",
        title_justify="left",
        caption=_caption(summary),
        caption_justify="left",
    )
    table.add_column(f"at group size {summary['group_size']}", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    law = summary["beta_binomial"]
    table.add_row("success rate", _interval(summary["success_rate"]))
    table.add_row("degenerate groups", _interval(summary["degeneracy"]), style="bold")
    table.add_row("  all wrong", _interval(summary["all_wrong"]))
    table.add_row("  all right", _interval(summary["all_right"]))
    table.add_row("predicted, prompts alike (Bernoulli)", f"{summary['degeneracy_predicted']:.3f}")
    table.add_row("gap, from unequal prompts (Jensen)", f"{summary['jensen_gap']:+.3f}")
    table.add_row("predicted, Beta law of prompts", _with_error(law["degeneracy"], law["degeneracy_error"]))
    table.add_row("  a", _with_error(law["a"], law["a_error"]))
    table.add_row("  b", _with_error(law["b"], law["b_error"]))
    table.add_row("samples per kept one, if filtered", _interval(summary["filtering_cost"], digits=2))
    return table


def draw(analysis: Analysis, name: str, file: Path) -> None:
    """Degeneracy against group size, beside the success rates of prompts."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    figure = Figure(figsize=(11, 4.8), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.15, h_pad=0.1)
    curve, histogram = figure.subplots(1, 2, width_ratios=(3, 2))
    figure.suptitle(
        f"{name}: {analysis.degenerate.mean:.0%} of groups of {analysis.group_size} are all right or all wrong, "
        f"{analysis.alike:.0%} if prompts were alike",
        x=0.012, ha="left", fontsize=13, weight="bold", color=INK,
    )  # fmt: skip
    _draw_curve(curve, analysis)
    _draw_histogram(histogram, analysis)
    for axes, title in ((curve, "Degenerate groups"), (histogram, "Success rates of prompts")):
        axes.set_title(title, loc="left", fontsize=11.5, color=INK, pad=26)
        # Between title and panel, where no data can lie.
        axes.legend(
            loc="lower left", bbox_to_anchor=(0, 0.995), borderaxespad=0, ncols=3,
            frameon=False, fontsize=9.5, columnspacing=1.4, handletextpad=0.6, borderpad=0.3,
        )  # fmt: skip
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color("#999999")
        axes.tick_params(color="#999999", labelcolor=INK)
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.yaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10]))
        axes.set_axisbelow(True)
        axes.grid(axis="y", alpha=0.25)
    scratch = file.with_name(file.name + ".part")
    figure.savefig(scratch, format=file.suffix[1:].lower(), dpi=160)
    os.replace(scratch, file)


def _draw_curve(axes: Any, analysis: Analysis) -> None:
    at, fewest = analysis.group_size, int(analysis.n.min())
    # Beyond the samples there are, the two laws tell what larger groups would do.
    last = max(fewest, 4 * at, 16)
    sizes, smooth = _sizes(2, fewest), _sizes(2, last)
    intervals = [_degeneracy_interval(analysis.n, analysis.c, size) for size in sizes]
    means, lows, highs = (np.array(x) for x in zip(*intervals, strict=True))
    axes.fill_between(sizes, lows, highs, color=OBSERVED, alpha=0.15, linewidth=0)
    axes.plot(sizes, means, color=OBSERVED, linewidth=2.6, marker="o", markersize=5, label="in the log (95 % interval)")
    fitted = [analysis.law.degeneracy(int(size)) for size in smooth]
    axes.plot(smooth, fitted, color=FITTED, linewidth=1.6, linestyle=(0, (5, 2)), label="fitted Beta law")
    alike = np.asarray(bernoulli_prediction(analysis.success.mean, smooth))
    axes.plot(smooth, alike, color=ALIKE, linewidth=1.8, linestyle=(0, (1, 1.5)), label="if prompts were alike")

    axes.vlines(at, analysis.alike, analysis.degenerate.mean, color=INK, linewidth=1)
    # The curves fall, so above right and below left are free of them.
    above = {"xytext": (7, 5), "ha": "left"}
    below = {"xytext": (-7, -13), "ha": "right"} if analysis.alike > 0.08 else above
    for value, color, place in ((analysis.alike, ALIKE, below), (analysis.degenerate.mean, OBSERVED, above)):
        axes.plot(at, value, marker="o", markersize=9, color=color, markeredgecolor="white", zorder=5, clip_on=False)
        if value == analysis.degenerate.mean or abs(value - analysis.degenerate.mean) > 0.03:
            axes.annotate(f"{value:.0%}", (at, value), textcoords="offset points", color=color, weight="bold", **place)
    axes.set_xscale("log", base=2)
    axes.set_xticks(2 ** np.arange(1, 1 + int(math.log2(last))))
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set(xlabel="group size G", ylabel="share of groups", ylim=(0, 1.08))


def _draw_histogram(axes: Any, analysis: Analysis) -> None:
    """Bars of the prompts' shares right; points of what the fitted law expects in the same bins."""
    n, rates = analysis.n, analysis.c / analysis.n
    steps = int(n.min()) if n.min() == n.max() <= 20 else 10
    # Bins centred on 0, 1/steps, ..., 1, so that "never" and "always" have bins of their own.
    centres = np.arange(steps + 1) / steps
    edges = (np.arange(steps + 2) - 0.5) / steps
    expected = np.zeros(steps + 1)
    for size, prompts in zip(*np.unique(n, return_counts=True), strict=True):
        chances = _law_of_counts(analysis.law, int(size))
        expected += prompts / n.size * np.histogram(np.arange(size + 1) / size, edges, weights=chances)[0]
    shares = np.histogram(rates, edges)[0] / n.size
    axes.bar(centres, shares, 0.86 / steps, color=OBSERVED, alpha=0.75, label="prompts in the log")
    axes.plot(
        centres, expected, color=FITTED, linestyle="none", marker="D", markersize=5.5, markeredgecolor="white",
        clip_on=False, zorder=5, label="fitted Beta law",
    )  # fmt: skip
    axes.set(xlabel="share of its samples that are right", ylabel="share of prompts")
    axes.set_ylim(0, 1.08 * max(shares.max(), expected.max()))


def _law_of_counts(law: BetaBinomial, n: int) -> np.ndarray:
    """Probability of 0..n right."""
    from scipy.stats import betabinom, binom

    counts = np.arange(n + 1)
    if law.concentration == 0:
        return np.where(counts == n, law.mean, 0.0) + np.where(counts == 0, 1 - law.mean, 0.0)
    if math.isinf(law.concentration):
        return binom.pmf(counts, n, law.mean)
    return betabinom.pmf(counts, n, law.a, law.b)


def _sizes(first: int, last: int) -> np.ndarray:
    """Whole numbers from first to last, all of them or evenly spread in ratio."""
    return np.unique(np.geomspace(first, last, 48).round().astype(int))


def _degeneracy_interval(n: np.ndarray, c: np.ndarray, size: int | np.integer) -> Interval:
    # `degeneracy_at` on the host: a curve has many sizes, and jax would compile each.
    some_right, some_wrong = pass_at_k(n=n, c=c, k=size), pass_at_k(n=n, c=n - c, k=size)
    return share_interval((1 - some_right) + (1 - some_wrong))


def _caption(summary: Mapping[str, Any]) -> str:
    least, most = summary["samples_per_prompt"]
    text = f"{least if least == most else f'{least} to {most}'} samples of each prompt. "
    if summary["prompts_left_out"]:
        text += f"{summary['prompts_left_out']:,} prompts left out: fewer than {summary['group_size']} samples. "
    text += "Square brackets: 95 % intervals over prompts; ±: standard errors. Shares at this group size are unbiased "
    text += "estimates from all samples of a prompt. "
    if summary["beta_binomial"]["a_error"] is None:
        text += "The Beta law lies at an edge (prompts all alike, or each all-or-none), where a and b have no errors. "
    return text.strip()


def _interval(interval: Mapping[str, float | None], digits: int = 3) -> str:
    mean, low, high = ("inf" if x is None else f"{x:.{digits}f}" for x in interval.values())
    return f"{mean} [{low}, {high}]"


def _with_error(value: float | None, error: float | None) -> str:
    return ("inf" if value is None else f"{value:.3f}") + ("" if error is None else f" ± {error:.3f}")


def _number(value: float) -> float | None:
    """JSON knows no infinity."""
    return value if math.isfinite(value) else None


def main() -> None:
    arguments = parse(Starvation, __doc__)
    file = arguments.output or arguments.log.with_name(f"{arguments.log.stem}_starvation.png")
    if file.suffix.lower() not in FORMATS:
        raise UserError(f"output is {str(file)!r}, accepted are files that end in {', '.join(FORMATS)}")
    if not file.parent.is_dir():
        raise UserError(f"output is {str(file)!r}, accepted is a file in a folder that exists")
    log = read_reward_log(arguments.log)
    analysis = analyse(log.n, log.c, arguments.group_size)
    draw(analysis, arguments.log.name, file)
    summary = summarize(analysis, file)
    if arguments.json:
        print_json(summary)
    else:
        console = Console()
        console.print(summary_table(summary, arguments.log.name))
        console.print(f"Figure: {file}", soft_wrap=True, highlight=False)


if __name__ == "__main__":
    run(main)
