"""What a person sees of a run, on a terminal and in a log file."""

import pytest

from rlvr_jax.training.progress import RunProgress

METRICS = {"reward": 0.4063, "all_wrong": 0.5, "all_right": 0.25, "length": 3.906, "truncated": 0.031}
TIMINGS = {"step_seconds": 2.395, "sample_seconds": 0.666, "verify_seconds": 0.00008, "update_seconds": 1.729}
REWARDS = "reward 0.41  all wrong 0.50  all right 0.25  length 3.9  cut 0.03"
SECONDS = "2.4 s (sample 0.7, verify 0.00, update 1.7)"


def shown(capsys):
    with RunProgress("sign, seed 0", steps=40, done=10) as progress:
        progress.evaluating(64, 256)
        progress.say("resumed after step 10")
        for step in (11, 20):
            progress.step(step, METRICS, TIMINGS)
    return capsys.readouterr().err


def test_a_log_file_has_plain_lines(capsys):
    assert shown(capsys).splitlines() == [
        "sign, seed 0: resumed after step 10",
        f"sign, seed 0: step 20/40  {REWARDS}  {SECONDS}",
    ]


def test_a_terminal_of_80_columns_shows_all_of_it(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    text = shown(capsys)
    for figures in ("sign, seed 0: resumed after step 10", "20/40", "left", REWARDS, SECONDS):
        assert figures in text
    assert "…" not in text


@pytest.mark.parametrize("columns", [40, 200])
def test_other_widths(capsys, monkeypatch, columns):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    assert "reward 0.41" in shown(capsys)
