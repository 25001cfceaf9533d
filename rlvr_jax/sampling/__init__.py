"""The jitted sampler, its slots, its addressed noise, its truncations and its stop strings."""

from rlvr_jax.sampling.precision import Precision
from rlvr_jax.sampling.sampler import Request, SamplingSettings, begin, finish, sample
from rlvr_jax.sampling.stop_strings import StopStrings, checked_stop_strings, stop_strings
from rlvr_jax.sampling.truncation import Truncation, checked_truncation

__all__ = [
    "Precision",
    "Request",
    "SamplingSettings",
    "StopStrings",
    "Truncation",
    "begin",
    "checked_stop_strings",
    "checked_truncation",
    "finish",
    "sample",
    "stop_strings",
]
