"""GSM8K: the verifier on hard cases, the data from files, and errors for what is not there."""

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from rlvr_jax.errors import UserError
from rlvr_jax.tasks import make_task
from rlvr_jax.tasks.gsm8k import grade

DATA = Path(__file__).parents[3] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the data folder beside the project is absent")

CASES = [
    # (gold, completion, strict, flexible)
    ("18", "9 * 2 = 18.\n#### 18", True, True),
    ("1,450", "#### 1450.00", True, True),
    ("18", "So she makes $18 a day.", False, True),
    ("-3", "It falls to\n#### \u22123", True, True),
    ("5", "The answer is 5 (that is, 10-5).", False, True),
    ("18", "#### 18 or 20", False, False),
    ("18", "#### 20\nWait, 9 * 2 = 18.\n#### 18", True, True),
    ("18", "<think>#### 3</think>\n#### 18", True, True),
    ("3", "#### 18\n\nQuestion: another?\n#### 3", False, False),
    ("0.5", "#### \\boxed{\\frac{1}{2}}", True, True),
    ("8000", "The prize is \\boxed{8{,}000}.", False, True),
    ("72", "48 + 24 = **72**", False, True),
    ("5", "#### 15", False, False),
    ("5", "#### -5", False, False),
    ("18", "####", False, False),
    ("18", "", False, False),
    ("2", "#### 4/2", True, True),
    ("2", "#### 4/0", False, False),
]


@pytest.mark.parametrize(("gold", "completion", "strict", "flexible"), CASES)
def test_readings(gold, completion, strict, flexible):
    verdict = grade(completion, gold)
    # None of the right ones goes on after its answer.
    assert verdict.scores == {"strict": strict, "flexible": flexible, "final": strict}
    assert verdict.correct == flexible
    assert grade(completion, gold, "strict").correct == strict


ENDINGS = [
    # (completion, whether it ends with its answer)
    ("#### 18\n \n", True),
    ("#### 18 dollars.", True),
    ("#### **18 cm^2**", True),
    ("#### $18 \\text{ dollars per day}$", True),
    ("#### 9*2 = 18 p.m.", True),
    ("#### 20\nWait, 9 * 2 = 18.\n#### 18", True),
    ("<think>#### 3\nor so</think>#### 18", True),
    ("#### 18\n\nQuestion: another?\n#### 18", False),
    ("#### 18<|im_start|>user", False),
    ("#### 18\n<think>Is it?", False),
    ("#### 18\n\nShe sells 9 eggs.", False),
    ("#### 18\n```", False),
    ("#### 18. Let me check", False),
    ("#### 18 Question: another?", False),
    ("#### 18 dollars, since she sells", False),
    ("#### 18 from 9 eggs", False),
    ("#### 18 which is what she makes every day", False),
]


@pytest.mark.parametrize(("completion", "ends"), ENDINGS)
def test_final_reading_is_none_where_text_trails(completion, ends):
    verdict = grade(completion, "18")
    assert verdict.scores == {"strict": True, "flexible": True, "final": ends}
    assert verdict.answers["final"] == ("18" if ends else None)
    assert not grade(completion, "5").scores["final"]


FLEXIBLE = [
    # (gold, completion, correct)
    ("18", "The answer is eighteen.", False),
    ("18", "#### 18 dollars", True),
    ("18", "#### $18", True),
    ("18", "#### **18**", True),
    ("18", "#### \n18", False),
    ("18", "####18", True),
    ("18", "#### Answer: 18", True),
    ("18", "#### x = 18", True),
    ("18", "#### 9*2 = 18", True),
    ("18", "#### 18\n#### 20", False),
    ("18", "She makes 18 dollars every day, from 9 eggs", False),
    ("18", "Answer: $18 per day", True),
    ("18", r"The final answer is: $\boxed{18}$", True),
    ("18000", "#### 18,000", True),
    ("18000", "#### 18 000", True),
    ("18000", "#### 18k", False),
    ("0.5", "#### 50%", False),
    ("50", "#### 50%", True),
    ("18", "#### 18.000", True),
    ("18", "#### 18.001", False),
    ("18", "#### 17.9999999999999999", False),
    ("18", "#### 1.8e1", False),
    ("1", "#### 1.8e1", False),
    ("18", "#### 180", False),
    ("18", "#### 118", False),
    ("10", "#### 10-5", False),
    ("18", r"Total: \$18", True),
    ("18", "So 16-3-4=9 and 9*2=18 dollars. Done!", True),
    ("18", "<answer>18 dollars</answer>", True),
    ("18", "<answer>\n18\n</answer>", True),
    ("5", r"\boxed{5 \text{ or } 6}", False),
    ("-5", r"\boxed{-5}", True),
    ("-5", "#### - 5", True),
    ("5", "#### - 5", False),
    ("5", "#### (5)", True),
    ("2", "#### 2 hours and 30 minutes", False),
    ("2", "#### 2.", True),
    ("3", "#### 3 1/2", False),
    ("3.5", "#### 3 1/2", True),
    ("3", "#### 3:30", False),
    ("3", "#### 3, 4", False),
    ("3", "#### 3 and 4", False),
    ("3", "#### 3-4", False),
    ("7", "#### 3+4", False),
    ("7", "#### 3 + 4 = 7", True),
]


@pytest.mark.parametrize(("gold", "completion", "correct"), FLEXIBLE)
def test_flexible_reading(gold, completion, correct):
    assert grade(completion, gold).correct == correct


@pytest.mark.parametrize(
    "text",
    [
        "#### " + "9" * 100000,
        "#### 1" + "*" * 1_000_000,
        "#### 1" + "\n*" * 500_000,
        "\\boxed{" * 2000,
        "1," * 20000,
        "**" * 20000 + "1",
        "(" * 9999,
        "1/" * 9999,
    ],
)
def test_hostile_text_neither_raises_nor_hangs(text):
    assert not grade(text, "18").correct


@needs_data
def test_grading_cases_without_an_error():
    cases = [json.loads(line) for line in (DATA / "grading" / "cases.jsonl").read_text().splitlines()]
    cases = [case for case in cases if case["task"] == "gsm8k"]
    wrong = [case["id"] for case in cases if grade(case["response"], case["gold"]).correct != case["correct"]]
    assert len(cases) > 50
    assert wrong == []


def golds_and_solutions(splits):
    lines = [line for name in splits for line in (DATA / "gsm8k" / f"{name}.jsonl").read_text().splitlines()]
    solutions = [json.loads(line)["answer"] for line in lines]
    return [solution.rpartition("#### ")[2] for solution in solutions], solutions


@needs_data
@pytest.mark.parametrize("splits", [("test",), pytest.param(("train", "test"), marks=pytest.mark.slow)])
def test_all_golds_are_right_in_every_form(splits):
    task = make_task("gsm8k", str(DATA / "gsm8k"))
    assert (task.size("train"), task.size("held_out")) == (7473, 1319)
    golds, solutions = golds_and_solutions(splits)
    assert len(golds) == 1319 + 7473 * ("train" in splits)
    for gold, solution in zip(golds, solutions, strict=True):
        assert grade(solution, gold).scores == {"strict": True, "flexible": True, "final": True}, solution
        for text in (
            f"Work.\n#### {gold}",
            f"It is \\boxed{{{gold}}}.",
            f"The answer is {gold}.",
            f"She has {gold} eggs.",
        ):
            marked = "####" in text
            assert grade(text, gold).scores == {"strict": marked, "flexible": True, "final": marked}, text


@needs_data
@pytest.mark.slow
def test_a_gold_is_right_for_another_question_only_where_the_numbers_are_equal():
    golds, solutions = golds_and_solutions(("train", "test"))
    numbers = [Fraction(gold.replace(",", "")) for gold in golds]
    pairs = np.random.default_rng(0).integers(0, len(golds), (20_000, 2))
    for i, j in pairs:
        assert grade(solutions[i], golds[j]).correct == (numbers[i] == numbers[j]), (solutions[i], golds[j])


def write_rows(file, count, start=0):
    rows = [{"question": f"What is {i}?", "answer": f"It is {i}.\n#### {i}"} for i in range(start, start + count)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_epochs_are_different_whole_shuffles(tmp_path):
    write_rows(tmp_path / "train.jsonl", 20)
    write_rows(tmp_path / "test.jsonl", 4, start=100)
    task = make_task("gsm8k", str(tmp_path))
    first, second = ([task.row("train", i, seed=1).id for i in range(start, start + 20)] for start in (0, 20))
    assert sorted(first) == sorted(second) == list(range(20))
    assert first != second
    assert first == [task.row("train", i, seed=1).id for i in range(20)]
    assert [task.row("held_out", i).answer for i in range(4)] == ["100", "101", "102", "103"]


def test_one_file_is_split_into_disjoint_parts(tmp_path):
    write_rows(tmp_path / "mine.jsonl", 400)
    task = make_task("gsm8k", str(tmp_path / "mine.jsonl"))
    train, held_out = (
        {task.row(split, i).question for i in range(task.size(split))} for split in ("train", "held_out")
    )
    assert not train & held_out
    assert len(train) + len(held_out) == 400
    assert 25 <= len(held_out) <= 80


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "line 1: not JSON"), ('{"question": "a"}', "line 1: accepted are objects"), ("[1]", "accepted are objects")],
)
def test_bad_lines_are_named(tmp_path, content, message):
    (tmp_path / "train.jsonl").write_text(content + "\n")
    with pytest.raises(UserError, match=message):
        make_task("gsm8k", str(tmp_path)).size("train")


def test_missing_data_and_unknown_tasks_say_what_is_accepted(tmp_path):
    with pytest.raises(UserError, match=r"none of train\.jsonl, .* in it; accepted are a \.jsonl or \.parquet file"):
        make_task("gsm8k", str(tmp_path)).size("train")
    with pytest.raises(UserError, match="task is 'gsm9k', accepted are arithmetic, gsm8k"):
        make_task("gsm9k")
