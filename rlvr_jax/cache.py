"""Where converted models and compiled programs are kept."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """`$RLVR_JAX_CACHE`, or `rlvr_jax` in the user's cache folder."""
    if named := os.environ.get("RLVR_JAX_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rlvr_jax"
