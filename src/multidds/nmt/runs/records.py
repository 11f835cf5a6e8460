"""What happened in a run, a line of records.jsonl each: the records as types, their reader and their writer.

A line ends in a checksum (CRC-32) of itself and all lines before it, so that none can change or be missing unnoticed;
what follows the last newline is a line that was being written. The words for what an update found are those of
`Update.groups`, in records, on TensorBoard and in reports. Reading does not import torch.
"""

import json
import os
import re
import socket
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from multidds.history.history import FACTS
from multidds.history.loggers import LAYOUT

from . import checkpoints
from ..common.errors import DamagedError, UserError
from ..common.files import make_folder, sync, take_lock

FILE = "records.jsonl"
Numbers = dict[str, float]  # by dataset, or by dev set


class Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    step: int  # optimizer steps so far


class Started(Record):
    kind: Literal["start"] = "start"
    mixture: Numbers


class DataChanged(Record):
    """From here on the run is trained on other data (`--changed-data`)."""

    kind: Literal["data"] = "data"
    mixture: Numbers
    added: list[str]  # language pairs
    left_out: list[str]

    def __str__(self) -> str:
        told = [f"{word}: {', '.join(names)}" for word, names in (("added", self.added), ("left out", self.left_out))]
        return "  ".join(["the data have changed", *(line for line in told if not line.endswith(": "))])


class Stepped(Record):
    kind: Literal["step"] = "step"
    loss: float  # per target token
    lr: float
    tokens: int  # target tokens so far
    tokens_per_second: float


class AlignmentFacts(BaseModel):
    """What the table of an update says."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rewards: dict[str, Numbers]  # both, whichever the run uses: "multidds", "multidds-s"
    cosines: list[list[float]]  # [dev, train]
    train_norms: list[float]
    dev_norms: list[float] | list[list[float]]  # [dev]; with step-ahead [dev, train]


class Updated(Record):
    kind: Literal["update"] = "update"
    mixture: Numbers
    reward: Numbers
    train_loss: Numbers
    dev_loss: Numbers  # of the probe
    dev_weight: Numbers
    noise: Numbers = {}  # standard errors of the rewards, where the update estimated them
    signal: float | None = None  # what of the rewards is not noise, 0 to 1
    drift: float = 0.0  # total variation between the mixture and the prior
    learned: float = 0.0  # and between the mixture and the one without differences between rewards
    unlearned: float = 0.0  # and between that one and the prior
    passes: Numbers
    skipped: str | None
    notes: list[str]
    seconds: float
    alignment: AlignmentFacts | None = None


class Validated(Record):
    kind: Literal["validation"] = "validation"
    epoch: int
    dev_loss: Numbers  # of the whole dev sets, without label smoothing
    perplexity: Numbers
    accuracy: Numbers
    expected_accuracy: Numbers
    soft_bleu: Numbers
    mean: float  # dev loss
    means: Numbers  # over the dev sets, by what was measured
    bleu: Numbers | None = None  # of part of the dev sets, where [train] select asks for it
    signature: str | None = None  # its
    best: bool  # whether the model was kept as the best so far
    passes: Numbers
    mixture: Numbers
    sentences: int
    tokens: int
    finished: str  # why, if it is
    seconds: float
    clock: Numbers  # where the time of the run has gone


class ExampleFacts(BaseModel):
    """A sentence pair of the training data, and how much it counted when it was last trained on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dataset: str
    number: int  # among its prepared sentence pairs, from 0
    weight: float
    source: str
    target: str


class Scored(Record):
    """The weights of single sentence pairs, where [examples] gives them: of those seen so far, each by its last one."""

    kind: Literal["examples"] = "examples"
    edges: list[float]  # between the bins
    histogram: dict[str, list[int]]  # of the weights, by dataset
    weight: Numbers  # their mean
    highest: list[ExampleFacts]
    lowest: list[ExampleFacts]
    skipped: str | None  # why the last update did not change the scores


AnyRecord = Started | DataChanged | Stepped | Updated | Validated | Scored
_ANY: TypeAdapter[AnyRecord] = TypeAdapter(Annotated[AnyRecord, Field(discriminator="kind")])


_END = re.compile(rb', "checksum": "([0-9a-f]{8})"\}\Z')


def record_line(content: str, before: int = 0) -> tuple[str, int]:
    """(the line of a record, given as a JSON object that is not empty; its checksum, which the next line needs)."""
    body = content.removesuffix("}")
    checksum = zlib.crc32(body.encode("utf-8", "surrogatepass"), before)
    return f'{body}, "checksum": "{checksum:08x}"}}\n', checksum


class _Chain:
    """Reads lines one after another, each behind the one before."""

    def __init__(self) -> None:
        self._checksum = 0

    def read(self, line: bytes) -> AnyRecord:
        """The record of the next line, or a ValueError that says what is wrong with it."""
        line = line.removesuffix(b"\r")  # of a copy on Windows
        end = _END.search(line)
        if end is None:
            raise ValueError("is damaged or of another version (it does not end in a checksum)")
        checksum = zlib.crc32(line[: end.start()], self._checksum)
        if int(end[1], 16) != checksum:
            raise ValueError("is damaged, or a line before it is missing (its checksum does not fit)")
        try:
            record = _ANY.validate_python(json.loads(line[: end.start()].decode("utf-8", "surrogatepass") + "}"))
        except (ValueError, RecursionError):
            raise ValueError("is not a record") from None
        self._checksum = checksum
        return record


def read_records(run: Path) -> list[AnyRecord]:
    """Those of a run. What follows the last newline is still being written and is left out."""
    counted = checkpoints.counted_records(run)  # before the records: the run may be under way
    path = run / FILE
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{run}: is not a run (there is no {FILE}).") from None
    whole, newline, torn = content.rpartition(b"\n")
    if len(whole + newline) < counted:
        checkpoints.check(checkpoints.listed(run)[-1])  # or is that what is damaged?
        raise _cut_short(path, counted, len(content))
    if _END.search(torn[:-1]):
        raise DamagedError(f"{path}: is damaged (its last line has another end than a newline).")
    return list(_read(path, whole.split(b"\n") if newline else []))


def check_records(run: Path, size: int) -> None:
    """A DamagedError unless the first `size` bytes of the records of a run are whole lines."""
    path = run / FILE
    content = path.read_bytes()[:size] if path.exists() else b""
    if len(content) < size or not content.endswith(b"\n"):
        raise _cut_short(path, size, len(content))
    for _ in _read(path, content.split(b"\n")[:-1]):
        pass


def _cut_short(path: Path, size: int, there: int) -> DamagedError:
    return DamagedError(f"{path}: is damaged (of the {size} bytes that a checkpoint counts on, {there} are there).")


def _read(path: Path, lines: Iterable[bytes]) -> Iterator[AnyRecord]:
    chain = _Chain()
    for number, line in enumerate(lines, start=1):
        try:
            yield chain.read(line)
        except ValueError as error:
            raise DamagedError(f"{path}:{number}: {error}.") from None


class Follower:
    """Reads along in the records of a run that may be under way: only what is new, up to a line that is damaged."""

    def __init__(self, run: Path) -> None:
        self._path = run / FILE
        self._damaged: int | None = None  # the size of a file with a damaged line
        self._begin()

    def _begin(self) -> None:
        self._offset, self._chain = 0, _Chain()

    def read(self) -> tuple[bool, list[AnyRecord]]:
        """(whether the run has cut its records back, so that all are read again; the new ones that are whole)."""
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, 2)
                if size == self._damaged:
                    return False, []
                if again := size < self._offset or self._damaged is not None:
                    self._begin()
                records, fits = self._read_on(file)
                # A line that does not fit may be of records that were cut back and have grown longer than they were.
                if not fits and not again and self._offset:
                    again = True
                    self._begin()
                    records, fits = self._read_on(file)
        except OSError:
            return False, []
        self._damaged = None if fits else size
        return again, records

    def _read_on(self, file: BinaryIO) -> tuple[list[AnyRecord], bool]:
        """(the records behind those that were read, up to a line that does not fit; whether there is none such)."""
        file.seek(self._offset)
        records = []
        for line in file.read().split(b"\n")[:-1]:
            try:
                records.append(self._chain.read(line))
            except ValueError:
                return records, False
            self._offset += len(line) + 1
        return records, True


def scalars(record: AnyRecord) -> dict[str, float]:
    """Its numbers by their tags on TensorBoard: of an update those of `Update.scalars`, else behind the kind.

    So what a probe and what a validation found do not share a tag.
    """
    found: dict[str, float] = {}
    for key, value in record.model_dump(exclude={"kind", "step"}).items():
        group = isinstance(value, dict) and isinstance(record, Started | DataChanged | Updated)
        kind = "balance" if isinstance(record, Updated) and key in FACTS else record.kind
        found |= _flat(key if group else f"{kind}/{key}", value)
    return found


def _flat(place: str, value: object) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _flat(f"{place}/{name}", inner)
    elif isinstance(value, (int, float)):
        yield place, float(value)


def check_free(folder: Path) -> None:
    """A UserError if another process writes the records of a run: to be known before anything else is read."""
    try:
        handle = os.open(folder / FILE, os.O_RDWR)
    except OSError:
        return  # there are none yet; whoever cannot write them is told then
    try:
        take_lock(handle, _refusal(folder))
    finally:
        os.close(handle)


def _refusal(folder: Path) -> str:
    return f"{folder}: is being trained by another process."


class Records:
    """Writes them, and TensorBoard. A resumed run cuts both back to its checkpoint."""

    def __init__(self, folder: Path, offset: int, step: int) -> None:
        self._path = folder / FILE
        make_folder(folder)
        self._path.touch()
        sync(folder)
        # A line at a time: 'multidds experiment' reads along.
        self._file = self._path.open("r+", buffering=1, encoding="utf-8", errors="surrogatepass", newline="\n")
        try:
            # One writer: a second process is refused. The lock ends with the process, however it ends.
            take_lock(self._file.fileno(), _refusal(folder))
            if offset:
                check_records(folder, offset)
            self._checksum = _last_checksum(self._path, offset)
            self._file.truncate(offset)
            self._file.seek(0, 2)
            self._board = _Board(folder / "tensorboard", step)
        except BaseException:
            self._file.close()
            raise

    def write(self, record: AnyRecord) -> None:
        line, self._checksum = record_line(json.dumps(record.model_dump(), ensure_ascii=False), self._checksum)
        self._file.write(line)
        self._board.write(record)

    def flushed(self) -> int:
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        try:
            self._file.close()
        finally:
            self._board.close()


def _last_checksum(path: Path, offset: int) -> int:
    end = _END.search(path.read_bytes()[: max(offset - 1, 0)])
    return int(end[1], 16) if end else 0


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


class _Board:
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
