"""Scalars for TensorBoard, written by the thread that has them.

tensorboardX's SummaryWriter writes from a thread of its own; when the disk is full that thread ends, and the program
waits for it for ever. Its EventsWriter, which is used here, raises the error.
"""

import time
from collections.abc import Mapping
from pathlib import Path

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.summary import scalar

_FLUSH_SECONDS = 30.0


class ScalarWriter:
    """One event file of a folder. All methods raise OSError where it cannot be written."""

    def __init__(self, folder: Path, first_step: int):
        """TensorBoard forgets what earlier files have of `first_step` and later."""
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = EventsWriter(str(folder / "events"), f".{time.time_ns()}")
        self._flushed = time.monotonic()
        if first_step > 1:
            self._writer.write_event(Event(step=first_step, file_version="brain.Event:2"))
            self._writer.write_event(Event(step=first_step, session_log=SessionLog(status=SessionLog.START)))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.write_event(Event(wall_time=time.time(), step=step, summary=scalar(name, value)))
        if time.monotonic() - self._flushed > _FLUSH_SECONDS:
            self._writer.flush()
            self._flushed = time.monotonic()

    def close(self) -> None:
        self._writer.close()
