"""Equality of mathematical answers: each kind with its right and its wrong neighbours, in both directions."""

import threading

import pytest
import sympy

from rlvr_jax.tasks.equality import compare
from rlvr_jax.tasks.equality.exact import same
from rlvr_jax.tasks.equality.formula import formula

PAIRS = [
    # (same, one, other)
    (True, r"30^\circ", r"30 \text{ degrees}"),
    (True, r"30^\circ", "30 degrees"),
    (False, r"36^\circ", r"\$36"),
    (True, r"\sin 30^\circ", r"\frac12"),
    (True, r"\sin(30^\circ)", "1/2"),
    (False, r"2 \text{ m}", r"2 \text{ cm}"),
    (True, r"\frac{270}7\text{ degrees}", r"\frac{270}{7}"),
    (True, r"864 \mbox{ inches}^2", r"864 \text{ square inches}"),
    (False, r"864 \mbox{ inches}^2", r"864 \text{ inches}"),
    (False, r"864 \mbox{ inches}^2", r"864 \text{ square feet}"),
    (True, r"5.4 \text{ cents}", "5.4"),
    (False, r"5.4 \text{ cents}", r"5.4 \text{ dollars}"),
    (False, r"5 \text{ cents}", r"\$5"),
    (True, r"\$5", r"5 \text{ dollars}"),
    (True, r"\$5", "5"),
    (True, r"\$36", r"\$36.00"),
    (False, r"\frac{2^{2005}+1}{3\cdot 2^{2006}}", r"\frac{1}{3\cdot 2^{2006}}"),
    (False, r"1,2,\ldots,n", r"1,3,5,\ldots,2n-1"),
    (True, r"1,2,\ldots,n", r"1, 2, \dots, n"),
    (False, r"1:2:3:\ldots", r"1:4:9:\ldots"),
    (False, r"\sqrt[3]{54}", r"3\sqrt{6}"),
    (False, "-2,1,0", "-2,1"),
    (False, r"2\frac23", "4/3"),
    (True, r"2\frac23", "8/3"),
    (True, r"137 \frac{1}{2}", "137.5"),
    (True, "1 4/5", r"1\frac{4}{5}"),
    (True, "9/5", "1 4/5"),
    (True, r"-1\frac{4}{5}", "-9/5"),
    (False, "23", "2,3"),
    (True, r"\pi/2", "pi/2"),
    (True, r"e^{i\pi/3}", r"e^{\frac{i \pi}{3}}"),
    (True, r"e^{i\pi/3}", r"e^{\frac{\pi i}{3}}"),
    (True, "1000000", r"1\,000\,000"),
    (True, "1000000", "1,000,000"),
    (True, r"\frac13", r"0.\overline{3}"),
    (False, r"\frac13", "0.333"),
    (False, r"\frac13", "0.33333333333333"),
    (True, r"0.1\overline{6}", "1/6"),
    (True, r"x \in [-2,7]", "[-2,7]"),
    (True, r"x \in [-2,7]", r"-2 \leq x \leq 7"),
    (True, r"(2,\infty)", "x > 2"),
    (False, r"(2,\infty)", r"x \ge 2"),
    (True, r"(-\infty, 2) \cup (3, \infty)", r"x < 2 \text{ or } x > 3"),
    (True, r"(-\infty, 2) \cup (3, \infty)", r"(-\infty,2) U (3,\infty)"),
    (True, r"(-\infty, 3) \cup (3, \infty)", r"x \neq 3"),
    (True, r"\mathbb{R} \setminus \{3\}", r"(-\infty, 3) \cup (3, \infty)"),
    (True, r"\mathbb{R}", r"(-\infty, \infty)"),
    (True, r"\left(\frac{3}{5},\frac{8}{3}\right]", r"(0.6, \frac83]"),
    (True, "(a+5)(b+2)", "(b+2)(a+5)"),
    (False, "204_5", "2045"),
    (True, "2516_8", "2516_{8}"),
    (False, "52_8", "52_{7}"),
    (True, r"3 \pm 2 \sqrt{2}", r"3-2\sqrt2, 3+2\sqrt2"),
    (True, r"3 \pm 2 \sqrt{2}", r"x = 3 \pm 2\sqrt{2}"),
    (True, r"3 \pm 2 \sqrt{2}", r"x = 3 + 2\sqrt{2} \text{ or } x = 3 - 2\sqrt{2}"),
    (True, r"\{1\pm\sqrt{5},-2\}", r"\{-2, 1+\sqrt5, 1-\sqrt5\}"),
    (True, r"\{1\pm\sqrt{5},-2\}", r"-2, 1+\sqrt5, 1-\sqrt5"),
    (True, r"\text{(C)}", "C"),
    (True, r"\text{(C)}", "(C)"),
    (True, r"\text{(C)}", r"\text{C}"),
    (False, r"\text{(C)}", "D"),
    (True, "C", r"\textbf{(C)}"),
    (True, r"\text{ellipse}", "ellipse"),
    (True, r"\text{ellipse}", "Ellipse"),
    (False, r"\text{ellipse}", "parabola"),
    (
        True,
        r"\begin{pmatrix} -1/3 \\ 2/3 \\ 5/3 \end{pmatrix}",
        r"\begin{pmatrix} -\frac{1}{3} \\ \frac{2}{3} \\ \frac{5}{3} \end{pmatrix}",
    ),
    (True, r"\begin{pmatrix} -1/3 \\ 2/3 \end{pmatrix}", r"\frac{1}{3}\begin{pmatrix} -1 \\ 2 \end{pmatrix}"),
    (
        True,
        r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}",
        r"\left[\begin{array}{cc} 1 & 2 \\ 3 & 4 \end{array}\right]",
    ),
    (True, r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{bmatrix} 1 & 2 \\[2mm] 3 & 4 \\ \end{bmatrix}"),
    (True, "y = 2x + 3", "2x - y + 3 = 0"),
    (True, "y = -2x", "y=-2x"),
    (False, "y = -2x", "y=2x"),
    (True, "5x - 7y + 11z + 4 = 0", "10x - 14y + 22z + 8 = 0"),
    (False, "3x-y+13=0", "3x+4y+14=0"),
    (True, "x=5", "5"),
    (True, "x=5", "x = 5"),
    (False, "x=5", "y = 5"),
    (True, "12", r"\text{Area} = 12"),
    (True, "12", "f(3) = 12"),
    (True, "12", r"\triangle ABC = 12"),
    (True, "12", "P(X=2) = 12"),
    (False, "0", "x^2+y=0"),
    (False, "7", r"5 \text{ or } 7"),
    (False, "7", "5 or 7"),
    (False, "7", "7, 5"),
    (True, "5,7", "5 or 7"),
    (True, "7", "7."),
    (True, "7", r"\{7\}"),
    (True, r"\cot x", r"\frac{\cos x}{\sin x}"),
    (True, r"\cot x", r"\frac{1}{\tan x}"),
    (False, r"\cot x", r"\tan x"),
    (True, "x^5 - x^4 + x^3 - x^2 + x - 1", "(x-1)(x^4+x^2+1)"),
    (True, r"\frac{11+9a}{20}", r"\frac{9a+11}{20}"),
    (True, "2k", "k+k"),
    (True, "6r^2-4r-24", "2(3r^2 - 2r - 12)"),
    (True, r"70 \sqrt{2}", r"\sqrt{9800}"),
    (True, r"\frac{\sqrt{21}}{5}", r"\sqrt{0.84}"),
    (True, r"\frac{1}{\sqrt6}", r"\frac{\sqrt{6}}{6}"),
    (True, r"\sqrt{5+2\sqrt6}", r"\sqrt2+\sqrt3"),
    (False, r"\sqrt{5+2\sqrt6}", r"\sqrt2+\sqrt{3.0000000001}"),
    (True, r"\frac{20000}{\pi}", r"20000/\pi"),
    (True, r"\left[ \frac{\pi^2}{8}, \frac{5 \pi^2}{4} \right]", r"[\pi^2/8, 5\pi^2/4]"),
    (True, r"2\pi", "2*pi"),
    (True, r"-2\pi", "\u22122\u03c0"),
    (True, r"\frac{3}{4}", r"75\%"),
    (True, r"28\%", r"28 \%"),
    (True, r"28\%", r"28\text{ percent}"),
    (True, r"28\%", "28"),
    (False, "0.28", "28"),
    (False, r"20\%", r"25\%"),
    (False, r"28\%", "28 cm"),
    (True, r"10,\!080", "10080"),
    (True, r"11,\! 111,\! 111,\! 100", "11111111100"),
    (True, "58,500", "58500"),
    (True, r"\$32,\!348", "32348"),
    (True, ".0000672", r"6.72 \times 10^{-5}"),
    (True, ".0000672", "6.72 * 10^-5"),
    (True, "12:00", "12 : 00"),
    (False, "12:00", "1:00"),
    (False, "32349", "32, 349"),
    (False, r"\log 2", r"\ln 2"),
    (True, r"\log_{10} 2", r"\log 2"),
    (True, r"\binom{5}{2}", "10"),
    (True, "5!", "120"),
    (True, "|x-3|", "|3-x|"),
    (True, "2|x|", "|2x|"),
    (False, r"\sqrt{x^2}", "x"),
    (True, r"\frac{1}{2}\ln 2", r"\ln\sqrt{2}"),
    (True, r"2\ln 3", r"\ln 9"),
    (True, r"\log_2 3", r"\frac{\ln 3}{\ln 2}"),
    (True, "1+274i", "274i+1"),
    (False, "1+274i", "1-274i"),
    (True, r"\tan^{-1} 2", r"\arctan 2"),
    (True, "2^{10}", "2^10"),
    (True, "x^{10}", "x^10"),
    (True, r"\frac{x}{y}", "x/y"),
    (True, "xy", "yx"),
    (False, r"\text{abc}", r"\text{cab}"),
    (False, "a_1", "a_2"),
    (False, "2(3)", "5"),
    (False, "2 3", "5"),
    (False, "2 3", "6"),
    (True, r"\frac{1}{1-x}", r"-\frac{1}{x-1}"),
    (True, r"\sum_{k=1}^{4} k", "10"),
    (True, r"\frac{3}{2}", r"1.5 \text{ units}"),
    (True, r"12 \text{ square units}", "12"),
    (True, r"125 \text{ miles}", "125 mi"),
    (True, r"540 \text{ meters/week}", "540 meters per week"),
    (False, r"540 \text{ meters/week}", "540 meters per day"),
    (True, r"(3, \frac{\pi}{2})", "(3, pi/2)"),
    (True, r"(r,\theta) = (3, \frac{\pi}{2})", "(3, pi/2)"),
    (False, "(1,2)", "(2,1)"),
    (True, "(6,31,-1)", r"\langle 6,31,-1\rangle"),
    (True, "0", "-0"),
    (False, r"\infty", r"-\infty"),
    (True, r"\infty", r"+\infty"),
    (True, "x^2+1", "f(x) = x^2+1"),
    (True, "f(x)=x^2+1", "f(x) = 1 + x^2"),
    (False, "10^{-9}", "0"),
    (False, r"\frac{1}{2^{99}}", "0"),
    (False, "e^{-1000}", "0"),
    (False, "1+e^{-1000}", "1"),
    (True, r"\{x \mid x > 3\}", r"(3,\infty)"),
    (True, r"\{x : -1 \le x < 4\}", "[-1,4)"),
    (True, r"\emptyset", r"\{\}"),
    (True, r"\emptyset", r"\{ \}"),
    (True, r"\text{no solution}", "no solution"),
    (True, r"3 \text{ and } 4", "3, 4"),
    (True, "x=3, x=4", "3,4"),
    (True, "x=3, y=4", "y=4, x=3"),
    (False, "x=3, y=4", "x=4, y=3"),
    (True, "(x,y)=(3,4)", "(3,4)"),
    (True, r"A = \frac{1}{2}bh", r"\frac{bh}{2}"),
    (True, r"3\sqrt{2}\text{ cm}", r"3\sqrt2 cm"),
    (True, r"\frac{\sqrt{3}}{3}", r"\frac{\sqrt 3}3"),
    (True, r"\sqrt{2}/2", "sqrt(2)/2"),
    (True, r"3\sqrt{5}", "3sqrt5"),
    (True, "x^{-1}", r"\frac1x"),
    (True, "2^{-3}", "0.125"),
    (True, r"-\frac{3}{8}", r"\frac{-3}{8}"),
    (True, r"-\frac{3}{8}", r"\frac{3}{-8}"),
    (True, r"\frac{2}{3}\pi", r"\frac{2\pi}{3}"),
    (True, "8n^2 + 4n + 1", "4n(2n+1)+1"),
    (True, r"60^{\circ}", "60\u00b0"),
    (True, r"\text{June 20}", "June 20"),
    (False, r"\text{June 20}", "June 2"),
    (True, r"11\sqrt{5}+11", r"11(1+\sqrt{5})"),
    (True, "[0,1]", r"0 \leq x \leq 1"),
    (True, "(0,1)", "0 < x < 1"),
    (True, "0<x<1", "1 > x > 0"),
    (True, r"x \ge 1", r"1 \le x"),
    (True, "a < b < c", "c > b > a"),
    (True, r"\frac{n(n+1)}{2}", r"\binom{n+1}{2}"),
    (True, r"\text{(2, 3)}", "(2,3)"),
    (True, r"16\pi \text{ square inches}", r"16\pi"),
    (True, r"\frac{9}{2}\text{ or }4.5", "4.5"),
    (True, "2^{2010}", "4^{1005}"),
    (True, r"4 + 2\sqrt{3}", r"(1+\sqrt3)^2"),
    (True, r"12 \text{ in}", "12 in"),
    (True, r"12 \text{ inches}", "12 in"),
    (True, "[1,2]", "x in [1,2]"),
    (True, r"(1,2)\cup(3,4)", "(1,2) union (3,4)"),
    (True, r"9 \text{ cm}^3", "9 cubic centimeters"),
    (False, r"9 \text{ cm}^3", "9 cm^2"),
]


@pytest.mark.parametrize(("expected", "one", "other"), PAIRS)
def test_pairs_in_both_directions(expected, one, other):
    outcomes = [compare(one, other).outcome, compare(other, one).outcome]
    assert [outcome == "same" for outcome in outcomes] == [expected, expected], outcomes
    assert compare(one, one).outcome == compare(other, other).outcome == "same" or not expected


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
