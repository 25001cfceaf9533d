"""Whether two mathematical answers are the same: exactly, symmetrically, and without running any of their text."""

from rlvr_jax.tasks.equality.comparison import Comparison, compare

__all__ = ["Comparison", "compare"]
