"""Answers that are sets of numbers: intervals, their unions, and inequalities with one unknown."""

import sympy

from rlvr_jax.tasks.equality.meaning import Answer, Collection, Region, Relation, Value


def points_of(answer: Answer) -> sympy.Set | None:
    """The set that an answer describes where it can be meant as one."""
    if isinstance(answer, Region):
        return answer.points
    if isinstance(answer, Relation):
        return region_of(answer)
    if isinstance(answer, Collection):
        values = [item.expression for item in answer.items if isinstance(item, Value)]
        if len(values) == len(answer.items):
            if answer.kind in ("set", "list"):
                return sympy.FiniteSet(*values)
            if answer.kind == "tuple" and len(values) == 2 and ascending(*values):
                return sympy.Interval(*values, True, True)
    return None


def region_of(relation: Relation) -> sympy.Set | None:
    """The solutions of a chain of inequalities in one unknown that stands alone, as an interval."""
    if not all(isinstance(side, Value) for side in relation.sides) or "\\equiv" in relation.signs:
        return None
    unknowns = [place for place, side in enumerate(relation.sides) if side.expression.free_symbols]
    if len(unknowns) != 1 or not relation.sides[unknowns[0]].expression.is_Symbol or relation.signs[0] == "=":
        return None
    points: sympy.Set = sympy.S.Reals
    for place, sign in enumerate(relation.signs):
        left, right = relation.sides[place].expression, relation.sides[place + 1].expression
        if place + 1 == unknowns[0]:
            left, right, sign = right, left, {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le"}.get(sign, sign)
        elif place != unknowns[0]:
            return None
        half = {
            "<": lambda end: sympy.Interval.open(-sympy.oo, end),
            ">": lambda end: sympy.Interval.open(end, sympy.oo),
            "\\le": lambda end: sympy.Interval(-sympy.oo, end),
            "\\ge": lambda end: sympy.Interval(end, sympy.oo),
            "\\ne": lambda end: sympy.Complement(sympy.S.Reals, sympy.FiniteSet(end)),
        }.get(sign)
        if half is None or not right.is_extended_real:
            return None
        points = sympy.Intersection(points, half(right))
    return points


def ascending(low: sympy.Expr, high: sympy.Expr) -> bool:
    if not (low.is_extended_real and high.is_extended_real):
        return False
    return (low < high) is not sympy.false
