"""Counts XLA compilations, so that a step that recompiles is seen."""

import jax

_count = 0


def _on_event(event: str, duration: float, **_: object) -> None:
    global _count
    if event == "/jax/core/compile/backend_compile_duration":
        _count += 1


jax.monitoring.register_event_duration_secs_listener(_on_event)


def compilations() -> int:
    """XLA compilations of this process since this module was imported."""
    return _count
