"""The cores of a CPU as devices, so that runs are split over them as over accelerators."""

import os

import jax


def use_all_cores() -> None:
    """One CPU device for each core, unless JAX was told how many. To be called before JAX meets its devices.

    Without effect on accelerators.
    """
    told = jax.config.jax_num_cpu_devices != -1
    if not told and "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        jax.config.update("jax_num_cpu_devices", len(os.sched_getaffinity(0)))
