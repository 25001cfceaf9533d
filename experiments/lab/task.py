"""Sums of two numbers, `57+38=` to `95` and an end, with a verifier that runs where the policy does.

A question is a number q: with two digits its terms are q // 100 and q % 100. It has one right completion, so
the policy's success rate on it is the probability of that completion, without any sampling noise.
"""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from rlvr_jax.errors import UserError

PLUS, EQUALS, END, VOCABULARY = 10, 11, 12, 13


class Answers(NamedTuple):
    """The right completions."""

    tokens: Int[Array, "P T"]
    """Digits without leading zeros, then END; 0 behind it."""
    mask: Bool[Array, "P T"]


@dataclasses.dataclass(frozen=True)
class Sums:
    """Sums of terms with so many digits each. Raises UserError for sizes that do not fit."""

    digits: int = 2
    held_out: int = 256
    """Questions that are only evaluated."""

    def __post_init__(self) -> None:
        if self.digits not in (1, 2):
            raise UserError(f"digits is {self.digits}, accepted are 1 and 2")
        if not 0 < self.held_out < self.questions:
            raise UserError(f"held_out is {self.held_out}, accepted are numbers from 1 to {self.questions - 1}")

    @property
    def questions(self) -> int:
        return 100**self.digits

    @property
    def length(self) -> int:
        """T, the longest completion: the digits of the largest sum and END."""
        return self.digits + 2

    def split(self) -> tuple[Int[np.ndarray, " train"], Int[np.ndarray, " held_out"]]:
        """Questions to train on and those held out, the same for every seed."""
        order = np.random.default_rng(0).permutation(self.questions).astype(np.int32)
        return order[self.held_out :], order[: self.held_out]

    def prompts(self, questions: Int[Array, " P"]) -> Int[Array, "P Tp"]:
        terms = jnp.divmod(questions, 10**self.digits)
        first, second = (_digits(term, self.digits) for term in terms)
        sign = jnp.broadcast_to(jnp.array([PLUS, EQUALS]), (len(questions), 2))
        return jnp.concatenate([first, sign[:, :1], second, sign[:, 1:]], 1)

    def answers(self, questions: Int[Array, " P"]) -> Answers:
        total = sum(jnp.divmod(questions, 10**self.digits))
        places = self.digits + 1
        size = 1 + (total[:, None] >= 10 ** jnp.arange(1, places)).sum(-1)
        index = jnp.arange(self.length)
        power = 10 ** jnp.maximum(size[:, None] - 1 - index, 0)
        digits = total[:, None] // power % 10
        ends = jnp.where(index == size[:, None], END, 0)
        return Answers(jnp.where(index < size[:, None], digits, ends), index <= size[:, None])

    def levels(self, questions: Int[Array, " P"]) -> Float[Array, " P"]:
        """Of each question, by the first digit of its first term: 0, 1/9, ..., 1."""
        return questions // (self.questions // 10) / 9


def right(tokens: Int[Array, "P G T"], mask: Bool[Array, "P G T"], answers: Answers) -> Bool[Array, "P G"]:
    """Which completions are the answer, the end included and nothing else."""
    expected = jnp.where(answers.mask, answers.tokens, -1)[:, None]
    return (jnp.where(mask, tokens, -1) == expected).all(-1)


def well_formed(tokens: Int[Array, "P G T"], mask: Bool[Array, "P G T"]) -> Bool[Array, "P G"]:
    """Which completions are one number: digits, then END."""
    last = jnp.argmax(jnp.where(mask, jnp.arange(mask.shape[-1]), -1), -1, keepdims=True)
    before = jnp.arange(mask.shape[-1]) < last
    digits = jnp.where(before, tokens < PLUS, True).all(-1)
    ended = jnp.take_along_axis(tokens, last, -1)[..., 0] == END
    return digits & ended & (last[..., 0] > 0)


def _digits(numbers: Int[Array, " P"], places: int) -> Int[Array, "P places"]:
    return numbers[:, None] // 10 ** jnp.arange(places - 1, -1, -1) % 10
