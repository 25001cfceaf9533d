"""The arithmetic task: kinds, disjoint streams, verifier."""

import collections

import pytest

from rlvr_jax.tasks import Row, make_task

TASK = make_task("arithmetic")


def kind(question):
    a, operator, b, _ = question.split()
    return operator, max(len(a), len(b))


def test_streams_are_addressed_equally_mixed_and_disjoint():
    train = [TASK.row("train", i, seed=3) for i in range(3000)]
    held_out = [TASK.row("held_out", i) for i in range(3000)]
    assert TASK.row("train", 17, seed=3) == train[17]
    assert TASK.row("held_out", 17, seed=9) == held_out[17]
    assert TASK.row("train", 17, seed=4) != train[17]
    assert not {row.question for row in train} & {row.question for row in held_out}
    for rows in (train, held_out):
        # 3000 draws, a sixth each: 500 with standard deviation 20. Two digits minus one digit joins neither.
        operators = collections.Counter(row.question.split()[1] for row in rows)
        assert all(abs(operators[operator] - 1000) < 110 for operator in "+-*")


def test_answers_are_right_and_fit_the_length_limit():
    for i in range(500):
        row = TASK.row("train", i)
        a, operator, b, _ = row.question.split()
        expected = {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[operator]
        assert row.answer == str(expected)
        assert expected >= 0
        assert len(f" {row.answer}\n") <= TASK.max_new_tokens


@pytest.mark.parametrize(
    ("completion", "correct", "reason"),
    [
        (" 144\n", True, "right"),
        ("144\n", True, "right"),
        (" 143\n", False, "wrong"),
        (" -144\n", False, "wrong"),
        (" 144", False, "not ended"),
        (" 144 \n", False, "no number"),
        (" 12 * 12\n", False, "no number"),
        ("\n", False, "no number"),
        ("", False, "not ended"),
        ("\u0661\u0664\u0664\n", False, "no number"),
        ("9" * 5000 + "\n", False, "no number"),
    ],
)
def test_verdicts(completion, correct, reason):
    verdict = TASK.verify(Row(0, "36 * 4 =", "144"), completion)
    assert (verdict.correct, verdict.reason) == (correct, reason)
