"""reasoning-gym generators: disjoint streams, exact verdicts, and a refusal of those with special scorers."""

import pytest

from rlvr_jax.errors import UserError
from rlvr_jax.tasks import Row, make_task


def test_streams_are_addressed_and_disjoint():
    task = make_task("reasoning_gym:chain_sum")
    train = [task.row("train", i, seed=1) for i in range(300)]
    held_out = [task.row("held_out", i) for i in range(300)]
    assert task.row("train", 7, seed=1) == train[7]
    assert task.row("train", 7, seed=2) != train[7]
    assert not {row.question for row in train} & {row.question for row in held_out}
    assert len({row.question for row in train}) > 250


@pytest.mark.parametrize(
    ("completion", "correct"),
    [
        ("5", True),
        (" 5\n", True),
        ("5.0", True),
        ("+5", True),
        ("15", False),
        ("-5", False),
        ("500", False),
        ("", False),
        ("5 5", False),
    ],
)
def test_no_credit_for_containing_the_answer(completion, correct):
    assert make_task("reasoning_gym:chain_sum").verify(Row(0, "", "5"), completion).correct == correct


def test_generators_that_cannot_be_judged_are_refused():
    with pytest.raises(UserError, match="generator is 'countdown', accepted are those with a single right answer"):
        make_task("reasoning_gym:countdown")
    with pytest.raises(UserError, match="generator is 'nothing', accepted are"):
        make_task("reasoning_gym:nothing")
