"""The numbers behind a report's figures, as plain JSON values: of each method, over its seeds.

A band reaches from the lowest seed to the highest; an interval is of 95 % over questions. Where seeds have come
unequally far, a curve ends with the shortest: a mean over other seeds than before is no curve.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlvr_jax.errors import UserError
from rlvr_jax.evaluation import Evaluation
from rlvr_jax.evaluation.folder import read_completions
from rlvr_jax.reports.comparison import smoothed
from rlvr_jax.reports.runs import Arms, Run
from rlvr_jax.starvation import pass_at_k, share_interval

RECORDED = {"lengths", "state"}
"""Signals, besides rewards, that the completions of a run tell or that follow from those of the steps before."""


def learning_curves(arms: Arms) -> dict[str, Any]:
    """Training reward with its band, and accuracy on held-out questions with intervals, by step."""
    return {
        label: {"training": _curve(runs, "reward"), "held_out": _held_out(runs), "seeds": len(runs)}
        for label, runs in arms.items()
    }


def degeneracy_curves(arms: Arms) -> dict[str, Any]:
    """Share of degenerate groups, and what groups of equally hard prompts would have, by step."""
    return {
        label: {
            "observed": _curve(runs, "degeneracy"),
            "predicted": _curve(runs, "degeneracy_predicted"),
            "seeds": len(runs),
        }
        for label, runs in arms.items()
    }


def pass_at_k_curves(arms: Arms) -> dict[str, Any]:
    """pass@k before and after training for k of 1, 2, 4, ... up to the samples of a question."""
    curves = {}
    for label, runs in arms.items():
        steps = evaluated_steps(runs)
        after = _pass_at_k([run.result.evaluations[steps[-1]] for run in runs]) if len(steps) > 1 else []
        before = _pass_at_k([run.result.evaluations[0] for run in runs])
        curves[label] = {"untrained": before, "trained": after, "step": steps[-1]}
    return curves


def gradient_norms(arms: Arms) -> dict[str, Any]:
    """Norms of the steps' gradients before clipping, in ascending order, and the share that clipping shortened."""
    figures = {}
    for label, runs in arms.items():
        norms = np.array([line["gradient_norm"] for run in runs for line in run.result.metrics], np.float64)
        finite = np.sort(norms[np.isfinite(norms)])
        limit = runs[0].config.max_gradient_norm
        figures[label] = {
            "norms": finite.tolist(),
            "not_finite": int(norms.size - finite.size),
            # JSON knows no infinity, which is no clipping.
            "max_gradient_norm": limit if math.isfinite(limit) else None,
            "clipped": float((finite > limit).mean()) if finite.size else None,
        }
    return figures


def advantage_distributions(arms: Arms) -> dict[str, Any]:
    """Shares of samples by their advantage in training, and the share whose advantage is exactly zero.

    Recomputed from the verdicts in the completions, step by step. Of an objective that also asks what the completions
    do not tell (log-probabilities, entropies) there is the reason instead.
    """
    found = {label: _advantages(runs) for label, runs in arms.items()}
    values = [np.abs(x).max() for x in found.values() if isinstance(x, np.ndarray)]
    # Zero in the middle of a bin, the extremes in the middle of the outermost.
    bins, reach = 41, max(values, default=0.0) or 1.0
    edges = np.linspace(-reach, reach, bins) - reach / (bins - 1)
    edges = np.append(edges, edges[-1] + 2 * reach / (bins - 1))
    return {
        label: {"reason": x}
        if isinstance(x, str)
        else {
            "samples": int(x.size),
            "zero": float((x == 0).mean()),
            "edges": edges.tolist(),
            "shares": (np.histogram(x, edges)[0] / x.size).tolist(),
        }
        for label, x in found.items()
    }


def evaluated_steps(runs: Sequence[Run]) -> list[int]:
    """Steps at which all of these were evaluated, 0 the first."""
    return sorted(set.intersection(*(set(run.result.evaluations) for run in runs)))


def question_shares(runs: Sequence[Run], step: int) -> np.ndarray:
    """Each question's share of right samples, averaged over seeds, `[questions]`."""
    return np.mean([run.result.evaluations[step].rewards.mean(-1, np.float64) for run in runs], axis=0)


def run_advantages(run: Run) -> np.ndarray | str:
    """Advantages of the samples that a run trained on, `[steps, P, G]`, or why its folder does not tell them.

    Raises UserError for a completion file that cannot be read or holds no whole groups.
    """
    objective, samples = run.config.resolved_objective, run.config.samples_per_prompt
    unknown = sorted(set(objective.needs) - RECORDED)
    if unknown:
        return f"needs {', '.join(unknown)}, which a run does not keep"
    files = run.completion_files()
    if [file.stem for file in files] != [f"step_{step:06d}" for step in range(1, len(files) + 1)] or not files:
        return "completions of some steps are missing"
    compute = jax.jit(objective.advantages)
    state = None if objective.start is None else objective.start()
    steps = []
    for file in files:
        rows = completion_rows(file)
        if len(rows) % samples:
            raise UserError(f"{file} has {len(rows)} completions: accepted are whole groups of {samples}")
        shape = (-1, samples)
        signals = {
            "rewards": jnp.asarray([row["correct"] for row in rows], jnp.float32).reshape(shape),
            "lengths": jnp.asarray([row["tokens"] for row in rows], jnp.float32).reshape(shape),
        }
        advantages, state = compute(signals, state)
        steps.append(np.asarray(advantages, np.float64))
    return np.stack(steps)


def completion_rows(file: Path) -> list[dict[str, Any]]:
    """Raises UserError for a file that holds no completions."""
    try:
        rows = read_completions(file)
    except (ValueError, OSError) as error:
        raise UserError(f"{file} holds no completions: {str(error).splitlines()[0]}") from None
    missing = {"question", "gold", "completion", "correct", "tokens"} - {name for row in rows for name in row}
    if missing:
        raise UserError(f"{file} has no column {', '.join(sorted(missing))}: accepted are completions of a run")
    return rows


def _advantages(runs: Sequence[Run]) -> np.ndarray | str:
    """Of all seeds, `[samples]`."""
    found = [run_advantages(run) for run in runs]
    reasons = [x for x in found if isinstance(x, str)]
    return reasons[0] if reasons else np.concatenate([x.ravel() for x in found])


def _curve(runs: Sequence[Run], metric: str) -> dict[str, list[float]]:
    """Each seed's centred mean over five steps (fewer at the ends); over seeds the mean, the lowest and the highest."""
    steps = min(run.done for run in runs)
    seeds = np.array([smoothed([line[metric] for line in run.result.metrics[:steps]]) for run in runs])
    return {
        "step": list(range(1, steps + 1)),
        "mean": seeds.mean(0).tolist(),
        "low": seeds.min(0).tolist(),
        "high": seeds.max(0).tolist(),
    }


def _held_out(runs: Sequence[Run]) -> list[dict[str, float]]:
    return [{"step": step, **share_interval(question_shares(runs, step))._asdict()} for step in evaluated_steps(runs)]


def _pass_at_k(evaluations: Sequence[Evaluation]) -> list[dict[str, float]]:
    """Each question's, averaged over seeds."""
    samples = evaluations[0].rewards.shape[1]
    right = np.array([evaluation.rewards.sum(-1) for evaluation in evaluations]).astype(np.int64)
    ks = [2**i for i in range(samples.bit_length())]
    return [{"k": k, **share_interval(pass_at_k(n=samples, c=right, k=k).mean(0))._asdict()} for k in ks]
