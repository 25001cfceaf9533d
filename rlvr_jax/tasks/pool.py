"""Verifiers in processes of their own, for verdicts that may take long, for ever, or all memory."""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from rlvr_jax.tasks.grading_worker import Settings
from rlvr_jax.tasks.task import Row, Task, Verdict

Progress = Callable[[int], None]
SECONDS = 5.0
"""The time limit of one verdict, on the clock of the wall."""
MEMORY = 256 << 20
"""Bytes that a worker may allocate beyond what it starts with."""
STUCK = 48
"""Workers that may be stuck at the same time, beside those that answer."""


@runtime_checkable
class Verifier(Protocol):
    """Verdicts on many completions, in their order."""

    def __call__(
        self, rows: Sequence[Row], completions: Sequence[str], progress: Progress = lambda done: None
    ) -> list[Verdict]:
        """`progress` is told how many verdicts there are."""


def verifier_of(task: Task) -> Verifier:
    """Worker processes for a task whose verdicts may take long; this process for all others."""
    if task.worker_grader is not None:
        return VerifierPool(task.worker_grader)

    def in_this_process(
        rows: Sequence[Row], completions: Sequence[str], progress: Progress = lambda done: None
    ) -> list[Verdict]:
        verdicts = [task.verify(row, text) for row, text in zip(rows, completions, strict=True)]
        progress(len(verdicts))
        return verdicts

    return in_this_process


class VerifierPool:
    """Persistent workers of one verifier; each verdict has a time limit, each worker a memory limit.

    A worker that exceeds one is killed and replaced, and the verdict is `timed-out`; the others go on meanwhile. The
    processes are spawned (this one is never forked), start at the first call and end with `close`, with this object
    or with this process. Texts travel as JSON strings; nothing is pickled. No signal is handled, so it works in any
    thread; calls from several threads take turns. For Linux and macOS; the memory limit is kept on Linux alone.
    """

    def __init__(
        self,
        grader: str,
        *,
        workers: int | None = None,
        seconds: float = SECONDS,
        memory: int = MEMORY,
    ):
        """`workers` are by default as many as this process may use CPUs."""
        self._settings = Settings(grader, workers or _cpus(), STUCK, seconds, memory)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(
        self, rows: Sequence[Row], completions: Sequence[str], progress: Progress = lambda done: None
    ) -> list[Verdict]:
        """Verdicts in the order of the completions. Raises RuntimeError when the workers cannot be kept running."""
        if not completions:
            return []
        with self._lock:
            process = self._started()
            try:
                return self._exchange(process, [row.answer for row in rows], completions, progress)
            # Half an exchange would answer the next call with this one's verdicts.
            except BaseException:
                self._end()
                raise

    def close(self) -> None:
        """Ends the workers; a later call starts new ones."""
        with self._lock:
            self._end()

    def _started(self) -> "subprocess.Popen[bytes]":
        if self._process is None or self._process.poll() is not None:
            settings = json.dumps(dataclasses.asdict(self._settings))
            # Modules are found there as here. Threads of a linear-algebra library would make forking unsafe.
            path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
            one_thread = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from rlvr_jax.tasks.grading_worker import main; main()", settings],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": path, **one_thread},
                # Ctrl-C is for this process, which then ends the workers.
                start_new_session=True,
            )
            weakref.finalize(self, _end_process, self._process)
            if self._process.stdout.readline() != b"[]\n":
                raise RuntimeError(f"the workers of verifier {self._settings.grader!r} did not start")
        return self._process

    def _exchange(
        self, process: "subprocess.Popen[bytes]", golds: Sequence[str], completions: Sequence[str], progress: Progress
    ) -> list[Verdict]:
        verdicts: list[Verdict | None] = [None] * len(completions)
        requests = (f"{i} {json.dumps(pair)}\n".encode() for i, pair in enumerate(zip(golds, completions, strict=True)))
        # A few ahead for each worker: enough to keep it busy, and too few verdicts to fill the pipe while we write.
        ahead = 2 * self._settings.graders + self._settings.stuck
        sent = 0
        for done in range(len(completions)):
            while sent < len(completions) and sent - done < ahead:
                process.stdin.write(next(requests))
                sent += 1
            process.stdin.flush()
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"the workers of verifier {self._settings.grader!r} ended unexpectedly")
            i, outcome, reason, scores, answers = json.loads(line)
            verdicts[i] = Verdict(outcome, reason, scores, answers)
            progress(done + 1)
        return verdicts

    def _end(self) -> None:
        if self._process is not None:
            _end_process(self._process)
            self._process = None


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _end_process(process: "subprocess.Popen[bytes]") -> None:
    """Closes its input, upon which it kills its workers and ends."""
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(BrokenPipeError):
            pipe.close()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
