"""The verifier of MATH on completions: extraction, the grading cases, the golds of MATH-500, hostile text."""

import builtins
import json
import random
from pathlib import Path

import pytest
import sympy.parsing.sympy_parser

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


READINGS = [
    # (gold, completion, correct)
    ("12", "Thus $x=12$.", True),
    ("12", "Thus $x=12$", True),
    ("12", "Therefore the total is 12 apples.", True),
    ("12", r"So we need $\boxed{12}$ apples and 3 pears.", True),
    ("3", r"So we need $\boxed{12}$ apples and 3 pears.", False),
    (r"\frac{3}{4}", r"**Final Answer**\n\n$\frac{3}{4}$", True),
    (r"\frac{3}{4}", "**Final Answer**\n\n\\[\n\\frac{3}{4}\n\\]", True),
    (r"\frac{3}{4}", "The answer is:\n$$\\frac{3}{4}$$", True),
    (r"\frac{3}{4}", r"Answer: $\frac{3}{4}$", True),
    (r"\frac{3}{4}", "Answer: 3/4", True),
    (r"\frac{3}{4}", "**Answer**: 3/4", True),
    (r"\frac{3}{4}", "The final answer is **3/4**.", True),
    (r"\frac{3}{4}", r"<answer>\frac{3}{4}</answer>", True),
    (r"\frac{3}{4}", r"<answer>$\frac{3}{4}$</answer>", True),
    (r"\frac{3}{4}", "<answer>\nThe answer is \\boxed{\\frac{3}{4}}\n</answer>", True),
    ("5", r"\boxed{5} is what I first thought, but it is \boxed{6}", False),
    ("6", r"\boxed{5} is what I first thought, but it is \boxed{6}", True),
    ("5", r"<think>hmm \boxed{6}</think> \boxed{5}", True),
    ("5", r"<think>hmm \boxed{5}", False),
    ("5", r"\boxed{5", False),
    ("5", "\\boxed{5}\n\nUser: what about 6?\nAssistant: \\boxed{6}", True),
    ("6", "\\boxed{5}\n\nUser: what about 6?\nAssistant: \\boxed{6}", False),
    ("5", "\\boxed{5}\n\nQuestion: what about 6?\nAnswer: \\boxed{6}", True),
    ("5", "\\boxed{5}\n\nProblem:\nFind 6.\n\\boxed{6}", True),
    ("(0,1)", "The domain is (0,1).", True),
    ("(0,1)", "The domain is $(0,1)$.", True),
    ("[2,5)", r"Hence $x \in [2,5)$.", True),
    ("x^2+1", "So $f(x) = x^2+1$.", True),
    (r"\text{Evelyn}", "So the answer is Evelyn.", True),
    (r"\text{Evelyn}", r"The answer is \textbf{Evelyn}.", True),
    (r"\text{Evelyn}", "The answer is Briana, not Evelyn.", False),
    ("4", "The answer is not 4.", False),
    ("4", "I get 4 or maybe 5.", False),
    ("4", "The answer is between 4 and 5.", False),
    ("4", "The answer is either 4 or 5.", False),
    ("4", "The answer is approximately 4.", True),
    ("4", "The answer is $x = 4$, where $x$ is the side.", True),
    ("7", r"Since 16=9+7 we have $\boxed{16 - 9 = 7}$", True),
    ("16", r"$\boxed{16 - 9 = 7}$", False),
    ("7", r"\boxed{\text{The answer is } 7}", True),
    ("7", r"\boxed{\textbf{7}}", True),
    ("7", r"\boxed{\mathbf{7}}", True),
    ("7", r"\boxed{\color{red}7}", True),
    ("7", r"$$\boxed{7}$$ I hope it is correct.", True),
    ("7", r"\[ \boxed{ 7 } \]", True),
    ("7", r"\boxed{7.}", True),
    ("7", r"\boxed{x=7}", True),
    ("7", r"\boxed{\$7}", True),
    ("7", r"\boxed{\$7.00}", True),
    ("7", r"\boxed{7\text{ units}}", True),
    ("7", r"\boxed{+7}", True),
    ("7", r"\boxed{(7)}", True),
    ("7", r"\boxed{{7}}", True),
    ("7", r"\boxed{\left(7\right)}", True),
    ("7", r"\boxed{07}", True),
    ("7", r"\boxed{7!}", False),
    ("7", r"\boxed{7, 8}", False),
    ("7", r"\boxed{7} or \boxed{8}", False),
    ("7", r"\boxed{7}, \boxed{8}", False),
    ("7,8", r"\boxed{7} and \boxed{8}", True),
    ("7", r"\boxed{7}, \boxed{7}", True),
    ("7", "", False),
    ("7", "7", True),
    ("7", "seven", False),
    ("7", "$7$", True),
    ("14{,}916", "Final Answer: The final answer is $14 {, }916$. I hope it is correct.", True),
    ("10455", "Final Answer: The final answer is $10,455$. I hope it is correct.", True),
]


@pytest.mark.parametrize(("gold", "completion", "correct"), READINGS)
def test_what_counts_as_the_answer(gold, completion, correct):
    assert grade(completion, gold).correct == correct


@pytest.mark.parametrize(("gold", "completion", "outcome"), CASES)
def test_verdicts(gold, completion, outcome):
    assert grade(completion, gold).outcome == outcome


def test_equal_answers_have_one_name():
    right = [grade(rf"\boxed{{{text}}}", r"\frac{1}{2}").answers["reward"] for text in ("1/2", "0.5", r"\frac12")]
    wrong = [grade(rf"\boxed{{{text}}}", r"\frac{1}{2}").answers["reward"] for text in ("0.25", r"\frac14", "1/3")]
    assert len(set(right)) == 1
    assert wrong[0] == wrong[1] != wrong[2]
    assert not {*right} & {*wrong}
    assert grade("none", "1").answers == {"reward": None}


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


INJECTIONS = (
    "__import__('os').system('touch {file}')",
    "exec(open('{file}', 'w'))",
    "\\text{{__import__('os').system('touch {file}')}}",
    "5 if open('{file}', 'w') else 5",
    'sympify(\'__import__("os").system("touch {file}")\')',
    "x.__class__.__mro__[1].__subclasses__()",
    "\\operatorname{{eval}}(open('{file}', 'w'))",
    "lambda: open('{file}', 'w')",
)


def test_no_code_is_run(tmp_path, monkeypatch):
    # What libraries load at first use is loaded by executing it.
    for gold, completion in ((r"\tan^2 y + 1", r"\boxed{\sec^2 y}"), ("10", r"\boxed{\sum_{k=1}^{4} k}")):
        assert grade(completion, gold).correct
    evaluated, right = [], []
    with monkeypatch.context() as patch:
        for name in ("eval", "exec", "compile"):
            patch.setattr(builtins, name, lambda *arguments: evaluated.append(arguments))
        patch.setattr(sympy.parsing.sympy_parser, "parse_expr", lambda *arguments: evaluated.append(arguments))
        for injection in INJECTIONS:
            text = injection.format(file=tmp_path / "made")
            for completion in (text, f"\\boxed{{{text}}}", f"The answer is ${text}$.", f"<answer>{text}</answer>"):
                right.append(grade(completion, "7919").correct)
                right.append(grade("\\boxed{7919}", text).correct)
        sums = grade(r"\boxed{\sum_{k=1}^{3} 1.5k}", "9").correct
    assert evaluated == []
    assert sums
    assert not any(right)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    [
        "(" * 5000 + ")" * 5000, r"\frac{1}{" * 600 + "2" + "}" * 600, "^".join("9" * 500), "9^{" * 30 + "9" + "}" * 30,
        "-" * 1900 + "1", r"\pm 1 " * 300, "1," * 900, "7" * 1900, r"\sqrt{" + "7" * 900 + "}", "(x+y+z)^{500}",
    ],
)  # fmt: skip
def test_large_answers_are_refused_or_read_in_time(text):
    assert not grade(f"\\boxed{{{text}}}", "7919").correct
