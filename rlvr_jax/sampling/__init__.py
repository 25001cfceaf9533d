"""The jitted sampler and its addressed noise."""

from rlvr_jax.sampling.sampler import sample

__all__ = ["sample"]
