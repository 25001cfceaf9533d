"""reasoning-gym generators: disjoint streams, exact verdicts, and a refusal of those with special scorers."""

import re

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


def test_every_row_has_generator_seeds_of_its_own(monkeypatch):
    """Item i of the library's seed s is that of seed s + i: streams must lie further apart than their rows."""
    task = make_task("reasoning_gym:chain_sum", prompt_format="few_shot")
    used, create = {}, task._create

    def recorded(seed, size):
        used.setdefault(seed, set()).add(where)
        return create(seed=seed, size=size)

    monkeypatch.setattr(task, "_create", recorded)
    indices = (0, 1, 2, 255, 256, 10**6, 2**36 - 1)
    for split, seed in [("held_out", 0), ("train", 0), ("train", 1), ("train", 2**16), ("train", 2**32 - 1)]:
        for index in indices:
            where = (split, seed, index)
            assert task.row(split, index, seed).id == index
    where = "examples"
    assert len(task.examples) == 4
    assert len({place for places in used.values() for place in places}) == 5 * len(indices) + 1
    assert all(len(places) == 1 for places in used.values())


def test_difficulty_is_set_by_parameters():
    task = make_task("reasoning_gym:chain_sum,min_terms=3,max_terms=3,min_digits=5,max_digits=5")
    assert task.name == "reasoning_gym:chain_sum,min_terms=3,max_terms=3,min_digits=5,max_digits=5"
    for i in range(20):
        numbers = re.findall("[0-9]+", task.row("train", i).question)
        assert [len(number) for number in numbers] == [5, 5, 5]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ("digits=3", "accepted parameters of chain_sum are allow_negation, max_digits, max_terms"),
        ("seed=3", "accepted parameters of chain_sum"),
        ("min_terms=9", "max_terms must be >= min_terms; accepted are values that the generator takes"),
        ("min_terms=few", "accepted are values that the generator takes"),
        ("min_terms=2,min_terms=3", "'min_terms=3' is not understood, accepted is NAME,key=value"),
    ],
)
def test_parameters_that_do_not_fit_are_named(parameters, message):
    with pytest.raises(UserError, match=message):
        make_task(f"reasoning_gym:chain_sum,{parameters}")


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
