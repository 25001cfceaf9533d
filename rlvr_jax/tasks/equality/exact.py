"""Exact equality of expressions: two values that cannot be proved equal are different."""

import functools

import sympy

_DIGITS = 40
_AGREE, _TINY, _VISIBLE = (sympy.Float(10) ** -digits for digits in (_DIGITS - 8, _DIGITS, _DIGITS // 2))
_POINTS = ((2, 7), (-3, 5), (11, 3))
"""Fractions at which expressions with unknowns are compared before anything is proved."""


@functools.lru_cache(8192)
def same(a: sympy.Expr, b: sympy.Expr) -> bool:
    """Whether two expressions are equal for every real value of their unknowns. Symmetric."""
    if a == b:
        return True
    if a.is_Rational and b.is_Rational:
        return False
    if a.has(sympy.oo, -sympy.oo) or b.has(sympy.oo, -sympy.oo):
        return False
    return _agree_numerically(a, b) and is_zero(a - b)


def is_zero(difference: sympy.Expr) -> bool:
    """Whether a proof is found that the expression is zero."""
    steps = (lambda x: x, sympy.expand, _as_fraction, sympy.simplify)
    return any(step(difference) == 0 for step in steps) or difference.equals(0) is True


def _as_fraction(expression: sympy.Expr) -> sympy.Expr:
    return sympy.cancel(sympy.together(expression))


def values_at(expression: sympy.Expr, symbols: list[sympy.Symbol], point: int) -> sympy.Expr:
    top, bottom = _POINTS[point]
    return expression.subs({x: sympy.Rational(top + 2 * i, bottom + i) for i, x in enumerate(symbols)})


def _agree_numerically(a: sympy.Expr, b: sympy.Expr) -> bool:
    """False only where they differ: compared relative to their size, so that no tiny value looks like zero."""
    symbols = sorted(a.free_symbols | b.free_symbols, key=str)
    for point in range(len(_POINTS) if symbols else 1):
        pair = [values_at(x, symbols, point) for x in (a, b)]
        left, right = (x.evalf(_DIGITS) for x in pair)
        if not (left.is_number and right.is_number and left.is_finite and right.is_finite):
            continue
        small, large = sorted((abs(left), abs(right)))
        # A zero that is not written as zero has no digits to compare: only the other may tell them apart.
        if small < _TINY and large < _VISIBLE:
            continue
        if abs(left - right) > _AGREE * large:
            return False
    return True
