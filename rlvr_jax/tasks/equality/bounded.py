"""Arithmetic on numbers as long as the result has a size that a computer can hold in no time."""

import sympy

from rlvr_jax.tasks.equality.brackets import Unreadable

LARGEST_BITS = 1 << 16
_LARGEST_COUNT = 5000
_HIGHEST_POWER = 1000
_LONGEST_NUMBER = 1000


def number(whole: str, fixed: str = "", period: str = "") -> sympy.Rational:
    """The value of digits in front of the point, behind it, and of a period that repeats for ever."""
    if len(whole) + len(fixed) + len(period) > _LONGEST_NUMBER:
        raise Unreadable("number too long")
    scale = 10 ** len(fixed)
    value = sympy.Rational(int(whole + fixed or "0"), scale)
    return value + sympy.Rational(int(period), scale * (10 ** len(period) - 1)) if period else value


def power(base: sympy.Expr, exponent: sympy.Expr) -> sympy.Expr:
    if base.is_Rational and exponent.is_Rational:
        bits = max(abs(base.p).bit_length(), base.q.bit_length())
        if bits > 1 and (bits - 1) * abs(exponent) > LARGEST_BITS:
            raise Unreadable("number too large")
    elif exponent.is_Rational and abs(exponent) > _HIGHEST_POWER and not base.is_Atom:
        raise Unreadable("power too large")
    return base**exponent


def factorial(value: sympy.Expr) -> sympy.Expr:
    if value.is_Rational and (not value.is_Integer or not 0 <= value <= _LARGEST_COUNT):
        raise Unreadable("factorial too large")
    return sympy.factorial(value)


def binomial(top: sympy.Expr, bottom: sympy.Expr) -> sympy.Expr:
    if top.is_number and not (top.is_Integer and bottom.is_Integer and 0 <= bottom <= top <= _LARGEST_COUNT):
        raise Unreadable("binomial too large")
    return sympy.binomial(top, bottom)
