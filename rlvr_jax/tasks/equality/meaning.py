"""What an answer can say."""

import dataclasses
from typing import Literal

import sympy


@dataclasses.dataclass(frozen=True)
class Value:
    expression: sympy.Expr
    unit: str | None
    text: str
    """As written, for the comparison with words."""


@dataclasses.dataclass(frozen=True)
class Words:
    text: str


@dataclasses.dataclass(frozen=True)
class Numeral:
    digits: str
    base: int


@dataclasses.dataclass(frozen=True)
class Collection:
    """`list` is what stands in no brackets, `tuple` is ordered, `set` is not."""

    kind: Literal["list", "tuple", "set"]
    items: tuple["Answer", ...]


@dataclasses.dataclass(frozen=True)
class Region:
    """Intervals and their unions. An open interval of two numbers is read as a `tuple`."""

    points: sympy.Set


@dataclasses.dataclass(frozen=True)
class Grid:
    """A matrix, row by row."""

    entries: sympy.ImmutableMatrix


@dataclasses.dataclass(frozen=True)
class Ratio:
    """Parts between colons: a ratio or a time of day."""

    parts: tuple["Answer", ...]


@dataclasses.dataclass(frozen=True)
class Relation:
    """`sides[0] signs[0] sides[1] ...`."""

    sides: tuple["Answer", ...]
    signs: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Choice:
    """A letter of a multiple choice with what it stands for: "(B) 12"."""

    letter: str
    content: "Answer"


Answer = Choice | Value | Words | Numeral | Collection | Region | Grid | Ratio | Relation
