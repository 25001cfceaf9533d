"""Any procedural generator of the reasoning-gym library, as `reasoning_gym:NAME`."""

import functools
import re
from fractions import Fraction
from typing import Any, Literal

from rlvr_jax.errors import UserError
from rlvr_jax.tasks.answers import own_answer
from rlvr_jax.tasks.task import Row, Split, Verdict, chat_prompt, in_held_out, right_or_wrong

_SYSTEM = "Answer the question. Give only the final answer, with no explanation."
_NUMERIC = {"chain_sum"}
"""Generators whose own scorer does nothing but compare decimal numbers, as this verifier does."""
_DECIMAL = re.compile(r"[+-]?[0-9]{1,30}(?:\.[0-9]{1,30})?")
_ATTEMPTS = 256
"""Generator seeds set aside for one row; the chance that none of them falls on the split's side is (7/8)^256."""


class ReasoningGym:
    """Questions of one generator; right means equal to the generator's answer, letter for letter or as a number.

    The library's own scores are not used: its default gives part credit to wrong answers, and some of its
    special scorers evaluate the model's text. Raises UserError for an unknown generator, or one with a special
    scorer (it has more than one right answer).
    """

    stop = ()
    worker_grader = None
    max_new_tokens = 64

    def __init__(self, generator: str, prompt_format: Literal["chat", "plain"] = "chat"):
        import reasoning_gym
        from reasoning_gym.dataset import ProceduralDataset
        from reasoning_gym.factory import DATASETS

        if generator not in DATASETS:
            raise UserError(f"reasoning_gym generator is {generator!r}, accepted are {', '.join(sorted(DATASETS))}")
        single = {name for name, (kind, _) in DATASETS.items() if kind.score_answer is ProceduralDataset.score_answer}
        if generator not in single | _NUMERIC:
            raise UserError(
                f"reasoning_gym generator is {generator!r}, accepted are those with a single right answer: "
                + ", ".join(sorted(single | _NUMERIC))
            )
        self.name = f"reasoning_gym:{generator}"
        self.prompt_format = prompt_format
        self._create = functools.partial(reasoning_gym.create_dataset, generator)

    def row(self, split: Split, index: int, seed: int = 0) -> Row:
        """The first of this row's own generator seeds whose question falls on the split's side."""
        stream = 2**61 if split == "held_out" else (seed % 2**16) * 2**44
        for attempt in range(_ATTEMPTS):
            entry = self._create(seed=stream + index * _ATTEMPTS + attempt, size=1)[0]
            if in_held_out(entry["question"]) == (split == "held_out"):
                return Row(index, entry["question"], str(entry["answer"]))
        raise UserError(
            f"{self.name}: {_ATTEMPTS} draws gave no {split} question; accepted are generators with more questions"
        )

    def size(self, split: Split) -> None:
        return None

    def prompt(self, row: Row, tokenizer: Any) -> tuple[str, str]:
        if self.prompt_format == "chat":
            return chat_prompt(tokenizer, _SYSTEM, row.question)
        return f"{_SYSTEM}\n\n", f"Question: {row.question}\nAnswer:"

    def verify(self, row: Row, completion: str) -> Verdict:
        answer = own_answer(completion).strip()
        numbers = [_DECIMAL.fullmatch(text.replace(",", "")) for text in (answer, row.answer)]
        correct = answer == row.answer or (all(numbers) and len({Fraction(number[0]) for number in numbers}) == 1)
        if not answer:
            return Verdict("unparsable", "no answer", answers={"reward": None})
        same = str(Fraction(numbers[0][0])) if numbers[0] else answer
        return right_or_wrong(correct, answers={"reward": same})
