"""A task: a dataset, the form in which a question is put to the model, and a verifier of its answers."""

import dataclasses
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import numpy as np

from rlvr_jax.errors import UserError
from rlvr_jax.records import Prompts

Split = Literal["train", "held_out"]


@dataclasses.dataclass(frozen=True)
class Row:
    """One question with its right answer. `id` is unique within its split."""

    id: int
    question: str
    answer: str


Outcome = Literal["correct", "wrong", "unparsable", "timed-out"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What a verifier says of one completion."""

    outcome: Outcome
    """`unparsable`: no answer was found in the completion, or none that can be read, or the gold cannot be read.
    `timed-out`: the verifier was ended before it came to a verdict."""
    reason: str
    """One word or two for a person: "right", "wrong", "no number", ..."""
    scores: Mapping[str, bool] = dataclasses.field(default_factory=dict)
    """Other readings of the same completion, by name (GSM8K: strict, flexible and final)."""
    answers: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    """What each reading took for the answer, by the names of `scores`, `reward` being the verdict's own: equal answers
    are equal strings, None is no answer. Empty where the verifier does not say: then there is no majority vote."""

    @property
    def correct(self) -> bool:
        """The verdict that becomes the reward."""
        return self.outcome == "correct"


def right_or_wrong(
    correct: bool, scores: Mapping[str, bool] | None = None, answers: Mapping[str, str | None] | None = None
) -> Verdict:
    """The verdict on an answer that could be read."""
    return Verdict("correct" if correct else "wrong", "right" if correct else "wrong", scores or {}, answers or {})


@runtime_checkable
class Task(Protocol):
    """What the training loop and the evaluation need. Rows are addressed, so that no state is kept."""

    name: str
    stop: tuple[str, ...]
    """Strings that end a completion beside the model's own end-of-sequence tokens; each must be one token."""
    max_new_tokens: int
    """Enough tokens for a right answer, the stop token included: the default length limit."""
    worker_grader: str | None
    """Name in `graders` of a verifier that may take long, so that worker processes run it; None: `verify` is quick."""

    def row(self, split: Split, index: int, seed: int = 0) -> Row:
        """The row at `index` (from 0, without end for train) of the order that `seed` shuffles or draws."""

    def size(self, split: Split) -> int | None:
        """Number of different rows, or `None` for a generator that does not run out."""

    def prompt(self, row: Row, tokenizer: Any) -> tuple[str, str]:
        """(prefix, rest): what is shared by all prompts of the task, and what is this row's own."""

    def verify(self, row: Row, completion: str) -> Verdict:
        """Never raises, never executes model text."""


def in_held_out(question: str, one_in: int = 8) -> bool:
    """Whether a question belongs to the held-out stream: one in eight does, decided by its text alone.

    Two streams that draw from the same generator and keep only their side never share a question.
    """
    return zlib.crc32(question.encode()) % one_in == 0


class PromptEncoder:
    """Rows to token arrays of a fixed shape, the shared prefix apart.

    Prefix and rest are tokenised apart, so the prefix is the same tokens for every row; the blanks between them go to
    the side where this tokenizer has them in the whole text. In front stands exactly one beginning-of-sequence token
    where the tokenizer puts one in front of a text, or the template did.
    """

    def __init__(self, task: Task, tokenizer: Any, probe: Sequence[Row], max_prompt_tokens: int | None = None):
        """`probe` are rows that show how long prompts get; `max_prompt_tokens` sets the length instead.

        Raises UserError when a longer prompt is met later: it is never cut in silence.
        """
        self.task, self.tokenizer = task, tokenizer
        prefix, rest = task.prompt(probe[0], tokenizer)
        self._cut = _natural_cut(tokenizer, prefix, rest)
        self.prefix = np.array(_with_beginning(tokenizer, _token_ids(tokenizer, prefix[: self._cut])), np.int32)
        self.length = max_prompt_tokens or self.longest(probe)

    def _own_tokens(self, row: Row) -> list[int]:
        return _token_ids(self.tokenizer, "".join(self.task.prompt(row, self.tokenizer))[self._cut :])

    def longest(self, rows: Sequence[Row]) -> int:
        """Tokens of the longest prompt, without the prefix."""
        return max(len(self._own_tokens(row)) for row in rows)

    def encode(self, rows: Sequence[Row], length: int | None = None) -> Prompts:
        """Prompts of the rows, padded on the right to `length`, by default the encoder's."""
        length = min(length or self.length, self.length)
        tokens = np.zeros((len(rows), length), np.int32)
        mask = np.zeros((len(rows), length), bool)
        for i, row in enumerate(rows):
            own = self._own_tokens(row)
            if not 0 < len(own) <= length:
                raise UserError(
                    f"{self.task.name}: question {row.id} has {len(own)} prompt tokens of its own, "
                    f"accepted are 1 to {length} (max_prompt_tokens)"
                )
            tokens[i, : len(own)] = own
            mask[i, : len(own)] = True
        return Prompts(tokens, mask, np.array([row.id for row in rows], np.uint32))

    def in_one_piece(self, row: Row) -> bool:
        """Whether the tokenizer reads the whole prompt as it reads prefix and rest apart."""
        text = "".join(self.task.prompt(row, self.tokenizer))
        whole = _with_beginning(self.tokenizer, _token_ids(self.tokenizer, text))
        return whole == [*self.prefix.tolist(), *self._own_tokens(row)]

    def stop_tokens(self, eos_token_ids: Sequence[int]) -> np.ndarray:
        """Ids of all tokens that end a completion. Raises UserError when a stop string is not one token."""
        stops = list(eos_token_ids)
        for text in self.task.stop:
            ids = _token_ids(self.tokenizer, text)
            if len(ids) != 1:
                raise UserError(
                    f"{self.task.name}: stop {text!r} is {len(ids)} tokens of this tokenizer, accepted is 1"
                )
            stops += ids
        return np.array(stops, np.int32)


def _token_ids(tokenizer: Any, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def _natural_cut(tokenizer: Any, prefix: str, rest: str) -> int:
    """Characters of the prefix to be tokenised by themselves.

    As many as leave the whole text's tokens as they are, the last blanks of the prefix being the only question: some
    tokenizers join line breaks with the stop in front of them, some spaces with the word behind them. All, if none do.
    """
    whole = _token_ids(tokenizer, prefix + rest)
    for cut in range(len(prefix), len(prefix.rstrip()) - 1, -1):
        if [*_token_ids(tokenizer, prefix[:cut]), *_token_ids(tokenizer, prefix[cut:] + rest)] == whole:
            return cut
    return len(prefix)


def _with_beginning(tokenizer: Any, ids: list[int]) -> list[int]:
    beginning = tokenizer.bos_token_id
    added = beginning is not None and tokenizer.encode("a")[:1] == [beginning]
    return [beginning, *ids] if added and ids[:1] != [beginning] else ids
