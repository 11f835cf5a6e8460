"""The numbers of records on TensorBoard."""

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from multidds.history import FACTS
from multidds.history.loggers import LAYOUT

from .records import AnyRecord, Started, Updated


def scalars(record: AnyRecord) -> dict[str, float]:
    """Its numbers by their tags on TensorBoard: of an update those of `Update.scalars`, else behind the kind.

    So what a probe and what a validation found do not share a tag.
    """
    found: dict[str, float] = {}
    for key, value in record.model_dump(exclude={"kind", "step"}).items():
        group = isinstance(value, dict) and isinstance(record, Started | Updated)
        kind = "balance" if isinstance(record, Updated) and key in FACTS else record.kind
        found |= _flat(key if group else f"{kind}/{key}", value)
    return found


def _flat(place: str, value: object) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _flat(f"{place}/{name}", inner)
    elif isinstance(value, (int, float)):
        yield place, float(value)


def _layout() -> Any:
    """One chart per group of numbers, on the tab "Custom Scalars"."""
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING
    from tensorboard.plugins.custom_scalar import layout_pb2, metadata

    categories = [
        layout_pb2.Category(
            title=title,
            chart=[
                layout_pb2.Chart(title=chart, multiline=layout_pb2.MultilineChartContent(tag=tags))
                for chart, (_, tags) in charts.items()
            ],
        )
        for title, charts in LAYOUT.items()
    ]
    text = layout_pb2.Layout(category=categories).SerializeToString()
    value = Summary.Value(
        tag=metadata.CONFIG_SUMMARY_TAG,
        metadata=metadata.create_summary_metadata(),
        tensor=TensorProto(dtype=DT_STRING, string_val=[text]),
    )
    return Summary(value=[value])


class Board:
    """Writes records to TensorBoard. Not its own writers: one would write '_' for most characters of a name, and those
    that write in a thread meet a full disk there, with a traceback."""

    def __init__(self, folder: Path, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder.mkdir(exist_ok=True)
        stem = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        self._writer = RecordWriter((folder / stem).open("wb"))
        self._add(Event(file_version="brain.Event:2"))
        # What is behind the step is forgotten.
        self._add(Event(session_log=SessionLog(status=SessionLog.START), step=step + 1))
        self._add(Event(summary=_layout()))

    def write(self, record: AnyRecord) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=tag, simple_value=number) for tag, number in scalars(record).items()]
        self._add(Event(summary=Summary(value=values), step=record.step))

    def _add(self, event: Any) -> None:
        event.wall_time = time.time()
        self._writer.write(event.SerializeToString())
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
