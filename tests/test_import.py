"""`import rlvr_jax` is light: it imports no heavy library, makes no array, touches no device."""

import subprocess
import sys

PROGRAM = """
import sys, time
started = time.perf_counter()
import jax
between = time.perf_counter()
import rlvr_jax
ended = time.perf_counter()
heavy = {"flax", "transformers", "datasets", "torch", "tensorflow", "tensorflow_datasets", "orbax", "optax"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
from jax._src import xla_bridge
assert not xla_bridge.backends_are_initialized(), "a device was initialised"
print(f"{ended - between:.3f} s after {between - started:.3f} s for jax")
assert ended - between < 0.5, ended - between
"""


def test_import_is_light():
    for _ in range(2):  # the first may compile bytecode
        done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
