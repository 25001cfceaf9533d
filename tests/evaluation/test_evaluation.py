"""Figures of evaluations against hand calculation and enumeration; buckets; comparison question by question."""

import itertools
import math

import numpy as np
import pytest
from rich.console import Console

from rlvr_jax.errors import UserError
from rlvr_jax.evaluation import Evaluation, compare_evaluations, mcnemar_test
from rlvr_jax.evaluation.buckets import length_buckets
from rlvr_jax.reports import against_summary, against_table, evaluation_summary, evaluation_table
from rlvr_jax.starvation import share_interval

ANSWERS = [
    ["7", "7", "8", None, "7", "8"],
    ["1", "2", "3", "3", None, None],
    [None, None, None, None, None, None],
    ["5", "5", "5", "5", "5", "5"],
]
GOLDS = ["7", "3", "4", "5"]


def rows_of(answers, golds, strict=lambda answer: None):
    return [
        {
            "question_id": i,
            "sample": j,
            "question": f"question {i}",
            "gold": gold,
            "tokens": 1 + i + j,
            "truncated": j == 5,
            "correct": answer == gold,
            "answer": answer,
            "correct_strict": strict(answer) == gold,
            "answer_strict": strict(answer),
        }
        for i, (group, gold) in enumerate(zip(answers, golds, strict=True))
        for j, answer in enumerate(group)
    ]


def rows_with_endings(strict):
    """As GSM8K's verifier reads them; right answers are followed by text."""
    return [
        {
            **row,
            "correct_flexible": row["correct"],
            "answer_flexible": row["answer"],
            "correct_final": False,
            "answer_final": None if row["correct_strict"] else row["answer_strict"],
        }
        for row in rows_of(ANSWERS, GOLDS, strict)
    ]


@pytest.fixture
def evaluation():
    return Evaluation.from_rows(rows_of(ANSWERS, GOLDS, lambda answer: answer if answer in ("7", "8") else None), 16)


def vote(drawn, gold):
    """Chance that a fair choice among the most frequent answers is right."""
    counts = {answer: drawn.count(answer) for answer in drawn if answer is not None}
    first = [answer for answer, count in counts.items() if count == max(counts.values())]
    return first.count(gold) / len(first) if first else 0.0


@pytest.mark.parametrize("k", range(1, 7))
def test_pass_and_majority_are_means_over_all_subsets(evaluation, k):
    subsets = [list(itertools.combinations(group, k)) for group in ANSWERS]
    passes = [np.mean([gold in drawn for drawn in sets]) for sets, gold in zip(subsets, GOLDS, strict=True)]
    majorities = [np.mean([vote(drawn, gold) for drawn in sets]) for sets, gold in zip(subsets, GOLDS, strict=True)]
    assert evaluation.pass_at(k).mean == pytest.approx(np.mean(passes), abs=1e-12)
    assert evaluation.majority_at(k).mean == pytest.approx(np.mean(majorities), abs=1e-12)
    low, high = evaluation.majority_at(k)[1:]
    assert 0 <= low < np.mean(majorities) < high <= 1


def test_figures_of_the_completions_by_hand(evaluation):
    assert evaluation.accuracy.mean == pytest.approx((3 / 6 + 2 / 6 + 0 + 1) / 4)
    # Question i has lengths 1 + i, ..., 6 + i.
    assert evaluation.length.mean == pytest.approx(3.5 + 1.5)
    assert 0 < evaluation.length.low < 5 < evaluation.length.high < 16
    assert evaluation.truncation_rate.mean == pytest.approx(1 / 6)
    assert evaluation.format_rate.mean == pytest.approx(5 / 24)
    assert evaluation.pass_at(1, "strict").mean == pytest.approx(3 / 24)
    assert evaluation.majority_at(6, "strict").mean == pytest.approx(1 / 4)


def test_trailing_text_by_hand():
    found = Evaluation.from_rows(rows_with_endings(lambda answer: answer), 16)
    # 5, 4, 0 and 6 completions have a strict answer; 3, 2, 0 and 6 of these go on after it.
    assert found.trailing_text_rate.mean == pytest.approx(11 / 15)
    expected = share_interval([3 / 5, 2 / 4, 6 / 6], weights=[5, 4, 6])
    assert found.trailing_text_rate == pytest.approx(expected)
    summary = evaluation_summary(found)
    assert summary["trailing_text"] == found.trailing_text_rate._asdict()
    assert summary["final"]["mean"] == 0


def test_no_strict_answer_or_no_such_reading_has_no_trailing_text(evaluation):
    without = Evaluation.from_rows(rows_with_endings(lambda answer: None), 16)
    assert without.format_rate.mean == 0
    assert without.trailing_text_rate is evaluation.trailing_text_rate is None
    assert "trailing_text" not in evaluation_summary(without)


def test_a_verdict_that_timed_out_is_right_in_no_reading():
    rows = rows_of(ANSWERS, GOLDS, lambda answer: answer)
    late = {name: value for name, value in rows[1].items() if name not in ("correct_strict", "answer_strict")}
    late |= {"correct": False, "outcome": "timed-out"}
    assert rows[1]["correct_strict"]
    found = Evaluation.from_rows([rows[0], late, *rows[2:]], 16)
    assert found.scores["strict"][0, :3].tolist() == [1, 0, 0]
    with pytest.raises(UserError, match="question 0 has no correct_strict, others have"):
        Evaluation.from_rows([rows[0], late | {"outcome": "wrong"}, *rows[2:]], 16)


def test_equal_lengths_at_the_limit_have_finite_bounds():
    rows = [{**row, "tokens": 16} for row in rows_of(ANSWERS, GOLDS)]
    mean, low, high = Evaluation.from_rows(rows, 16).length
    # Wilson's lower bound of 4 of 4: n / (n + z^2).
    assert (mean, high) == (16, 16)
    assert low == pytest.approx(16 * 4 / (4 + 1.959964**2), rel=1e-6)


def test_right_samples_written_differently_vote_together():
    rows = rows_of([["1/2", "0.5", "3", "3", "3", None]], ["1/2"])
    for row in rows:
        row["correct"] = row["answer"] in ("1/2", "0.5")
    together = Evaluation.from_rows([*rows[:4], {**rows[5], "sample": 4}], 16)
    assert together.majority_at(5).mean == pytest.approx(0.5)


def test_a_verifier_that_names_no_answer_has_no_majority():
    rows = [{name: value for name, value in row.items() if "answer" not in name} for row in rows_of(ANSWERS, GOLDS)]
    silent = Evaluation.from_rows(rows, 16)
    assert silent.format_rate is None
    summary = evaluation_summary(silent)
    assert "maj_at_k" not in summary
    assert "format" not in summary
    # One verdict that names an answer is enough: the others, timed out, then had none.
    rows[0]["answer"] = "7"
    assert Evaluation.from_rows(rows, 16).answers["reward"][0] == ["7", *[None] * 5]


def test_saved_and_loaded_is_the_same(evaluation, tmp_path):
    evaluation.save(tmp_path / "evaluation.json")
    loaded = Evaluation.load(tmp_path / "evaluation.json")
    assert evaluation_summary(loaded, (1, 3)) == evaluation_summary(evaluation, (1, 3))
    assert loaded.answers == evaluation.answers
    np.testing.assert_array_equal(loaded.checksums, evaluation.checksums)


def test_summary_has_strict_and_flexible_beside_each_other(evaluation):
    summary = evaluation_summary(evaluation)
    assert list(summary["pass_at_k"]) == list(summary["strict"]["maj_at_k"]) == ["1", "2", "4"]
    assert summary["accuracy"] == summary["pass_at_k"]["1"]
    assert {name: summary["strict"][name] for name in ("mean", "low", "high")} == summary["strict"]["pass_at_k"]["1"]
    with pytest.raises(UserError, match="k is 8: accepted are 1 to the 6 samples"):
        evaluation_summary(evaluation, (2, 8))


def test_tables_fit_a_hundred_columns(capsys):
    evaluation = Evaluation.from_rows(rows_with_endings(lambda answer: answer and min(answer, "5")), 16)
    Console(width=200).print(evaluation_table(evaluation_summary(evaluation, (1, 2, 4, 6)), "tiny on gsm8k"))
    Console(width=200).print(against_table(against_summary(evaluation, evaluation), "minus itself"))
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 100
    assert any(line.split()[:1] == ["maj@4"] for line in lines)
    assert sum("0.458" in line for line in lines) == 1
    assert any("with text after it" in line for line in lines)


@pytest.mark.parametrize(("better", "worse"), [(8, 2), (2, 8), (5, 5), (1, 0), (0, 0)])
def test_mcnemar_is_a_fair_coin_over_the_questions_that_differ(better, worse):
    a = np.array([1.0] * better + [0.0] * worse + [1.0, 0.0])
    b = np.array([0.0] * better + [1.0] * worse + [1.0, 0.0])
    n, least = better + worse, min(better, worse)
    tail = sum(math.comb(n, i) for i in range(least + 1)) / 2**n
    assert mcnemar_test(a, b) == (better, worse, pytest.approx(min(1.0, 2 * tail)))


def test_comparison_pairs_questions(evaluation):
    answers = [["8"] * 6, *ANSWERS[1:]]
    other = Evaluation.from_rows(rows_of(answers, GOLDS), 16)
    compared = compare_evaluations(evaluation, other)
    assert set(compared) == {"reward", "strict"}
    assert compared["reward"].bootstrap.difference == pytest.approx(0.5 / 4)
    assert compared["reward"].mcnemar == (1, 0, 1.0)
    # A resample misses the only question that differs with chance (3/4)^4 = 0.32.
    assert compared["reward"].bootstrap.low == 0.0
    with pytest.raises(UserError, match="evaluations of 4 and of 3 questions"):
        compare_evaluations(evaluation, Evaluation.from_rows(rows_of(ANSWERS[:3], GOLDS[:3]), 16))
    with pytest.raises(UserError, match="differ at question 2"):
        compare_evaluations(evaluation, Evaluation.from_rows(rows_of(ANSWERS, ["7", "3", "0", "5"]), 16))


@pytest.mark.parametrize(("questions", "batch"), [(1, 4), (7, 4), (8, 4), (1319, 16)])
def test_every_question_is_in_one_bucket_and_shapes_are_few(questions, batch):
    lengths = np.random.default_rng(questions).geometric(0.01, questions).tolist()
    buckets = length_buckets(lengths, batch)
    assert sorted(place for bucket in buckets for place in bucket.places) == list(range(questions))
    assert [len(bucket.places) for bucket in buckets[:-1]] == [batch] * (len(buckets) - 1)
    assert len({bucket.prompt_length for bucket in buckets}) <= 8
    for bucket in buckets:
        longest = max(lengths[place] for place in bucket.places)
        assert longest <= bucket.prompt_length <= min(max(lengths), longest + max(16, max(lengths) / 8 + 1))


def test_buckets_by_hand():
    # Steps of an eighth of 200: 25.
    buckets = length_buckets([30, 200, 24, 26, 51], 2)
    assert [(bucket.places, bucket.prompt_length) for bucket in buckets] == [([1, 4], 200), ([0, 3], 50), ([2], 25)]
    # Too short for more than one shape.
    assert {bucket.prompt_length for bucket in length_buckets([5, 6, 7, 8], 1)} == {8}
