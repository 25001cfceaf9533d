"""The verifier pool: order, time and memory limits, crashes, threads, and no process left behind."""

import os
import signal
import subprocess
import threading
import time

import pytest

from rlvr_jax.errors import UserError
from rlvr_jax.tasks import Row, make_task
from rlvr_jax.tasks.graders import load_grader
from rlvr_jax.tasks.pool import VerifierPool, verifier_of

MODULE = """
import os, time
from rlvr_jax.tasks.task import Verdict

held = []

def grade(completion, gold):
    word, _, number = completion.partition(" ")
    if word == "sleep":
        time.sleep(float(number))
    if word == "spin":
        while True:
            pass
    if word == "die":
        os._exit(3)
    if word == "eat":
        held.append(bytearray(int(number)))
    if word == "raise":
        raise ValueError(completion)
    if word == "print":
        print('[0, "correct", "printed", {}]', flush=True)
    outcome = "correct" if completion == gold else "wrong"
    return Verdict(outcome, str(os.getpid()), {"read": True}, {"reward": completion, "none": None})
"""


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    (folder / "own_grader.py").write_text(MODULE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        pool = VerifierPool("own_grader:grade", workers=2, seconds=1.0, memory=200 << 20)
        yield pool
        pool.close()


def ask(pool, completions, **settings):
    return pool([Row(0, "", text) for text in completions], completions, **settings)


def test_limits_and_failures_cost_only_their_own_verdict(pool):
    hostile = ["spin", "die", f"eat {1 << 30}", "raise it", "print", "sleep 0.4", "\ud800 \u2028\x00\n", ""]
    completions = [text for i in range(20) for text in (f"text {i}", *(hostile if i == 10 else ()))]
    steps = []
    verdicts = ask(pool, completions, progress=steps.append)
    assert steps == list(range(1, len(completions) + 1))
    found = {text: (verdict.outcome, verdict.reason) for text, verdict in zip(completions, verdicts, strict=True)}
    assert found["spin"] == ("timed-out", "no verdict within 1 s")
    assert found["die"] == ("timed-out", "the grader died")
    assert found[f"eat {1 << 30}"] == ("timed-out", "out of memory")
    assert found["raise it"] == ("unparsable", "the verifier raised ValueError")
    rest = [verdict for text, verdict in zip(completions, verdicts, strict=True) if text not in hostile[:4]]
    assert {verdict.outcome for verdict in rest} == {"correct"}
    assert rest[0].scores == {"read": True}
    assert rest[0].answers == {"reward": "text 0", "none": None}
    # The same workers go on with the next call.
    pids = {verdict.reason for verdict in ask(pool, ["a", "b", "c"] * 10)}
    assert pids & {verdict.reason for verdict in ask(pool, ["a", "b", "c"] * 10)}


def test_verdicts_belong_to_their_completions(pool):
    rows = [Row(i, "", str(i)) for i in range(300)]
    verdicts = pool(rows, [str(i if i % 3 else i + 1) for i in range(300)])
    assert [verdict.correct for verdict in verdicts] == [i % 3 > 0 for i in range(300)]
    assert len({verdict.reason for verdict in verdicts}) <= 2
    long = [verdict.answers["reward"] for verdict in ask(pool, ["a" * 5000, "a" * 5001])]
    assert long[0] != long[1]
    assert len(long[0]) == len(long[1]) == 80
    assert pool([], []) == []


def test_stuck_workers_do_not_hold_up_the_others(pool):
    ask(pool, ["text"] * 100)  # how long a verdict usually takes is known then
    started = time.perf_counter()
    verdicts = ask(pool, ["spin"] * 10 + ["text"] * 190)
    # One after the other on two workers, ten limits of a second would take five.
    assert time.perf_counter() - started < 4
    assert [verdict.outcome for verdict in verdicts] == ["timed-out"] * 10 + ["correct"] * 190


def test_workers_killed_from_outside_cost_nothing(pool):
    worker = int(ask(pool, ["a"])[0].reason)
    os.kill(worker, signal.SIGKILL)
    assert [verdict.outcome for verdict in ask(pool, ["a", "b", "c"])] == ["correct"] * 3


def test_in_any_thread(pool):
    results = []
    threads = [threading.Thread(target=lambda: results.append(ask(pool, ["a", "b"]))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [[verdict.correct for verdict in verdicts] for verdicts in results] == [[True, True]] * 3


def test_nothing_is_left_behind_and_a_closed_pool_starts_again(pool):
    worker = int(ask(pool, ["a"])[0].reason)
    pool.close()
    deadline = time.monotonic() + 5
    while (
        time.monotonic() < deadline and subprocess.run(["kill", "-0", str(worker)], capture_output=True).returncode == 0
    ):
        time.sleep(0.05)
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)
    assert ask(pool, ["a"])[0].correct


def test_the_choice_between_processes_and_this_one():
    assert isinstance(verifier_of(make_task("math")), VerifierPool)
    gsm8k = verifier_of(make_task("gsm8k"))
    assert not isinstance(gsm8k, VerifierPool)
    done = []
    verdicts = gsm8k([Row(0, "", "5"), Row(1, "", "6")], ["#### 5", "#### 5"], done.append)
    assert [verdict.outcome for verdict in verdicts] == ["correct", "wrong"]
    assert done == [2]


def test_math_in_workers_gives_the_verdicts_of_this_process():
    pairs = [
        ("\\frac{1}{2}", "\\boxed{0.5}"),
        ("\\tan^2(y)+1", "\\boxed{\\sec^2(y)}"),
        ("3", "\\boxed{4}"),
        ("3", "no"),
    ]
    pool = VerifierPool("math", workers=1)
    try:
        verdicts = pool([Row(0, "", gold) for gold, _ in pairs], [completion for _, completion in pairs])
    finally:
        pool.close()
    assert verdicts == [load_grader("math")(completion, gold) for gold, completion in pairs]


@pytest.mark.parametrize("name", ["maths", "no_such_module:grade", "rlvr_jax.tasks.gsm8k:no_such_function"])
def test_unknown_verifiers_are_named(name):
    with pytest.raises(UserError, match=f"verifier is '{name}'"):
        load_grader(name)
