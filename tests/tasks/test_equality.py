"""Equality of mathematical answers: each kind with its right and its wrong neighbours, in both directions."""

import threading
from pathlib import Path

import pytest
import sympy

from rlvr_jax.tasks.equality import compare
from rlvr_jax.tasks.equality.exact import same
from rlvr_jax.tasks.equality.formula import formula


def read_pairs():
    """{kind: [(same, one, other), ...]} from the file beside this one."""
    pairs, kind = {}, ""
    for line in Path(__file__).with_name("equality_pairs.txt").read_text(encoding="utf-8").splitlines()[1:]:
        if line.startswith("["):
            kind = line.strip("[]")
        elif line:
            one, other = line[2:].split("  ~  ")
            pairs.setdefault(kind, []).append((line[0] == "=", one, other))
    return pairs


PAIRS = read_pairs()


def outcomes(one, other):
    """In both directions."""
    return [compare(one, other).outcome, compare(other, one).outcome]


@pytest.mark.parametrize("kind", PAIRS)
def test_what_is_the_same(kind):
    same = [pair for is_same, *pair in PAIRS[kind] if is_same]
    assert len(same) > 5
    assert [pair for pair in same if outcomes(*pair) != ["same", "same"]] == []
    assert [text for pair in same for text in pair if compare(text, text).outcome != "same"] == []


@pytest.mark.parametrize("kind", PAIRS)
def test_what_is_different(kind):
    different = [pair for is_same, *pair in PAIRS[kind] if not is_same]
    assert different
    assert [pair for pair in different if "same" in outcomes(*pair)] == []


@pytest.mark.parametrize(
    "gold", ["", " ", "?", "\\frac{1}", "((1)", "2 3", "1 +", "\\unknown{3}", "9" * 3000, "{" * 60]
)
def test_a_gold_that_cannot_be_read_earns_nothing(gold):
    for answer in (gold, "1", "", "0"):
        assert compare(gold, answer).outcome == "unreadable gold"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"\frac12", sympy.Rational(1, 2)),
        (r"\frac1{72}", sympy.Rational(1, 72)),
        (r"\frac{x+1}2", (sympy.Symbol("x", real=True) + 1) / 2),
        (r"0.1", sympy.Rational(1, 10)),
        (r"0.1\overline{6}", sympy.Rational(1, 6)),
        (r"\sqrt[3]{-8}", sympy.Integer(-2)),
        (r"\sqrt 5", sympy.sqrt(5)),
        (r"-2^2", sympy.Integer(-4)),
        (r"2^-1", sympy.Rational(1, 2)),
        (r"1/2\pi", sympy.pi / 2),
        (r"\sin^2 x\cos x", sympy.sin(sympy.Symbol("x", real=True)) ** 2 * sympy.cos(sympy.Symbol("x", real=True))),
        (r"\sin 2x", sympy.sin(2 * sympy.Symbol("x", real=True))),
        (r"|2-5|", sympy.Integer(3)),
        (r"e^{i\pi}", sympy.Integer(-1)),
        (r"\lfloor -2.5 \rfloor", sympy.Integer(-3)),
        (r"\gcd(12, 18)", sympy.Integer(6)),
        (r"\prod_{k=1}^{5} k", sympy.Integer(120)),
    ],
)
def test_formulas_have_exact_values(text, value):
    assert formula(text) == value


def test_towers_and_factorials_are_refused_without_being_computed():
    for text in (
        r"5^{5^{5^{5}}}",
        "9^9^9^9",
        "(10^9)!",
        "((9!)!)!",
        r"\binom{10^9}{10^8}",
        r"2^{-2^{99}}",
        r"(x+y)^{9999}",
    ):
        assert compare("3125", text).outcome == "unreadable answer"


def test_what_cannot_be_proved_is_different():
    x = sympy.Symbol("x", real=True)
    assert same(sympy.sin(x) ** 2 + sympy.cos(x) ** 2, sympy.Integer(1))
    assert not same(1 + sympy.exp(-1000), sympy.Integer(1))
    assert not same(sympy.Rational(1, 2**2000), sympy.Rational(1, 2**2001))
    # Agrees to 12 digits: e^(pi sqrt 163) against the integer beside it.
    assert not same(sympy.exp(sympy.pi * sympy.sqrt(163)), sympy.Integer(640320**3 + 744))


def test_off_the_main_thread_without_signals():
    outcomes = []
    thread = threading.Thread(target=lambda: outcomes.append(compare(r"\tan^2(y)+1", r"\sec^2(y)").outcome))
    thread.start()
    thread.join()
    assert outcomes == ["same"]
