"""Any procedural generator of the reasoning-gym library, as `reasoning_gym:NAME,parameter=value,...`."""

import dataclasses
import functools
import re
from fractions import Fraction
from typing import Any

from rlvr_jax.errors import UserError
from rlvr_jax.tasks.answers import own_answer
from rlvr_jax.tasks.names import parse_name
from rlvr_jax.tasks.prompting import CHAT, Prompting
from rlvr_jax.tasks.task import Row, Split, Verdict, in_held_out, right_or_wrong

_SYSTEM = "Answer the question. Give only the final answer, with no explanation."
_NUMERIC = {"chain_sum"}
"""Generators whose own scorer does nothing but compare decimal numbers, as this verifier does."""
_DECIMAL = re.compile(r"[+-]?[0-9]{1,30}(?:\.[0-9]{1,30})?")
_ATTEMPTS = 256
"""Generator seeds set aside for one row; the chance that none of them falls on the split's side is (7/8)^256."""
_STREAM = 2**44
"""Generator seeds set aside for one stream of rows: 2**36 of them."""


class ReasoningGym:
    """Questions of one generator; right means equal to the generator's answer, letter for letter or as a number.

    The library's own scores are not used: its default gives part credit to wrong answers, and some of its
    special scorers evaluate the model's text. Raises UserError for an unknown generator, or one with a special
    scorer (it has more than one right answer), and for parameters that it does not have.

    The library's item i of seed s is that of seed s + i, so neighbouring seeds share items. Here every stream of rows
    (held-out rows, examples for the prompt, train rows of each seed) has generator seeds of its own, and a question is
    kept in train or in held-out by its text alone, so that even equal draws are on one side only.
    """

    stop = ()
    worker_grader = None
    max_new_tokens = 64

    def __init__(self, name: str, prompting: Prompting = CHAT):
        import reasoning_gym
        from reasoning_gym.dataset import ProceduralDataset
        from reasoning_gym.factory import DATASETS

        generator, parameters = parse_name(name.removeprefix("reasoning_gym:"))
        if generator not in DATASETS:
            raise UserError(f"reasoning_gym generator is {generator!r}, accepted are {', '.join(sorted(DATASETS))}")
        single = {name for name, (kind, _) in DATASETS.items() if kind.score_answer is ProceduralDataset.score_answer}
        if generator not in single | _NUMERIC:
            raise UserError(
                f"reasoning_gym generator is {generator!r}, accepted are those with a single right answer: "
                + ", ".join(sorted(single | _NUMERIC))
            )
        fields = {field.name for field in dataclasses.fields(DATASETS[generator][1])} - {"seed", "size"}
        if not set(parameters) <= fields:
            raise UserError(f"task is {name!r}, accepted parameters of {generator} are {', '.join(sorted(fields))}")
        self.name, self.prompting = name, prompting
        self._create = functools.partial(reasoning_gym.create_dataset, generator, **parameters)
        try:
            self._create(seed=0, size=1)
        # The library asserts its limits, and trips over values of another type.
        except (AssertionError, TypeError, ValueError) as error:
            raise UserError(f"task is {name!r}: {error}; accepted are values that the generator takes") from error

    def row(self, split: Split, index: int, seed: int = 0) -> Row:
        """The first of this row's own generator seeds whose question falls on the split's side."""
        return self._drawn(0 if split == "held_out" else 2 + seed, index, split)

    @functools.cached_property
    def examples(self) -> tuple[tuple[str, str], ...]:
        """Questions with answers for the prompt, on the train side."""
        rows = [self._drawn(1, i, "train") for i in range(self.prompting.shots)]
        return tuple((row.question, row.answer) for row in rows)

    def _drawn(self, stream: int, index: int, split: Split) -> Row:
        for attempt in range(_ATTEMPTS):
            entry = self._create(seed=stream * _STREAM + index * _ATTEMPTS + attempt, size=1)[0]
            if in_held_out(entry["question"]) == (split == "held_out"):
                return Row(index, entry["question"], str(entry["answer"]))
        raise UserError(
            f"{self.name}: {_ATTEMPTS} draws gave no {split} question; accepted are generators with more questions"
        )

    def size(self, split: Split) -> None:
        return None

    def prompt(self, row: Row, tokenizer: Any) -> tuple[str, str]:
        return self.prompting.prompt(tokenizer, _SYSTEM, self.examples, row.question)

    def verify(self, row: Row, completion: str) -> Verdict:
        answer = own_answer(completion).strip()
        numbers = [_DECIMAL.fullmatch(text.replace(",", "")) for text in (answer, row.answer)]
        correct = answer == row.answer or (all(numbers) and len({Fraction(number[0]) for number in numbers}) == 1)
        if not answer:
            return Verdict("unparsable", "no answer", answers={"reward": None})
        same = str(Fraction(numbers[0][0])) if numbers[0] else answer
        return right_or_wrong(correct, answers={"reward": same})
