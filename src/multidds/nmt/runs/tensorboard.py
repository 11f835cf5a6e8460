"""The numbers of records and updates on TensorBoard."""

import os
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from multidds.history.loggers import LAYOUT

from .records import AnyRecord


def scalars(record: AnyRecord) -> dict[str, float]:
    """Returns the numbers of a record by their tags.

    They begin with the kind of the record, so that a validation and the probe of an update do not share a tag.
    """
    return dict(_flat(record.kind, record.model_dump(exclude={"kind", "step"})))


def _flat(tag: str, value: object) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _flat(f"{tag}/{name}", inner)
    elif isinstance(value, (int, float)):
        yield tag, float(value)


class Board:
    """A writer of numbers to TensorBoard.

    TensorBoard's own writers are not used: one writes '_' for most characters of a name, and those that write in a
    thread fail there if the disk is full, with a traceback.

    folder: of the event files.
    step: later steps of earlier files are dropped.
    """

    def __init__(self, folder: Path, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter
        from torch.utils.tensorboard.summary import custom_scalars

        folder.mkdir(exist_ok=True)
        stem = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        self._writer = RecordWriter((folder / stem).open("wb"))
        self._add(Event(file_version="brain.Event:2"))
        self._add(Event(session_log=SessionLog(status=SessionLog.START), step=step + 1))
        self._add(Event(summary=custom_scalars(LAYOUT)))  # type: ignore[no-untyped-call]

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Writes numbers of a step by their tags."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=tag, simple_value=number) for tag, number in numbers.items()]
        self._add(Event(summary=Summary(value=values), step=step))

    def _add(self, event: Any) -> None:
        event.wall_time = time.time()
        self._writer.write(event.SerializeToString())
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
