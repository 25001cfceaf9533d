"""Scalars for TensorBoard, written by the thread that has them.

tensorboardX's SummaryWriter writes from a thread of its own; when the disk is full that thread ends, and the program
waits for it for ever. Its RecordWriter, which is used here, raises the error.
"""

import socket
import time
from collections.abc import Mapping
from pathlib import Path

from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.record_writer import RecordWriter
from tensorboardX.summary import scalar

_FLUSH_SECONDS = 30.0


class ScalarWriter:
    """One event file of a folder. All methods raise OSError where it cannot be written."""

    def __init__(self, folder: Path, first_step: int):
        """TensorBoard forgets what earlier files have of `first_step` and later."""
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = RecordWriter(str(folder / f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}"))
        self._flushed = time.monotonic()
        self._write(Event(file_version="brain.Event:2"))
        if first_step > 1:
            self._write(Event(step=first_step, session_log=SessionLog(status=SessionLog.START)))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._write(Event(step=step, summary=scalar(name, value)))
        if time.monotonic() - self._flushed > _FLUSH_SECONDS:
            self._writer.flush()
            self._flushed = time.monotonic()

    def close(self) -> None:
        self._writer.close()

    def _write(self, event: Event) -> None:
        event.wall_time = time.time()
        self._writer.write(event.SerializeToString())
