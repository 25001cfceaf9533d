"""The verifier of MATH on completions: extraction, the grading cases, the golds of MATH-500, hostile text."""

import json
import random
from pathlib import Path

import pytest

from rlvr_jax.tasks.equality import compare
from rlvr_jax.tasks.math_grading import grade

DATA = Path(__file__).parents[3] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the data folder beside the project is absent")

CASES = [
    # (gold, completion, outcome)
    ("34", "Final Answer: The largest $n$ is 34.", "correct"),
    ("3", "Jane started growing the sphere 3 hours ago.", "correct"),
    (r"12\text{ and }13", r"It lies between $\boxed{12 $ and $13 }$.", "correct"),
    ("1,-2", r"The integers are: \[ \boxed{-2} \quad \text{and} \quad \boxed{1}. \]", "correct"),
    (r"\frac{639}{40}", r"This is $\boxed{15\frac{39}{40}},$ or $\boxed{\frac{639}{40}}$ inches.", "correct"),
    (r"28\%", r"The final answer is $28 \%$. I hope it is correct.", "correct"),
    (r"28\%", "So the loss is $28$ percent.", "correct"),
    ("5", "Solving gives x = 5.", "correct"),
    ("0", "The curve is x^2 + y = 0.", "wrong"),
    ("3", "The answer is $3\\pi$.", "wrong"),
    ("5", "The answer is 5 or 7.", "wrong"),
    ("9", r"The answer is $\boxed{9}$, which leaves a remainder of $7$.", "correct"),
    ("5", r"<think>\boxed{5}</think>\boxed{6}", "wrong"),
    ("2", "#### 2", "correct"),
    ("5", "", "unparsable"),
    ("5", "I do not know.", "unparsable"),
    ("5", r"\boxed{f(5}", "unparsable"),
    ("0.5", r"\boxed{print(0.5) or 1}", "wrong"),
    (r"\frac{", r"\boxed{\frac{}{}}", "unparsable"),
]


@pytest.mark.parametrize(("gold", "completion", "outcome"), CASES)
def test_verdicts(gold, completion, outcome):
    assert grade(completion, gold).outcome == outcome


@needs_data
def test_grading_cases_without_an_error():
    cases = [json.loads(line) for line in (DATA / "grading" / "cases.jsonl").read_text().splitlines()]
    cases = [case for case in cases if case["task"] == "math"]
    assert len(cases) > 100
    assert [case["id"] for case in cases if grade(case["response"], case["gold"]).correct != case["correct"]] == []


SIZES = ("count", [300, pytest.param(20_000, marks=pytest.mark.slow)])


@needs_data
def test_golds_are_right():
    rows = [json.loads(line) for line in (DATA / "math500" / "test.jsonl").read_text().splitlines()]
    forms = (r"Thus \[ \boxed{%s} \]", r"The answer is $%s$.", "The answer is %s.", "So it is.\n#### %s")
    for row in rows:
        assert grade(row["solution"], row["answer"]).correct
        for form in forms:
            assert grade(form % row["answer"], row["answer"]).correct, (form, row["answer"])


@needs_data
@pytest.mark.parametrize(*SIZES)
def test_no_gold_is_right_for_another(count):
    golds = [json.loads(line)["answer"] for line in (DATA / "math500" / "test.jsonl").read_text().splitlines()]
    generator = random.Random(0)
    alike = {frozenset(pair) for pair in (("120", "120^\\circ"), ("5", "x=5"), ("15", "15\\mbox{ cm}^2"))}
    for _ in range(count):
        pair = generator.sample(golds, 2)
        if compare(*pair).outcome == "same":
            assert pair[0] == pair[1] or frozenset(pair) in alike, pair


PIECES = r"""
\frac { } ( ) [ ] \sqrt ^ _ 1 2 345 0.5 x \pi + - * / \left \right \{ \} \cup \in , ; = < \le \pm \text{ and or \sin
\log ! | \infty e i \overline \begin{pmatrix} \end{pmatrix} & \\ $ \% ^\circ \binom eval( \boxed{ #### </think> \gcd
__import__('os').system('touch_x') \ldots : \approx \mathbb{R} cm \$ x^{999} 9^9 \lfloor \rfloor
"""


@pytest.mark.parametrize(*SIZES)
def test_no_string_raises_or_is_right_by_chance(count):
    generator = random.Random(0)
    for _ in range(count):
        text = "".join(
            generator.choices([*PIECES.split(), " ", "\n", "\x00", "\u2212"], k=generator.choice((2, 4, 8, 30)))
        )
        for completion in (text, f"\\boxed{{{text}}}"):
            assert not grade(completion, "7919").correct
            grade(completion, text)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 5000 + ")" * 5000, r"\frac{1}{" * 600 + "2" + "}" * 600, "^".join("9" * 500), "9^{" * 30 + "9" + "}" * 30,
        "-" * 1900 + "1", r"\pm 1 " * 300, "1," * 900, "7" * 1900, r"\sqrt{" + "7" * 900 + "}", "(x+y+z)^{500}",
    ],
)  # fmt: skip
def test_large_answers_are_refused_or_read_in_time(text):
    assert not grade(f"\\boxed{{{text}}}", "7919").correct
