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

from rlvr_jax.models import Model, param_shardings
from rlvr_jax.models.token_bytes import token_bytes
from rlvr_jax.records import Prompts, Rollouts
from rlvr_jax.sampling import Precision, Request, SamplingSettings, Truncation, begin, finish, stop_strings
from rlvr_jax.sharding import (
    all_rows,
    batch_array,
    batch_shards,
    batch_size,
    check_batch,
    judged_here,
    named_sharding,
    own_rows,
    own_values,
    replicated_array,
)
from rlvr_jax.tasks import OUTCOMES, PromptEncoder, Row, Task, Verdict, verifier_of

_EXACT = Precision()

REWARD = "reward"
"""The reading that is the verdict itself, among those that a verdict names."""


def column(what: str, reading: str) -> str:
    """Name of a reading's `correct` or `answer` in a completion row; the verdict's own has no suffix."""
    return what if reading == REWARD else f"{what}_{reading}"


@dataclasses.dataclass(frozen=True)
class GradedRollouts:
    """Completions of P rows, G each, with what the verifier said of them.

    Arrays are of all rows, on every host the same; lists are of the rows that this host verified: alone, of all.
    """

    rows: Sequence[Row]
    places: np.ndarray
    """Of `rows` among the P."""
    prompts: Prompts
    rollouts: Rollouts
    """On device."""
    completions: list[list[str]]
    verdicts: list[list[Verdict]]
    outcomes: np.ndarray
    """`Verdict.outcome` of each completion, `[P, G]`."""
    lengths: np.ndarray
    """Tokens of each completion, `[P, G]`."""
    truncated: np.ndarray
    """As in `rollouts`, `[P, G]`."""
    seconds: dict[str, float]
    """The host's: sample, until all tokens were here and what ended early was verified; verify, for the others."""

    @property
    def rewards(self) -> np.ndarray:
        """`[P, G]`, 1.0 for right and 0.0 for wrong."""
        return (self.outcomes == "correct").astype(np.float32)

    def completion_rows(self, prompts: int) -> list[dict[str, Any]]:
        """What was asked, sampled and judged, one row a completion, of those of the first `prompts` verified here."""
        return [
            {
                "question_id": row.id,
                "sample": j,
                "question": row.question,
                "gold": row.answer,
                "completion": completions[j],
                "tokens": int(self.lengths[i, j]),
                "truncated": bool(self.truncated[i, j]),
                "outcome": verdict.outcome,
                "reason": verdict.reason,
                "correct": verdict.correct,
                **{column("correct", name): bool(score) for name, score in verdict.scores.items()},
                **{column("answer", name): answer for name, answer in verdict.answers.items()},
            }
            for i, row, completions, verdicts in zip(
                self.places, self.rows, self.completions, self.verdicts, strict=True
            )
            if i < prompts
            for j, verdict in enumerate(verdicts)
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
        decode_mesh: Mesh | None = None,
    ):
        """`slots`: completions that are decoded at a time, a multiple of data x fsdp; None for all.

        `stop`: strings that end a completion, which keeps them, beside the model's and the task's own stop tokens.
        `decode_mesh`: over the devices of `mesh` in the same order, where completions are sampled; the parameters are
        moved there for it, and the rollouts back. Raises UserError for strings that `stop_strings` refuses, and a
        tokenizer that `token_bytes` does.
        """
        self.model, self.task, self.encoder, self.mesh, self.slots = model, task, encoder, mesh, slots
        self.decode_mesh = decode_mesh or mesh
        self.verify = verifier_of(task)
        # Put on the device once: a transfer at every step would be wasted.
        self.prefix = replicated_array(mesh, encoder.prefix)
        self.stop_tokens = replicated_array(mesh, encoder.stop_tokens(model.eos_token_ids))
        written = token_bytes(model.tokenizer, model.config.vocab_size) if stop else []
        self.stop_strings = replicated_array(mesh, stop_strings(stop, written))
        batch, decode_batch = (named_sharding(each, ("batch",)) for each in (mesh, self.decode_mesh))
        # Compiled, so that devices exchange what they need: device_put may go through the host.
        self._to_decode = jax.jit(_same, out_shardings=(param_shardings(model.config, self.decode_mesh), decode_batch))
        self._from_decode = jax.jit(_same, out_shardings=batch)
        self._early = jax.jit(_by_prompt, static_argnames="samples", out_shardings=batch)

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

        `rows` are this host's of the batch: those at `own_rows`. `params` may be donated to another computation from
        then on. Raises UserError for a number of rows that device shares cannot split.
        """
        size = batch_size(self.mesh, len(rows))
        for mesh in (self.mesh, self.decode_mesh):
            check_batch(mesh, size)
        started = time.perf_counter()
        prompts = asked = batch_array(self.mesh, self.encoder.encode(rows, prompt_length))
        if self.decode_mesh is not self.mesh:
            params, asked = self._to_decode((params, prompts))
        shards = batch_shards(self.decode_mesh)
        settings = SamplingSettings(
            self.model.config, samples, max_new_tokens, shards, self.slots, precision, self.decode_mesh
        )
        request = Request(
            self.prefix,
            asked,
            self.stop_tokens,
            jnp.uint32(np.uint32(seed)),
            jnp.int32(step),
            jnp.float32(temperature),
            truncation=truncation,
            stop_strings=self.stop_strings,
        )
        begun, state = begin(params, request, settings=settings)
        # Of what is begun no more is kept: keys and values are not needed any longer than the device takes. Before the
        # rest, which it would wait for.
        early = self._early((begun.ended, begun.written["tokens"], begun.written["mask"]), samples=samples)
        rollouts = self._from_decode(finish(params, request, begun, state, settings=settings))
        return Pending(self, rows, prompts, rollouts, early, time.perf_counter() - started)

    def sampled(self, rows: Sequence[Row], rollouts: Rollouts) -> "Pending":
        """What `dispatch` gave for these rows of this host, from the rollouts that all hosts sampled."""
        prompts = batch_array(self.mesh, self.encoder.encode(rows, None))
        ended = rollouts.mask[..., 0]  # every completion has a first token, and is whole
        return Pending(self, rows, prompts, rollouts, (ended, rollouts.tokens, rollouts.mask), 0.0)

    def decode(self, tokens: np.ndarray, mask: Bool[np.ndarray, "N T"]) -> list[str]:
        """The text of each of N completions."""
        return [
            self.model.tokenizer.decode(ids[keep], skip_special_tokens=True, clean_up_tokenization_spaces=False)
            for ids, keep in zip(tokens, mask, strict=True)
        ]


def _same(x: PyTree) -> PyTree:
    return x


def _by_prompt(x: PyTree, samples: int) -> PyTree:
    """`[R, Q, ...]` to `[P, G, ...]`."""
    return jax.tree.map(lambda x: x.reshape(-1, samples, *x.shape[2:]), x)


@dataclasses.dataclass(frozen=True)
class Pending:
    """Rollouts that the device may not have sampled yet; what it is given to do meanwhile, it does after them."""

    roller: Roller
    rows: Sequence[Row]
    prompts: Prompts
    rollouts: Rollouts
    early: tuple[jax.Array, jax.Array, jax.Array]
    """Which completions are whole before the rest is sampled, `[P, G]`, and all tokens and masks at that time."""
    seconds: float
    """Taken by `dispatch`."""

    def graded(self) -> GradedRollouts:
        """Waits for the tokens and verifies them; those that ended early while the device samples the others.

        Of rows that several hosts have, one verifies each; the verdicts are exchanged at the end.
        """
        started = time.perf_counter()
        size, samples = self.rollouts.truncated.shape
        places = own_rows(self.roller.mesh, size)
        here = judged_here(self.roller.mesh, size)[places]
        asked = [row for row in self.rows for _ in range(samples)]
        judged: dict[int, tuple[str, Verdict]] = {}

        def judge(which: np.ndarray, tokens: jax.Array, mask: jax.Array) -> None:
            these = [int(i) for i in np.flatnonzero(which & here[:, None]) if i not in judged]
            texts = self.roller.decode(*(own_values(x).reshape(len(asked), -1)[these] for x in (tokens, mask)))
            verdicts = self.roller.verify([asked[i] for i in these], texts)
            judged.update(zip(these, zip(texts, verdicts, strict=True), strict=True))

        ended, *early = self.early
        judge(own_values(ended), *early)
        mask = own_values(self.rollouts.mask)
        sampled = time.perf_counter()
        judge(np.ones((len(places), samples), bool), self.rollouts.tokens, self.rollouts.mask)
        groups = [[judged[i * samples + j] for j in range(samples)] for i in np.flatnonzero(here)]
        completions, verdicts = ([[pair[part] for pair in group] for group in groups] for part in (0, 1))
        outcomes = [[OUTCOMES.index(verdict.outcome) for verdict in group] for group in verdicts]
        figures = np.zeros((here.sum(), 3, samples), np.int32)
        figures[:, 0] = np.array(outcomes, np.int32).reshape(-1, samples)
        figures[:, 1] = mask.sum(-1)[here]
        figures[:, 2] = own_values(self.rollouts.truncated)[here]
        outcomes, lengths, truncated = all_rows(figures, places[here], size).swapaxes(0, 1)
        seconds = {"sample": self.seconds + sampled - started, "verify": time.perf_counter() - sampled}
        return GradedRollouts(
            [row for row, judges in zip(self.rows, here, strict=True) if judges],
            places[here],
            self.prompts,
            self.rollouts,
            completions,
            verdicts,
            np.array(OUTCOMES)[outcomes],
            lengths,
            truncated.astype(bool),
            seconds,
        )
