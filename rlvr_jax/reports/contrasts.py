"""What a report's tables say: each method's figures, and whether it beats the untrained policy and another method.

Two populations answer two questions. Over questions: would these very runs differ on other questions? Over seeds:
would the methods differ in other runs? Only the second is about the method, and it needs seeds.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlvr_jax.errors import UserError
from rlvr_jax.evaluation import mcnemar_test, require_same_questions
from rlvr_jax.reports.comparison import summarize
from rlvr_jax.reports.runs import Arms, Run
from rlvr_jax.reports.series import evaluated_steps, question_shares
from rlvr_jax.starvation import paired_bootstrap, permutation_test, welch_t_test


def method_figures(arms: Arms) -> dict[str, Any]:
    """Of each method what `summarize` gives, at the last step at which all its seeds were evaluated.

    `accuracy` and `gain` are None, and there are no tests, where that is before training. Raises UserError where
    seeds of a method were asked different questions.
    """
    return {label: _method(label, runs) for label, runs in arms.items()}


def contrasts(arms: Arms) -> list[dict[str, Any]]:
    """The first method minus each other, at the last step at which both were evaluated after training.

    In place of a test that the runs do not allow there is the reason.
    """
    (first, runs), *others = arms.items()
    return [{"methods": [first, other], **_contrast(runs, against)} for other, against in others]


def _method(label: str, runs: Sequence[Run]) -> dict[str, Any]:
    for run in runs[1:]:
        try:
            require_same_questions(runs[0].result.before.checksums, run.result.before.checksums)
        except UserError as error:
            raise UserError(f"seeds of {label} in {str(runs[0].folder)!r} and {str(run.folder)!r}: {error}") from None
    steps = evaluated_steps(runs)
    common = [
        dataclasses.replace(run.result, evaluations={step: run.result.evaluations[step] for step in steps})
        for run in runs
    ]
    summary = summarize({label: common})
    figures = {
        "seeds": [run.config.seed for run in runs],
        "step": steps[-1],
        "untrained": summary["base"]["accuracy"],
        **summary["objectives"][label],
        "accuracy_by_seed": [evaluations.after.accuracy.mean for evaluations in common],
    }
    if len(steps) == 1:
        return figures | {"accuracy": None, "gain": None, "accuracy_by_seed": None, "over_questions": None}
    return figures | {"over_questions": _over_questions(question_shares(runs, steps[-1]), question_shares(runs, 0))}


def _contrast(a: Sequence[Run], b: Sequence[Run]) -> dict[str, Any]:
    step = max(set(evaluated_steps(a)) & set(evaluated_steps(b)))
    if step == 0:
        reason = {"reason": "not evaluated after the same step yet"}
        return {"step": None, "over_questions": reason, "over_seeds": reason}
    try:
        require_same_questions(*(runs[0].result.before.checksums for runs in (a, b)))
    except UserError as error:
        return {"step": step, "over_questions": {"reason": str(error)}, "over_seeds": {"reason": str(error)}}
    over_questions = _over_questions(question_shares(a, step), question_shares(b, step))
    return {"step": step, "over_questions": over_questions, "over_seeds": _over_seeds(a, b, step)}


def _over_questions(a: np.ndarray, b: np.ndarray) -> dict[str, Any]:
    if len(a) < 2:
        return {"reason": "one question has no spread"}
    return {**paired_bootstrap(a, b)._asdict(), "mcnemar": mcnemar_test(a, b)._asdict()}


def _over_seeds(a: Sequence[Run], b: Sequence[Run], step: int) -> dict[str, Any]:
    """Seeds that both have see the same prompts and sampling noise, so they are paired."""
    accuracies = [{run.config.seed: run.result.evaluations[step].accuracy.mean for run in runs} for runs in (a, b)]
    seeds = sorted(accuracies[0].keys() & accuracies[1].keys())
    if len(seeds) < 2:
        return {"reason": f"{len(seeds) or 'no'} seed in common: no method is the winner"}
    x, y = (np.array([accuracy[seed] for seed in seeds]) for accuracy in accuracies)
    welch = welch_t_test(x, y)._asdict()
    return {
        "seeds": seeds,
        "permutation": permutation_test(x, y, paired=True, resamples=100_000)._asdict(),
        # JSON knows no infinity.
        "welch": {name: value if math.isfinite(value) else None for name, value in welch.items()},
    }
