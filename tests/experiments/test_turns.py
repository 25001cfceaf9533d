"""Sides in processes of their own: turns, ratios, floors, and what is missing."""

import functools
import json
import sys
import time

import pytest

from experiments.benchmarks import turns
from rlvr_jax.errors import UserError


def test_ratios_are_medians_of_rounds(capsys):
    measured = turns.Measured({"rlvr_jax": [1.0, 2.0, 1.0], "peer": [3.0, 4.0, 9.0]}, {})
    assert measured.ratios() == {"ratio_to_peer": 3.0}
    assert measured.rates(12) == {"rlvr_jax": 12.0, "peer": 3.0}
    for as_json in (True, False):
        tell = functools.partial(
            turns.report, measured.ratios(), {"sampling": measured.seconds}, caption="", json=as_json
        )
        assert tell({"ratio_to_peer": 3.0, "ratio_to_nobody": 9.0, "ratio_without": None}) == 0
        assert tell({"ratio_to_peer": 3.1}) == 1
    out = capsys.readouterr().out
    assert json.loads(out.splitlines()[0]) == {"ratio_to_peer": 3.0}
    assert "3.00x" in out
    assert "Missed: ratio_to_peer at least 3.1" in " ".join(out.split())


def test_a_peer_that_is_not_installed_is_left_out_or_refused(capsys):
    peers = {"here": turns.Peer(print, ("json",)), "nowhere": turns.Peer(print, ("json", "no_such_module"))}
    assert list(turns.chosen(peers, None)) == ["here"]
    assert capsys.readouterr().err == "without nowhere: no_such_module is not installed\n"
    assert turns.chosen(peers, ()) == {}
    with pytest.raises(UserError, match="nowhere needs no_such_module"):
        turns.chosen(peers, ("nowhere",))


def counts(more, turn):
    """A side that tells how often it had a turn."""
    count = 0
    print("not for standard output")
    while turn():
        count += 1
        end = time.process_time() + 0.1
        while time.process_time() < end:
            pass
    return {"count": count + more}


def refuses(turn):
    raise UserError("nothing is accepted")


def dies(turn):
    turn()
    sys.exit(3)


def test_sides_take_turns_in_processes_of_their_own(capfd):
    measured = turns.take_turns({"a": functools.partial(counts, 0), "b": functools.partial(counts, 10)}, 3)
    assert {name: len(values) for name, values in measured.seconds.items()} == {"a": 3, "b": 3}
    # One turn warms up.
    assert {name: figures["count"] for name, figures in measured.figures.items()} == {"a": 4, "b": 14}
    assert measured.peaks()["a"] > 2**20
    assert all(0.1 <= spent < 0.2 for spent in measured.processor_seconds().values()), "the work of the last round"
    assert capfd.readouterr().out == ""
    with pytest.raises(UserError, match="nothing is accepted"):
        turns.take_turns({"a": refuses}, 1)
    with pytest.raises(UserError, match="a ended with exit status 3"):
        turns.take_turns({"a": dies}, 1)
