"""The jitted sampler, its slots and its addressed noise."""

from rlvr_jax.sampling.sampler import begin, finish, sample

__all__ = ["begin", "finish", "sample"]
