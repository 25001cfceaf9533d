"""The jitted sampler, its slots, its addressed noise and its truncations."""

from rlvr_jax.sampling.sampler import begin, finish, sample
from rlvr_jax.sampling.truncation import Truncation, checked_truncation

__all__ = ["Truncation", "begin", "checked_truncation", "finish", "sample"]
