"""The pipeline of train rows: order by (seed, epoch), exact resume from one number, rows of one host alone."""

import itertools
import json
import threading
import time

import pytest

from rlvr_jax.errors import UserError
from rlvr_jax.tasks import make_task
from rlvr_jax.tasks.pipeline import train_batches


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """23 rows: batches of 8 straddle epochs."""
    folder = tmp_path_factory.mktemp("rows")
    rows = [{"question": f"What is {i}?", "answer": f"#### {i}"} for i in range(23)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "test.jsonl").write_text(json.dumps(rows[0]) + "\n")
    return make_task("gsm8k", str(folder))


@pytest.fixture(params=["stored", "generated", "drawn"])
def task(request, stored):
    return {
        "stored": stored,
        "generated": make_task("reasoning_gym:chain_sum"),
        "drawn": make_task("arithmetic"),
    }[request.param]


def steps(task, start, count, batch=8, seed=7, own=None):
    batches = train_batches(task, seed, start, batch, own=own)
    found = list(itertools.islice(batches, count))
    batches.close()
    return found


def test_batches_are_the_rows_of_the_order(task):
    assert steps(task, 0, 6) == [[task.row("train", 8 * i + j, 7) for j in range(8)] for i in range(6)]


def test_stopped_and_resumed_at_any_step_the_remaining_prompts_are_the_same(task):
    whole = steps(task, 0, 9)
    for done in range(9):
        batches = train_batches(task, 7, 0, 8)
        for _ in range(done):
            next(batches)
        # What was read ahead when the run stopped is not part of the state.
        time.sleep(0.01)
        assert batches.get_state() == {"next_index": done}
        batches.close()
        assert steps(task, done * 8, 9 - done) == whole[done:]


def test_resumed_with_another_batch_the_rows_go_on_in_order(task):
    whole = [row for rows in steps(task, 0, 6) for row in rows]
    assert [row for rows in steps(task, 24, 2, batch=12) for row in rows] == whole[24:]


@pytest.mark.parametrize("own", [[], [0, 1, 2, 3], [2, 3, 6, 7], list(range(8))], ids=str)
def test_a_host_reads_its_own_rows_alone(task, own, monkeypatch):
    # Another seed than the pipelines of other tests have, whose threads may still read.
    asked, row, seed = set(), task.row, 100 + sum(own)
    monkeypatch.setattr(task, "row", lambda split, index, seed: asked.add((index % 8, seed)) or row(split, index, seed))
    assert steps(task, 16, 7, seed=seed, own=own) == [
        [row("train", 16 + 8 * step + i, seed) for i in own] for step in range(7)
    ]
    assert {i for i, by in asked if by == seed} == set(own)


def test_rows_that_a_batch_does_not_have_are_refused(stored):
    for row in (8, -1):
        with pytest.raises(UserError, match=f"row {row} of 8 prompts a step: accepted are 0 to 7"):
            train_batches(stored, 0, 0, 8, own=[0, row])


def test_every_epoch_is_another_whole_shuffle_decided_by_the_seed(stored):
    def epochs(seed):
        ids = [stored.row("train", i, seed).id for i in range(4 * 23)]
        return [tuple(ids[start : start + 23]) for start in range(0, len(ids), 23)]

    orders = [order for seed in (0, 1, 2**32 - 1) for order in epochs(seed)]
    assert all(sorted(order) == list(range(23)) for order in orders)
    assert len(set(orders)) == 12
    assert epochs(1) == epochs(1)


def test_the_order_is_the_one_that_earlier_runs_had(stored):
    """Of this pipeline itself: were another version of grain to shuffle otherwise, no run could be continued."""
    assert [stored.row("train", i, 3).id for i in (0, 1, 2, 22, 23, 24, 10**12)] == [4, 22, 16, 17, 14, 1, 21]


def test_rows_are_read_ahead_while_the_model_works(stored, monkeypatch):
    """After the first batch was taken others are read without being asked for, a few of them, until it is closed."""
    asked, row = [], stored.row

    def recorded(split, index, seed):
        asked.append(index)
        return row(split, index, seed)

    def until(condition):
        deadline = time.monotonic() + 20
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.01)
        return condition()

    monkeypatch.setattr(stored, "row", recorded)
    threads = threading.active_count()
    batches = train_batches(stored, 0, 0, 8)
    next(batches)
    assert until(lambda: set(range(16)) <= set(asked))
    time.sleep(0.1)
    assert max(asked) < 8 * 10
    batches.close()
    assert until(lambda: threading.active_count() <= threads)


def test_an_error_in_a_row_ends_the_loop_with_itself(tmp_path):
    (tmp_path / "train.jsonl").write_text('{"question": "1?", "answer": "#### 1"}\n{"question": "2?"}\n')
    (tmp_path / "test.jsonl").write_text("")
    batches = train_batches(make_task("gsm8k", str(tmp_path)), 0, 0, 8)
    with pytest.raises(UserError, match="line 2: accepted are objects"):
        next(batches)
    batches.close()
