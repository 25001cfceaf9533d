"""One evaluation, or two side by side: the figures that programs read, the tables that are printed."""

from collections.abc import Mapping, Sequence
from typing import Any

import rich.box
from rich.console import Group
from rich.table import Table

from rlvr_jax.errors import UserError
from rlvr_jax.evaluation import REWARD, Evaluation, compare_evaluations
from rlvr_jax.starvation import degeneracy

_OF_COMPLETIONS = {
    "tokens": "tokens",
    "truncated": "cut off by the length limit",
    "format": "answer in the form asked for",
    "trailing_text": "of those, with text after it",
}


def require_ks(ks: Sequence[int], samples: int) -> None:
    """Raises UserError for a k of pass@k or maj@k that is not among the samples of a question."""
    for k in ks:
        if not 1 <= k <= samples:
            raise UserError(f"k is {k}: accepted are 1 to the {samples} samples of a question (--samples)")


def evaluation_summary(evaluation: Evaluation, ks: Sequence[int] = ()) -> dict[str, Any]:
    """Every figure of one evaluation, as plain JSON values; `ks` are by default 1, 2, 4, ... up to the samples.

    Accuracy, pass@k and maj@k of the verdict stand on top; each other reading has the same under its name. An interval
    is its mean, low and high. Raises UserError for a k that is not among the samples.
    """
    samples = evaluation.rewards.shape[1]
    ks = sorted(set(ks)) or [2**i for i in range(samples.bit_length())]
    require_ks(ks, samples)
    figures = {name: _reading(evaluation, name, ks) for name in evaluation.readings}
    accuracy, rest = figures.pop(REWARD)
    summary: dict[str, Any] = {"accuracy": accuracy, **rest}
    summary |= {name: {**accuracy, **rest} for name, (accuracy, rest) in figures.items()}
    summary |= {"tokens": evaluation.length._asdict(), "truncated": evaluation.truncation_rate._asdict()}
    for name, rate in (("format", evaluation.format_rate), ("trailing_text", evaluation.trailing_text_rate)):
        if rate is not None:
            summary[name] = rate._asdict()
    summary |= {"readings": list(figures), "questions": evaluation.rewards.shape[0], "samples": samples}
    if samples > 1:
        groups = degeneracy(evaluation.rewards)
        summary |= {"degeneracy": float(groups.degenerate), "degeneracy_predicted": float(groups.predicted)}
    return summary


def _reading(evaluation: Evaluation, name: str, ks: Sequence[int]) -> tuple[dict[str, float], dict[str, Any]]:
    rest = {"pass_at_k": {str(k): evaluation.pass_at(k, name)._asdict() for k in ks}}
    if name in evaluation.answers:
        rest["maj_at_k"] = {str(k): evaluation.majority_at(k, name)._asdict() for k in ks}
    return evaluation.pass_at(1, name)._asdict(), rest


def against_summary(evaluation: Evaluation, other: Evaluation) -> dict[str, Any]:
    """Accuracy of the first minus the second, by reading; raises as `compare_evaluations`."""
    return {
        "accuracy" if name == REWARD else name: {
            **compared.bootstrap._asdict(),
            "mcnemar": compared.mcnemar._asdict(),
        }
        for name, compared in compare_evaluations(evaluation, other).items()
    }


def evaluation_table(summary: Mapping[str, Any], title: str) -> Group:
    """Readings beside each other with their intervals, then what is true of completions; fits 100 columns."""
    readings = [summary, *(summary[name] for name in summary["readings"])]
    table = _table(title, "", "verdict", *summary["readings"])
    table.add_row("accuracy", _interval(summary["accuracy"]), *(_interval(reading) for reading in readings[1:]))
    for figure, label in (("pass_at_k", "pass"), ("maj_at_k", "maj")):
        # One sample is the accuracy itself.
        for k in (k for k in summary.get(figure, ()) if k != "1"):
            cells = (_interval(reading[figure][k]) if figure in reading else "" for reading in readings)
            table.add_row(f"{label}@{k}", *cells)
    of_completions = _table(None, "of completions", "mean")
    for name, label in _OF_COMPLETIONS.items():
        if name in summary:
            of_completions.add_row(label, _interval(summary[name], digits=1 if name == "tokens" else 3))
    of_completions.caption = (
        f"{summary['questions']} questions x {summary['samples']} samples, 95 % intervals over questions"
    )
    if "degeneracy" in summary:
        of_completions.caption += (
            f"; degenerate groups {summary['degeneracy']:.2f}, predicted {summary['degeneracy_predicted']:.2f}"
        )
    return Group(table, of_completions)


def against_table(against: Mapping[str, Any], title: str) -> Table:
    """Differences of accuracy with their tests; fits 100 columns."""
    table = _table(title, "", "difference", "p", "better", "worse", "p (McNemar)")
    for name, figures in against.items():
        test = figures["mcnemar"]
        difference = _interval({"mean": figures["difference"], **figures}, sign="+")
        label = "verdict" if name == "accuracy" else name
        table.add_row(label, difference, _p(figures["p"]), str(test["better"]), str(test["worse"]), _p(test["p"]))
    table.caption = (
        "Difference of accuracy: paired bootstrap over questions, 95 % interval and p. Better, worse: questions with "
        "more or fewer right samples; McNemar's exact test"
    )
    return table


def _table(title: str | None, *columns: str) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        caption_justify="left",
        box=rich.box.SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
        pad_edge=False,
    )
    for i, name in enumerate(columns):
        table.add_column(name, justify="right" if i else "left", no_wrap=True)
    return table


def _interval(interval: Mapping[str, float], sign: str = "", digits: int = 3) -> str:
    return f"{interval['mean']:{sign}.{digits}f} [{interval['low']:.{digits}f}, {interval['high']:.{digits}f}]"


def _p(p: float) -> str:
    return f"{p:.4f}" if p >= 0.0001 else f"{p:.0e}"
