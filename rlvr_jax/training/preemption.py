"""Stopping a run when the machine is about to be taken away, where it can go on later.

A single process stops at SIGTERM, which also comes before a machine of the spot market goes. Where `jax.distributed` is
initialised, JAX itself listens (to SIGTERM on any host, and to Cloud TPU's notices of maintenance) and tells all
processes a step at which they stop together.
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

import jax
from jax.experimental import multihost_utils

from rlvr_jax.errors import Preempted


@contextlib.contextmanager
def on_sigterm(act: Callable[[], None]) -> Iterator[None]:
    """`act` is called at SIGTERM, in the main thread, which alone may ask for that; elsewhere nothing is changed."""
    if threading.current_thread() is not threading.main_thread() or jax.distributed.is_initialized():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: act())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def stopping_at_once() -> Iterator[None]:
    """SIGTERM raises Preempted wherever the program is; for set-up, where nothing is lost by it."""

    def stop() -> None:
        raise Preempted("outside of the steps: --resume goes on from the last checkpoint, or begins anew")

    with on_sigterm(stop):
        yield


class Preemption:
    """From its entry on, SIGTERM is taken down, and the run stops where it looks: the state is whole there."""

    def __init__(self, save: Callable[[], str]):
        """`save` is called when the run stops so, and says what it saved."""
        self._save = save
        self._asked = False
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "Preemption":
        self._stack.enter_context(on_sigterm(self._ask))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._stack:
            if kind is not None and issubclass(kind, Preempted):
                raise Preempted(self._save()) from None

    def _ask(self) -> None:
        self._asked = True

    def check(self) -> None:
        """Raises Preempted once SIGTERM came; with several processes never, since they must stop together."""
        if self._asked:
            raise Preempted

    def check_before(self, step: int) -> None:
        """The same before each step, and with several processes too: all of them raise it before the same step."""
        self.check()
        if jax.distributed.is_initialized() and multihost_utils.reached_preemption_sync_point(step):
            raise Preempted
