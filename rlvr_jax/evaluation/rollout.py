"""From task rows to graded rollouts: encode, sample, decode, verify."""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Bool, PyTree

from rlvr_jax.errors import UserError
from rlvr_jax.models import Model
from rlvr_jax.models.token_bytes import token_bytes
from rlvr_jax.records import Prompts, Rollouts
from rlvr_jax.sampling import Precision, Request, SamplingSettings, Truncation, begin, finish, stop_strings
from rlvr_jax.sharding import batch_shards, named_sharding
from rlvr_jax.tasks import PromptEncoder, Row, Task, Verdict, verifier_of

_EXACT = Precision()

REWARD = "reward"
"""The reading that is the verdict itself, among those that a verdict names."""


def column(what: str, reading: str) -> str:
    """Name of a reading's `correct` or `answer` in a completion row; the verdict's own has no suffix."""
    return what if reading == REWARD else f"{what}_{reading}"


@dataclasses.dataclass(frozen=True)
class GradedRollouts:
    """Completions of P rows, G each, with what the verifier said of them."""

    rows: Sequence[Row]
    prompts: Prompts
    rollouts: Rollouts
    """On device."""
    completions: list[list[str]]
    verdicts: list[list[Verdict]]
    lengths: np.ndarray
    """Tokens of each completion, `[P, G]`."""
    seconds: dict[str, float]
    """The host's: sample, until all tokens were here and what ended early was verified; verify, for the others."""

    @property
    def rewards(self) -> np.ndarray:
        """`[P, G]`, 1.0 for right and 0.0 for wrong."""
        return np.array([[verdict.correct for verdict in group] for group in self.verdicts], np.float32)

    def completion_rows(self, prompts: int) -> list[dict[str, Any]]:
        """What was asked, sampled and judged, one row a completion, of the first `prompts` rows."""
        truncated = np.asarray(self.rollouts.truncated)
        return [
            {
                "question_id": row.id,
                "sample": j,
                "question": row.question,
                "gold": row.answer,
                "completion": self.completions[i][j],
                "tokens": int(self.lengths[i, j]),
                "truncated": bool(truncated[i, j]),
                "outcome": verdict.outcome,
                "reason": verdict.reason,
                "correct": verdict.correct,
                **{column("correct", name): bool(score) for name, score in verdict.scores.items()},
                **{column("answer", name): answer for name, answer in verdict.answers.items()},
            }
            for i, row in enumerate(self.rows[:prompts])
            for j, verdict in enumerate(self.verdicts[i])
        ]


class Roller:
    """Samples and verifies; holds everything that stays the same from one rollout to the next."""

    def __init__(
        self,
        model: Model,
        task: Task,
        encoder: PromptEncoder,
        mesh: Mesh,
        slots: int | None = None,
        stop: Sequence[str] = (),
    ):
        """`slots`: completions that are decoded at a time, a multiple of data x fsdp; None for all.

        `stop`: strings that end a completion, which keeps them, beside the model's and the task's own stop tokens.
        Raises UserError for strings that `stop_strings` refuses, and a tokenizer that `token_bytes` does.
        """
        self.model, self.task, self.encoder, self.mesh, self.slots = model, task, encoder, mesh, slots
        self.verify = verifier_of(task)
        # Put on the device once: a transfer at every step would be wasted.
        replicated = named_sharding(mesh)
        self.prefix = jax.device_put(encoder.prefix, replicated)
        self.stop_tokens = jax.device_put(encoder.stop_tokens(model.eos_token_ids), replicated)
        written = token_bytes(model.tokenizer, model.config.vocab_size) if stop else []
        self.stop_strings = jax.device_put(stop_strings(stop, written), replicated)

    def __call__(self, params: PyTree, rows: Sequence[Row], **how: Any) -> GradedRollouts:
        """Samples and verifies; takes what `dispatch` takes."""
        return self.dispatch(params, rows, **how).graded()

    def dispatch(
        self,
        params: PyTree,
        rows: Sequence[Row],
        *,
        seed: int,
        step: int,
        samples: int,
        max_new_tokens: int,
        temperature: float,
        prompt_length: int | None = None,
        truncation: Truncation | None = None,
        precision: Precision = _EXACT,
    ) -> "Pending":
        """Has the device sample `samples` completions of each row, and returns; every `prompt_length` compiles anew.

        `params` may be donated to another computation from then on. Raises UserError for a number of rows that device
        shares cannot split.
        """
        shards = batch_shards(self.mesh)
        if len(rows) % shards:
            raise UserError(
                f"prompts sampled together are {len(rows)}: accepted is a multiple of data x fsdp ({shards})"
            )
        started = time.perf_counter()
        prompts = jax.device_put(self.encoder.encode(rows, prompt_length), named_sharding(self.mesh, ("batch",)))
        settings = SamplingSettings(self.model.config, samples, max_new_tokens, shards, self.slots, precision)
        request = Request(
            self.prefix,
            prompts,
            self.stop_tokens,
            jnp.uint32(np.uint32(seed)),
            jnp.int32(step),
            jnp.float32(temperature),
            truncation=truncation,
            stop_strings=self.stop_strings,
        )
        begun, state = begin(params, request, settings=settings)
        rollouts = finish(params, request, begun, state, settings=settings)
        early = (begun.written["tokens"], begun.written["mask"])
        # Of what is begun no more is kept: keys and values are not needed any longer than the device takes.
        return Pending(self, rows, prompts, rollouts, begun.ended, early, time.perf_counter() - started)

    def sampled(self, rows: Sequence[Row], rollouts: Rollouts) -> "Pending":
        """What `dispatch` gave for these rows, from the rollouts that it sampled."""
        prompts = jax.device_put(self.encoder.encode(rows, None), named_sharding(self.mesh, ("batch",)))
        ended = jnp.ones(rollouts.truncated.shape, bool)
        return Pending(self, rows, prompts, rollouts, ended, (rollouts.tokens, rollouts.mask), 0.0)

    def decode(self, tokens: np.ndarray, mask: Bool[np.ndarray, "N T"]) -> list[str]:
        """The text of each of N completions."""
        return [
            self.model.tokenizer.decode(ids[keep], skip_special_tokens=True, clean_up_tokenization_spaces=False)
            for ids, keep in zip(tokens, mask, strict=True)
        ]


@dataclasses.dataclass(frozen=True)
class Pending:
    """Rollouts that the device may not have sampled yet; what it is given to do meanwhile, it does after them."""

    roller: Roller
    rows: Sequence[Row]
    prompts: Prompts
    rollouts: Rollouts
    ended: Bool[jax.Array, "R Q"]
    """Which completions are whole before the rest is sampled (see `sampling.Begun`)."""
    early: tuple[jax.Array, jax.Array]
    """Tokens and mask at that time, each `[R, Q, T]`."""
    seconds: float
    """Taken by `dispatch`."""

    def graded(self) -> GradedRollouts:
        """Waits for the tokens and verifies them; those that ended early while the device samples the others."""
        started = time.perf_counter()
        samples = self.rollouts.truncated.shape[1]
        asked = [row for row in self.rows for _ in range(samples)]
        judged: dict[int, tuple[str, Verdict]] = {}

        def judge(which: np.ndarray, tokens: jax.Array, mask: jax.Array) -> None:
            places = [int(i) for i in np.flatnonzero(which) if i not in judged]
            texts = self.roller.decode(*(np.asarray(x).reshape(len(asked), -1)[places] for x in (tokens, mask)))
            verdicts = self.roller.verify([asked[i] for i in places], texts)
            judged.update(zip(places, zip(texts, verdicts, strict=True), strict=True))

        judge(np.asarray(self.ended), *self.early)
        mask = np.asarray(self.rollouts.mask)
        sampled = time.perf_counter()
        judge(np.ones(len(asked)), self.rollouts.tokens, self.rollouts.mask)
        in_order = [judged[i] for i in range(len(asked))]
        groups = [in_order[start : start + samples] for start in range(0, len(asked), samples)]
        completions, verdicts = ([[pair[part] for pair in group] for group in groups] for part in (0, 1))
        seconds = {"sample": self.seconds + sampled - started, "verify": time.perf_counter() - sampled}
        return GradedRollouts(self.rows, self.prompts, self.rollouts, completions, verdicts, mask.sum(-1), seconds)
