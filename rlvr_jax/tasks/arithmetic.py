"""Six kinds of arithmetic, equally likely, as plain few-shot lines: a task that a 135M model half knows."""

import functools
import re
from typing import Any

import numpy as np

from rlvr_jax.errors import UserError
from rlvr_jax.tasks.prompting import CHAT, PROMPT_FORMATS, Prompting
from rlvr_jax.tasks.task import Row, Split, Verdict, in_held_out, right_or_wrong

_FEW_SHOT = "82 + 18 = 100\n7 - 1 = 6\n93 - 70 = 23\n36 - 22 = 14\n"


class Arithmetic:
    """One- and two-digit addition and subtraction (results >= 0), one-digit products, two digits times 2 to 9."""

    name = "arithmetic"
    stop = ("\n",)
    worker_grader = None
    max_new_tokens = 5  # a space, three digits, the line break

    def __init__(self, prompting: Prompting = CHAT):
        """The prompt is always the same few-shot lines. Raises UserError for a form that asks for something else."""
        if prompting not in (CHAT, PROMPT_FORMATS["plain"]):
            raise UserError(
                "arithmetic has one prompt, plain lines with examples; accepted is to leave prompt-format out"
            )

    def row(self, split: Split, index: int, seed: int = 0) -> Row:
        """A draw addressed by (split, seed, index). Held-out draws are the same for every seed of a run.

        The kind is drawn first and kept, so that all kinds stay equally likely on both sides.
        """
        stream = [1, 0] if split == "held_out" else [0, seed]
        generator = np.random.default_rng([*stream, index])
        kind = _KINDS[generator.integers(len(_KINDS))]
        while True:
            question, answer = kind(generator)
            if in_held_out(question, one_in=3) == (split == "held_out"):
                return Row(index, question, str(answer))

    def size(self, split: Split) -> None:
        return None

    def prompt(self, row: Row, tokenizer: Any) -> tuple[str, str]:
        return _FEW_SHOT, row.question

    def verify(self, row: Row, completion: str) -> Verdict:
        """Right when the completion is the number alone, ended by a line break."""
        match = re.fullmatch(r"\s*(-?[0-9]{1,18})\n", completion)
        if match is None:
            reason = "no number" if completion.endswith("\n") else "not ended"
            return Verdict("unparsable", reason, answers={"reward": None})
        return right_or_wrong(int(match[1]) == int(row.answer), answers={"reward": str(int(match[1]))})


def _sum(generator: np.random.Generator, low: int, high: int) -> tuple[str, int]:
    a, b = (int(x) for x in generator.integers(low, high, 2))
    return f"{a} + {b} =", a + b


def _difference(generator: np.random.Generator, low: int, high: int) -> tuple[str, int]:
    b, a = sorted(int(x) for x in generator.integers(low, high, 2))
    return f"{a} - {b} =", a - b


def _product(generator: np.random.Generator, low: int, high: int, least: int) -> tuple[str, int]:
    a, b = int(generator.integers(low, high)), int(generator.integers(least, 10))
    return f"{a} * {b} =", a * b


_KINDS = (
    functools.partial(_sum, low=1, high=10),
    functools.partial(_sum, low=10, high=100),
    functools.partial(_difference, low=1, high=10),
    functools.partial(_difference, low=10, high=100),
    functools.partial(_product, low=1, high=10, least=1),
    functools.partial(_product, low=10, high=100, least=2),
)
