"""The comparison of two answers: exact match first, then by what they say."""

import contextlib
import dataclasses
import re
from collections.abc import Sequence
from typing import Literal

import sympy

from rlvr_jax.tasks.equality.brackets import Unreadable
from rlvr_jax.tasks.equality.exact import is_zero, same, values_at
from rlvr_jax.tasks.equality.meaning import (
    Answer,
    Choice,
    Collection,
    Grid,
    Numeral,
    Ratio,
    Region,
    Relation,
    Value,
    Words,
)
from rlvr_jax.tasks.equality.notation import LONGEST, canonical
from rlvr_jax.tasks.equality.reading import is_name, read
from rlvr_jax.tasks.equality.regions import points_of

_LONGEST_NAMED = 100
"""Characters of an answer whose value is written out to name it."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    outcome: Literal["same", "different", "unreadable gold", "unreadable answer"]
    reason: str = ""
    """Why a text could not be read."""
    answer: str | None = None
    """The answer where it could be read; answers that are the same as the gold are the same string, and others where
    that can be seen without comparing them."""


def compare(gold: str, answer: str) -> Comparison:
    """Compares two answers in LaTeX or plain text.

    Raises nothing but MemoryError. May take long, so call it where it can be ended.
    """
    if max(len(gold), len(answer)) > LONGEST:
        return Comparison("unreadable gold" if len(gold) > LONGEST else "unreadable answer", "too long")
    left, right = canonical(gold), canonical(answer)
    try:
        expected = read(left)
    except (Unreadable, RecursionError) as error:
        return Comparison("unreadable gold", str(error))
    if _bare(left) == _bare(right):
        return Comparison("same", answer=_bare(left))
    try:
        found = read(right)
    except (Unreadable, RecursionError) as error:
        return Comparison("unreadable answer", str(error))
    try:
        if equal(expected, found):
            return Comparison("same", answer=_bare(left))
        return Comparison("different", answer=_name(found, right))
    except MemoryError:
        raise
    # SymPy raises many kinds of errors where it finds no answer; then nothing is proved.
    except Exception as error:
        return Comparison("different", f"not comparable: {type(error).__name__}", _bare(right))


def _name(answer: Answer, text: str) -> str:
    # Python refuses to write out integers of thousands of digits.
    with contextlib.suppress(ValueError):
        if isinstance(answer, Value) and len(text) <= _LONGEST_NAMED:
            return f"{answer.expression} {answer.unit or ''}".strip()
    return _bare(text)


def _bare(text: str) -> str:
    return re.sub(r"\s", "", text)


def equal(a: Answer, b: Answer) -> bool:
    """Whether two answers say the same. Symmetric."""
    return _equal(a, b) or (type(a) is not type(b) and _equal(b, a))


def _equal(a: Answer, b: Answer) -> bool:
    match a, b:
        case Choice(), Choice():
            return a.letter == b.letter and equal(a.content, b.content)
        case Choice(), _:
            return equal(Words(a.letter), b) or equal(a.content, b)
        case Relation(), Relation():
            return _same_relations(a, b)
        case Relation(), _:
            return _relation_is(a, b)
        case Value(), Value():
            return _same_values(a, b)
        case Words(), Words():
            return _spelling(a.text) == _spelling(b.text)
        case Words(), Value():
            return b.unit is None and _spelling(a.text) == _spelling(b.text)
        case Numeral(), Numeral():
            return a == b
        case Grid(), Grid():
            return a.entries.shape == b.entries.shape and _all_equal(list(a.entries), list(b.entries))
        case Grid(), Collection(kind="tuple"):
            values = [item.expression for item in b.items if isinstance(item, Value)]
            return 1 in a.entries.shape and len(values) == len(b.items) and _all_equal(list(a.entries), values)
        case Ratio(), Ratio():
            return _in_order(a.parts, b.parts)
        case Region(), _:
            points = points_of(b)
            return points is not None and _same_points(a.points, points)
        case Collection(), Collection():
            return _same_collections(a, b)
        case Collection(kind="list" | "set", items=(first, *others)), _:
            # One value, written once or in several ways.
            return equal(first, b) and all(equal(other, b) for other in others)
    return False


def _same_values(a: Value, b: Value) -> bool:
    if a.unit and b.unit and a.unit != b.unit:
        return False
    if same(a.expression, b.expression):
        return True
    # 28 % is 28/100; without the sign it is taken to be left out, as any unit.
    percents = [value.expression / 100 if value.unit == "percent" else value.expression for value in (a, b)]
    return (a.unit == "percent") != (b.unit == "percent") and same(*percents)


def _spelling(text: str) -> str:
    letters = re.sub(r"[^0-9A-Za-z]", "", text)
    return letters if len(letters) == 1 else letters.casefold()


def _all_equal(a: Sequence[sympy.Expr], b: Sequence[sympy.Expr]) -> bool:
    return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))


def _in_order(a: Sequence[Answer], b: Sequence[Answer]) -> bool:
    return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))


def _same_collections(a: Collection, b: Collection) -> bool:
    kinds = {a.kind, b.kind}
    if kinds == {"tuple", "set"}:
        return False
    if "tuple" in kinds or any(item == Words("...") for item in (*a.items, *b.items)):
        return _in_order(a.items, b.items)
    if len(a.items) != len(b.items):
        return False
    rest = list(b.items)
    for item in a.items:
        place = next((i for i, other in enumerate(rest) if equal(item, other)), None)
        if place is None:
            return False
        del rest[place]
    return True


def _same_points(a: sympy.Set, b: sympy.Set) -> bool:
    if a == b:
        return True
    if isinstance(a, sympy.Interval) and isinstance(b, sympy.Interval):
        closed = (a.left_open, a.right_open) == (b.left_open, b.right_open)
        return closed and same(a.start, b.start) and same(a.end, b.end)
    return sympy.SymmetricDifference(a, b).simplify() == sympy.S.EmptySet


def _relation_is(relation: Relation, other: Answer) -> bool:
    """A relation against something else: `x = 11` against 11, `-2 <= x <= 7` against [-2, 7]."""
    points = points_of(relation)
    if points is not None and "=" not in relation.signs:
        return points_of(other) is not None and equal(Region(points), other)
    if not set(relation.signs) <= {"=", "\\equiv"}:
        return False
    first, last = relation.sides[0], relation.sides[-1]
    # "x^2 + y = 0" is not 0, but "m + n = 256 + 37 = 293" is 293.
    worked_out = len(relation.sides) > 2 and all(equal(last, side) for side in relation.sides[1:-1])
    if is_name(first) or worked_out or equal(first, last):
        return equal(last, other)
    return len(relation.sides) == 2 and is_name(last) and equal(first, other)


_FLIPPED = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le"}


def _same_relations(a: Relation, b: Relation) -> bool:
    if len(a.signs) > 1 and set(a.signs) == {"="}:
        a = Relation((a.sides[0], a.sides[-1]), ("=",))
    if len(b.signs) > 1 and set(b.signs) == {"="}:
        b = Relation((b.sides[0], b.sides[-1]), ("=",))
    if len(a.signs) != len(b.signs):
        return False
    reverse = Relation(b.sides[::-1], tuple(_FLIPPED.get(sign, sign) for sign in b.signs[::-1]))
    for other in (b, reverse):
        if a.signs == other.signs and _in_order(a.sides, other.sides):
            return True
    return len(a.signs) == 1 and _proportional(a, b)


def _proportional(a: Relation, b: Relation) -> bool:
    """Whether left minus right of one is a constant times that of the other, positive where the direction counts."""
    sides = (*a.sides, *b.sides)
    if not all(isinstance(side, Value) for side in sides):
        return False
    first, second, third, fourth = (side.expression for side in sides)
    one, two = first - second, third - fourth
    symbols = sorted(one.free_symbols | two.free_symbols, key=str)
    at_point = [values_at(x, symbols, 0) for x in (one, two)]
    if not symbols or is_zero(at_point[0]) or is_zero(at_point[1]):
        return False
    factor = at_point[0] / at_point[1]
    if a.signs[0] in _FLIPPED:
        sign = a.signs[0] if factor.is_positive else _FLIPPED[a.signs[0]]
        if sign != b.signs[0]:
            return False
    elif a.signs != b.signs:
        return False
    return same(one, sympy.expand(factor * two))
