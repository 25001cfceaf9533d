"""Held-out evaluation: the same questions and the same noise every time, so that differences are paired."""

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import PyTree

from rlvr_jax.evaluation.rollout import Roller
from rlvr_jax.starvation import Interval, mean_interval, share_interval

EVALUATION_STEP = 2**31 - 1
"""The step that addresses the noise of evaluations; no training step has it."""


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Verdicts on Q held-out questions with G samples each."""

    rewards: np.ndarray
    """`[Q, G]`, 1.0 right, 0.0 wrong."""
    scores: dict[str, np.ndarray]
    """`[Q, G]` of every other reading of the verifier, by name."""
    truncated: np.ndarray
    """`[Q, G]`, True where the length limit ended the completion."""

    @property
    def accuracy(self) -> Interval:
        """Share of right samples with its interval over questions."""
        return share_interval(self.rewards.mean(-1))

    def gain_over(self, base: "Evaluation") -> Interval:
        """Paired gain: question by question, this minus `base`."""
        return mean_interval(self.rewards.mean(-1) - base.rewards.mean(-1))

    def save(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        fields: dict[str, Any] = {
            "rewards": self.rewards.tolist(),
            "scores": {name: score.tolist() for name, score in self.scores.items()},
            "truncated": self.truncated.tolist(),
        }
        scratch = file.with_suffix(".part")
        scratch.write_text(json.dumps(fields))
        os.replace(scratch, file)

    @classmethod
    def load(cls, file: Path) -> "Evaluation":
        fields = json.loads(file.read_text())
        scores = {name: np.array(score, np.float32) for name, score in fields["scores"].items()}
        return cls(np.array(fields["rewards"], np.float32), scores, np.array(fields["truncated"], bool))


def evaluate(
    roller: Roller,
    params: PyTree,
    *,
    questions: int,
    samples: int,
    max_new_tokens: int,
    temperature: float,
    batch: int,
    progress: Callable[[int], None] = lambda done: None,
) -> Evaluation:
    """Samples and grades the first `questions` held-out questions, `batch` at a time.

    A last, smaller batch is filled up with repeats that do not count, so that one compiled shape serves all.
    `progress` is told how many questions are done.
    """
    size = roller.task.size("held_out")
    questions = questions if size is None else min(questions, size)
    rows = [roller.task.row("held_out", i) for i in range(questions)]
    longest = roller.encoder.longest(rows)
    rewards, truncated, scores = [], [], []
    for start in range(0, questions, batch):
        chosen = rows[start : start + batch]
        filled = chosen + [chosen[-1]] * (batch - len(chosen))
        graded = roller(
            params,
            filled,
            seed=0,
            step=EVALUATION_STEP,
            samples=samples,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            prompt_length=longest,
        )
        rewards.append(graded.rewards[: len(chosen)])
        truncated.append(np.asarray(graded.rollouts.truncated)[: len(chosen)])
        scores += [[verdict.scores for verdict in group] for group in graded.verdicts[: len(chosen)]]
        progress(start + len(chosen))
    by_name = {
        name: np.array([[score[name] for score in group] for group in scores], np.float32) for name in scores[0][0]
    }
    return Evaluation(np.concatenate(rewards), by_name, np.concatenate(truncated))
