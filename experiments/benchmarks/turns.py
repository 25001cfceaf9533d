"""Ours and peers at the same work, each in a process of its own, by turns.

Only one works at a time, and the round is repeated: timings on a shared machine wander, so a ratio is the median of the
ratios of single rounds. The processes are started by the command and inherit what it set for itself, the allocator's
huge pages (GLIBC_TUNABLES, see `experiments.command`) and the folder of compiled programs: peers get the same.
"""

import contextlib
import dataclasses
import importlib.util
import multiprocessing
import multiprocessing.connection
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from experiments.command import print_json
from rlvr_jax.errors import UserError

OURS = "rlvr_jax"

Turn = Callable[[], bool]
"""A side calls it when it is set up and after each piece of work, and goes on when it returns; False: enough."""
Side = Callable[[Turn], Mapping[str, Any] | None]
"""Works until its turns are over; the figures that it has beside its seconds are returned."""


@dataclasses.dataclass(frozen=True)
class Peer:
    """Somebody else's way to do the work."""

    side: Callable[..., Mapping[str, Any] | None]
    """A Side, once its first arguments are fixed."""
    modules: tuple[str, ...]
    """What must be installed."""


@dataclasses.dataclass(frozen=True)
class Measured:
    """All rounds, by side."""

    seconds: dict[str, list[float]]
    figures: dict[str, dict[str, Any]]

    def ratios(self) -> dict[str, float]:
        """`ratio_to_NAME`: by how much ours is faster."""
        ours = self.seconds[OURS]
        return {
            f"ratio_to_{name}": float(np.median([other / own for own, other in zip(ours, theirs, strict=True)]))
            for name, theirs in self.seconds.items()
            if name != OURS
        }

    def rates(self, tokens: int) -> dict[str, float]:
        """Tokens per second, where a round writes or trains so many."""
        return {name: tokens / float(np.median(values)) for name, values in self.seconds.items()}

    def processor_seconds(self) -> dict[str, float]:
        """Of all threads, in the last round: the work, where seconds tell how well it is shared."""
        return {name: figures["processor_seconds"] for name, figures in self.figures.items()}

    def peaks(self) -> dict[str, int]:
        """Bytes of resident memory at most."""
        return {name: figures["peak_bytes"] for name, figures in self.figures.items()}


def chosen(peers: Mapping[str, Peer], asked: Sequence[str] | None) -> dict[str, Peer]:
    """The peers asked for, by default those that are installed; the others are named on standard error.

    Raises UserError where one is asked for and not installed.
    """
    found = {}
    for name in peers if asked is None else asked:
        missing = [module for module in peers[name].modules if importlib.util.find_spec(module) is None]
        if not missing:
            found[name] = peers[name]
        elif asked is None:
            print(f"without {name}: {missing[0]} is not installed", file=sys.stderr)
        else:
            raise UserError(f"peers are {', '.join(asked)}: {name} needs {missing[0]}, which is not installed")
    return found


def take_turns(sides: Mapping[str, Side], repeats: int) -> Measured:
    """Sets up and warms up one side after the other, then `repeats` rounds. Raises UserError where one cannot go on."""
    if jax.config.jax_compilation_cache_dir:
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(jax.config.jax_compilation_cache_dir))
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    with contextlib.ExitStack() as stack:
        workers = {}
        for name, side in sides.items():
            workers[name] = stack.enter_context(contextlib.closing(_Worker(name, side)))
            workers[name].turn()
        for _ in range(repeats):
            for name, worker in workers.items():
                seconds[name].append(worker.turn())
        return Measured(seconds, {name: worker.end() for name, worker in workers.items()})


class _Worker:
    """The process of one side."""

    def __init__(self, name: str, side: Side):
        spawn = multiprocessing.get_context("spawn")
        self._name = name
        self._connection, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_work, args=(side, theirs))
        self._process.start()
        theirs.close()
        self._receive()

    def turn(self) -> float:
        """Seconds of one piece of work."""
        self._connection.send(True)
        return self._receive()

    def end(self) -> dict[str, Any]:
        """The side's figures."""
        self._connection.send(False)
        figures = self._receive()
        self._process.join()
        return figures

    def close(self) -> None:
        self._process.terminate()
        self._process.join()

    def _receive(self) -> Any:
        try:
            message = self._connection.recv()
        except EOFError:
            self._process.join()
            raise UserError(f"{self._name} ended with exit status {self._process.exitcode}") from None
        if isinstance(message, UserError):
            raise message
        return message


def _work(side: Side, connection: multiprocessing.connection.Connection) -> None:
    # The last line of standard output is the command's; what a peer prints is for people.
    os.dup2(2, 1)
    started = started_working = working = 0.0

    def turn() -> bool:
        nonlocal started, started_working, working
        connection.send(time.perf_counter() - started)
        working = time.process_time() - started_working
        goes_on = connection.recv()
        started, started_working = time.perf_counter(), time.process_time()
        return goes_on

    try:
        figures = side(turn) or {}
    except UserError as error:
        connection.send(error)
        return
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    connection.send({**figures, "peak_bytes": peak, "processor_seconds": working})


def report(
    figures: Mapping[str, Any],
    seconds: Mapping[str, Mapping[str, Sequence[float]]],
    floors: Mapping[str, float | None],
    *,
    caption: str,
    json: bool,
) -> int:
    """Prints figures as JSON or else the seconds as a table; 1 where a figure is below its floor.

    `seconds` are by work and side; the figure beside a side's is `ratio_to_SIDE`, with the name of any work but the
    first in front of it. A figure that was not measured has no floor.
    """
    missed = [name for name, floor in floors.items() if floor is not None and figures.get(name, floor) < floor]
    if json:
        print_json(figures)
        return int(bool(missed))
    table = Table(caption=" ".join([caption, *(f"Missed: {name} at least {floors[name]:g}." for name in missed)]))
    for column in ("", "seconds", "least", "most", "ours is faster by"):
        table.add_column(column, justify="right" if column else "left")
    for i, (work, sides) in enumerate(seconds.items()):
        for name, values in sides.items():
            ratio = figures.get(f"{work}_ratio_to_{name}" if i else f"ratio_to_{name}")
            spread = (f"{value:.2f}" for value in (np.median(values), min(values), max(values)))
            table.add_row(f"{name}, {work}" if len(seconds) > 1 else name, *spread, f"{ratio:.2f}x" if ratio else "")
    Console().print(table)
    return int(bool(missed))
