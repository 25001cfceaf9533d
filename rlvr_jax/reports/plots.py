"""A report's figures, each of one panel so that it can be read on a phone.

A method is told by colour, marker and line style at once; the colours are Okabe and Ito's (2008), which people of any
colour vision tell apart, without the yellow that is lost on white.
"""

import io
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES = ((0, ()), (0, (6, 2)), (0, (1, 1.2)), (0, (6, 2, 1, 2)), (0, (3, 1)))
INK = "#333333"


def draw(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Matplotlib figures by name, of those numbers that there are any of: see `rlvr_jax.reports.series`."""
    drawings = {
        "training_reward": (_training, numbers["learning_curves"]),
        "held_out_accuracy": (_held_out, numbers["learning_curves"]),
        "degeneracy": (_degeneracy, numbers["degeneracy"]),
        "pass_at_k": (_pass_at_k, numbers["pass_at_k"]),
        "advantages": (_advantages, numbers["advantages"]),
        "gradient_norms": (_gradient_norms, numbers["gradient_norms"]),
    }
    # A dollar sign in a label would begin a formula.
    figures = {
        name: function({label.replace("$", r"\$"): x for label, x in of_methods.items()})
        for name, (function, of_methods) in drawings.items()
    }
    return {name: figure for name, figure in figures.items() if figure is not None}


def render(figure: Any, kind: str) -> bytes:
    """`svg` or `png`; the same figure gives the same bytes."""
    import matplotlib

    stream = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "rlvr_jax"}):
        figure.savefig(stream, format=kind, dpi=160, metadata={"Date": None} if kind == "svg" else None)
    return stream.getvalue()


def _training(curves: Mapping[str, Any]) -> Any:
    figure, axes = _panel("step", "share right")
    for style, (label, curve) in zip(_styles(), curves.items(), strict=False):
        _band(axes, curve["training"], label, style)
    return _with_legend(figure, axes, len(curves))


def _held_out(curves: Mapping[str, Any]) -> Any:
    figure, axes = _panel("step", "share right")
    last = max(point["step"] for curve in curves.values() for point in curve["held_out"])
    for i, (style, (label, curve)) in enumerate(zip(_styles(), curves.items(), strict=False)):
        # Points of the same step side by side.
        shift = (i - (len(curves) - 1) / 2) * last / 60
        _intervals(axes, curve["held_out"], "step", label, style, shift)
    return _with_legend(figure, axes, len(curves))


def _degeneracy(curves: Mapping[str, Any]) -> Any:
    figure, axes = _panel("step", "share of groups")
    for style, (label, curve) in zip(_styles(), curves.items(), strict=False):
        solid, hollow = style | {"linestyle": "-"}, style | {"linestyle": (0, (4, 2)), "markerfacecolor": "white"}
        _band(axes, curve["observed"], f"{label}: observed", solid)
        _band(axes, curve["predicted"], f"{label}: predicted", hollow)
    axes.set_ylim(-0.02, 1.02)
    return _with_legend(figure, axes, 2 * len(curves))


def _pass_at_k(curves: Mapping[str, Any]) -> Any:
    figure, axes = _panel("k, samples of a question", "one of k is right")
    bases = [curve["untrained"] for curve in curves.values()]
    same = all(base == bases[0] for base in bases)
    lines = 0
    for i, (style, (label, curve)) in enumerate(zip(_styles(), curves.items(), strict=False)):
        # As a ratio, since the axis is logarithmic.
        shift = 1.05 ** (i - (len(curves) - 1) / 2)
        if i == 0 or not same:
            name = "untrained" if same else f"{label}: untrained"
            grey = {**style, "color": "#777777", "marker": "x", "linestyle": (0, (1, 1.5))}
            _intervals(axes, curve["untrained"], "k", name, grey, ratio=1.0 if same else shift)
            lines += 1
        if curve["trained"]:
            _intervals(axes, curve["trained"], "k", label, style, ratio=shift)
            lines += 1
    ks = sorted({point["k"] for base in bases for point in base})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ks, [str(k) for k in ks])
    axes.minorticks_off()
    return _with_legend(figure, axes, lines)


def _advantages(distributions: Mapping[str, Any]) -> Any:
    from matplotlib.figure import Figure

    known = {label: x for label, x in distributions.items() if "shares" in x}
    if not known:
        return None
    figure = Figure(figsize=(5.2, 0.9 + 1.35 * len(known)), layout="constrained")
    panels = figure.subplots(len(known), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (style, (label, x)) in zip(panels, _chosen(distributions, known), strict=True):
        edges = np.array(x["edges"])
        axes.bar(edges[:-1], x["shares"], np.diff(edges) * 0.9, align="edge", color=style["color"])
        axes.set_title(f"{label}: exactly zero for {x['zero']:.0%}", loc="left", fontsize=11, color=INK)
        axes.set_ylim(0, 1.05 * max(x["shares"]))
        _plain(axes)
    panels[-1].set_xlabel("advantage of a sample")
    figure.supylabel("share of samples", fontsize=10.5)
    return figure


def _gradient_norms(norms: Mapping[str, Any]) -> Any:
    known = {label: x for label, x in norms.items() if x["norms"]}
    if not known:
        return None
    figure, axes = _panel("gradient norm before clipping", "share of steps at or below")
    for style, (label, x) in _chosen(norms, known):
        values = np.array(x["norms"])
        shares = np.arange(1, values.size + 1) / values.size
        every = max(1, values.size // 8)
        axes.step(values, shares, where="post", label=label, markevery=every, **style)
    for limit in {x["max_gradient_norm"] for x in known.values()} - {None}:
        axes.axvline(limit, color="#777777", linewidth=1)
        axes.annotate(
            "clipped to", (limit, 1.02), xycoords=("data", "axes fraction"), ha="center", fontsize=9, color=INK
        )
    if min(x["norms"][0] for x in known.values()) > 0:
        axes.set_xscale("log")
    axes.set_ylim(0, 1.02)
    return _with_legend(figure, axes, len(known))


def _styles() -> Iterator[dict[str, Any]]:
    for color, marker, line in zip(*(itertools.cycle(x) for x in (COLORS, MARKERS, LINES)), strict=False):
        yield {"color": color, "marker": marker, "linestyle": line, "markersize": 5.5, "linewidth": 1.9}


def _chosen(all_of_them: Mapping[str, Any], some: Mapping[str, Any]) -> list[tuple[dict[str, Any], tuple[str, Any]]]:
    """A method keeps its style where others are left out."""
    pairs = zip(_styles(), all_of_them.items(), strict=False)
    return [(style, (label, x)) for style, (label, x) in pairs if label in some]


def _panel(xlabel: str, ylabel: str) -> tuple[Any, Any]:
    # The object interface draws without a display and leaves a notebook's own settings alone.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 3.8), layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(xlabel, fontsize=10.5)
    axes.set_ylabel(ylabel, fontsize=10.5)
    _plain(axes)
    return figure, axes


def _plain(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=10)


def _band(axes: Any, curve: Mapping[str, Any], label: str, style: Mapping[str, Any]) -> None:
    step = np.array(curve["step"])
    if curve["low"] != curve["high"]:
        axes.fill_between(step, curve["low"], curve["high"], color=style["color"], alpha=0.15, linewidth=0)
    axes.plot(step, curve["mean"], label=label, markevery=max(1, len(step) // 8), **style)


def _intervals(
    axes: Any,
    points: list[Mapping[str, float]],
    at: str,
    label: str,
    style: Mapping[str, Any],
    shift: float = 0.0,
    ratio: float = 1.0,
) -> None:
    where, mean, low, high = (np.array([point[name] for point in points]) for name in (at, "mean", "low", "high"))
    # A bound may miss the mean by a rounding error.
    errors = np.maximum((mean - low, high - mean), 0.0)
    axes.errorbar(where * ratio + shift, mean, errors, capsize=3, label=label, **style)


def _with_legend(figure: Any, axes: Any, entries: int) -> Any:
    """Below the panel, where no data can lie."""
    columns = 2 if max((len(text) for text in axes.get_legend_handles_labels()[1]), default=0) < 30 else 1
    figure.set_figheight(3.6 + 0.22 * -(-entries // columns))
    figure.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize=10, handlelength=3)
    return figure
