"""Scalars for TensorBoard, written by the thread that has them.

TensorBoard's EventFileWriter writes from a thread of its own, where an error of the disk is not seen by the program.
Its RecordWriter, which is used here, raises the error.
"""

import socket
import time
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

_FLUSH_SECONDS = 30.0


class ScalarWriter:
    """One event file of a folder. All methods raise OSError where it cannot be written."""

    def __init__(self, folder: Path, first_step: int):
        """TensorBoard forgets what earlier files have of `first_step` and later."""
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}"
        self._writer = RecordWriter((folder / name).open("wb"))
        self._flushed = time.monotonic()
        self._write(Event(file_version="brain.Event:2"))
        if first_step > 1:
            self._write(Event(step=first_step, session_log=SessionLog(status=SessionLog.START)))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._write(Event(step=step, summary=Summary(value=[Summary.Value(tag=name, simple_value=value)])))
        if time.monotonic() - self._flushed > _FLUSH_SECONDS:
            self._writer.flush()
            self._flushed = time.monotonic()

    def close(self) -> None:
        self._writer.close()

    def _write(self, event: Event) -> None:
        event.wall_time = time.time()
        self._writer.write(event.SerializeToString())
