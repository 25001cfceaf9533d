"""The jitted sampler, its slots, its addressed noise and its truncations."""

from rlvr_jax.sampling.precision import Precision
from rlvr_jax.sampling.sampler import Request, SamplingSettings, begin, finish, sample
from rlvr_jax.sampling.truncation import Truncation, checked_truncation

__all__ = ["Precision", "Request", "SamplingSettings", "Truncation", "begin", "checked_truncation", "finish", "sample"]
