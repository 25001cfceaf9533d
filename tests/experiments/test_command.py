"""What every command does before its own work."""

import os
import subprocess
import sys
import types

import pytest

from rlvr_jax.errors import Preempted, RunStopped, UserError

PROGRAM = """
import jax
from experiments.command import run
run(lambda: print(jax.config.jax_compilation_cache_dir, jax.jit(lambda x: x + 1)(1)))
"""


@pytest.mark.parametrize("told", [None, "elsewhere"])
def test_compiled_programs_are_kept_in_the_cache_or_where_the_user_says(tmp_path, told):
    settings = {"RLVR_JAX_CACHE": str(tmp_path / "cache"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    if told:
        settings["JAX_COMPILATION_CACHE_DIR"] = str(tmp_path / told)
    expected = tmp_path / (told or "cache/compiled")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment | settings, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(expected), "2"]
    assert list(expected.iterdir())


@pytest.mark.parametrize(
    ("raised", "status", "said"),
    [
        (UserError("wrong"), 2, "error: wrong"),
        (RunStopped("disk full"), 3, "stopped: disk full"),
        (Preempted("saved"), 75, "preempted: saved"),
    ],
)
def test_what_is_raised_becomes_an_exit_status_and_one_line(raised, status, said, call):
    def main():
        raise raised

    code, _, err = call(types.SimpleNamespace(__name__="main", main=main))
    assert (code, err) == (status, said + "\n")
