"""The loop around a run: what is started again, and what is not."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "experiments" / "launch" / "until_done.sh"


@pytest.mark.parametrize(
    ("statuses", "ends_with"),
    [
        ([0], 0),
        ([75, 1, 134, 0], 0),
        ([2], 2),
        ([75, 3], 3),
        ([1] * 5, 1),
        ([1, 1, 1, 1, 75, 134, 134, 134, 134, 134], 134),
    ],
)
def test_only_what_may_go_away_is_started_again(statuses, ends_with, tmp_path):
    """`python` and `sleep` stand in for themselves; a start more than there are statuses would end with 99."""
    for name, text in {
        "python": f'echo "$@" >> {tmp_path}/started; set -- {" ".join(map(str, statuses))} 99; '
        f"shift $(($(wc -l < {tmp_path}/started) - 1)); exit $1",
        "sleep": "exit 0",
    }.items():
        file = tmp_path / name
        file.write_text(f"#!/bin/bash\n{text}\n")
        file.chmod(0o755)
    environment = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    ended = subprocess.run(["bash", SCRIPT, "gsm8k", "--seed", "1"], env=environment, capture_output=True, text=True)
    assert ended.returncode == ends_with, ended.stderr
    started = (tmp_path / "started").read_text().splitlines()
    assert started == ["-m experiments.train gsm8k --seed 1 --resume"] * len(statuses)
