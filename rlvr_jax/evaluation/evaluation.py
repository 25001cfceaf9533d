"""What an evaluation found, as arrays, and the figures that follow from it."""

import dataclasses
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlvr_jax.errors import UserError
from rlvr_jax.evaluation.rollout import REWARD, column
from rlvr_jax.starvation import Interval, maj_at_k, mean_interval, pass_at_k, share_interval

FORM = "strict"
"""The reading that takes an answer only in the form that was asked for, where a task has one."""
FINAL = "final"
"""The reading that takes such an answer only where the completion ends with it."""


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Verdicts on Q held-out questions with G samples each, by question id: the order of the data."""

    rewards: np.ndarray
    """`[Q, G]`, 1.0 right, 0.0 wrong."""
    scores: dict[str, np.ndarray]
    """`[Q, G]` of every other reading of the verifier, by name."""
    answers: dict[str, list[list[str | None]]]
    """`[Q, G]`, what a reading took for the answer, by the names of `scores` and `reward` (see `Verdict.answers`)."""
    truncated: np.ndarray
    """`[Q, G]`, True where the length limit ended the completion."""
    lengths: np.ndarray
    """`[Q, G]`, tokens of the completion."""
    max_new_tokens: int
    """The length limit."""
    checksums: np.ndarray
    """`[Q]`, of each question and its answer, so that two evaluations know whether they ask the same: `checksums`."""

    @classmethod
    def from_rows(cls, rows: Sequence[Mapping[str, Any]], max_new_tokens: int) -> "Evaluation":
        """From completion rows (`GradedRollouts.completion_rows`), each question's samples together and in order.

        Raises UserError where a verdict lacks a reading that others have.
        """
        samples = 1 + max(row["sample"] for row in rows)
        groups = [rows[start : start + samples] for start in range(0, len(rows), samples)]
        columns = {name for row in rows for name in row}

        def array(name: str, dtype: type) -> np.ndarray:
            return np.array([[row[name] for row in group] for group in groups], dtype)

        def score(row: Mapping[str, Any], name: str) -> bool:
            value = row.get(name)
            # A verifier that ran out of time read nothing.
            if value is None and row.get("outcome") != "timed-out":
                raise UserError(
                    f"question {row['question_id']} has no {name}, others have: accepted are verdicts of one verifier"
                )
            return bool(value)

        scores = sorted(name.removeprefix("correct_") for name in columns if name.startswith("correct_"))
        answers = [name for name in (REWARD, *scores) if column("answer", name) in columns]
        return cls(
            rewards=array("correct", np.float32),
            scores={
                name: np.array([[score(row, column("correct", name)) for row in group] for group in groups], np.float32)
                for name in scores
            },
            # A verdict without an answer, as of a verifier that ran out of time, has none.
            answers={
                name: [[row.get(column("answer", name)) for row in group] for group in groups] for name in answers
            },
            truncated=array("truncated", bool),
            lengths=array("tokens", np.int32),
            max_new_tokens=max_new_tokens,
            checksums=checksums([(group[0]["question"], group[0]["gold"]) for group in groups]),
        )

    @property
    def readings(self) -> dict[str, np.ndarray]:
        """The verdict that becomes the reward, then the other readings, `[Q, G]` each."""
        return {REWARD: self.rewards, **self.scores}

    @property
    def accuracy(self) -> Interval:
        """Share of right samples with its interval over questions."""
        return share_interval(self.rewards.mean(-1))

    def pass_at(self, k: int, reading: str = REWARD) -> Interval:
        """Chance that one of k samples is right, with its interval over questions. Raises UserError for k above G."""
        correct = self.readings[reading]
        return share_interval(pass_at_k(n=correct.shape[1], c=correct.sum(-1).astype(np.int64), k=k))

    def majority_at(self, k: int, reading: str = REWARD) -> Interval:
        """Expected accuracy of a majority vote over k samples, with its interval over questions.

        Right samples vote for one answer, whichever way they wrote it. Raises KeyError for a reading that does not
        say what it took for the answer, and UserError for k above G.
        """
        right = object()
        votes = [
            [right if is_right else answer for is_right, answer in zip(*group, strict=True)]
            for group in zip(self.readings[reading], self.answers[reading], strict=True)
        ]
        return share_interval([maj_at_k(group, right, k) for group in votes])

    @property
    def truncation_rate(self) -> Interval:
        """Share of completions that the length limit ended."""
        return share_interval(self.truncated.mean(-1))

    @property
    def length(self) -> Interval:
        """Mean tokens of a completion; the bounds stay between 0 and the length limit."""
        shares = share_interval(self.lengths.mean(-1) / self.max_new_tokens)
        return Interval(*(share * self.max_new_tokens for share in shares))

    @property
    def format_rate(self) -> Interval | None:
        """Share of completions with an answer in the form that was asked for; None where no reading looks for it."""
        if FORM not in self.answers:
            return None
        return share_interval(self._answered(FORM).mean(-1))

    @property
    def trailing_text_rate(self) -> Interval | None:
        """Share of the completions with an answer in the form that was asked for that go on after it.

        The interval is over questions. None where no reading looks for it, and where no completion has such an answer.
        """
        if not {FORM, FINAL} <= self.answers.keys() or not self._answered(FORM).any():
            return None
        answered = self._answered(FORM)
        going_on, count = (answered & ~self._answered(FINAL)).sum(-1), answered.sum(-1)
        return share_interval(going_on / np.maximum(count, 1), weights=count)

    def _answered(self, reading: str) -> np.ndarray:
        return np.array([[answer is not None for answer in group] for group in self.answers[reading]])

    def gain_over(self, base: "Evaluation") -> Interval:
        """Paired gain: question by question, this minus `base`."""
        return mean_interval(self.rewards.mean(-1) - base.rewards.mean(-1))

    def save(self, file: Path) -> None:
        """As JSON, aside and then renamed."""
        file.parent.mkdir(parents=True, exist_ok=True)
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        scratch = file.with_suffix(".part")
        scratch.write_text(json.dumps(fields, default=np.ndarray.tolist))
        os.replace(scratch, file)

    @classmethod
    def load(cls, file: Path) -> "Evaluation":
        fields = json.loads(file.read_text())
        types = {"rewards": np.float32, "truncated": bool, "lengths": np.int32, "checksums": np.uint32}
        fields |= {name: np.array(fields[name], dtype) for name, dtype in types.items()}
        fields["scores"] = {name: np.array(score, np.float32) for name, score in fields["scores"].items()}
        return cls(**fields)


def checksums(questions: Sequence[tuple[str, str]]) -> np.ndarray:
    """`[Q]` CRC-32 of (question, answer)."""
    return np.array([zlib.crc32("\0".join(pair).encode()) for pair in questions], np.uint32)
