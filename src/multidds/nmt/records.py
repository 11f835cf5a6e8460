"""What happened in a run, a line of records.jsonl each: the records as types, their reader and their writer.

The words for what an update found are those of `Update.groups`, in records, on TensorBoard and in reports. Reading does
not import torch.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from .errors import UserError

FILE = "records.jsonl"
Numbers = dict[str, float]  # by dataset, or by dev set


class Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    step: int  # optimizer steps so far


class Started(Record):
    kind: Literal["start"] = "start"
    mixture: Numbers


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
    learned: float = 0.0  # and between the mixture and the one without any reward
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


AnyRecord = Started | Stepped | Updated | Validated
_ANY: TypeAdapter[AnyRecord] = TypeAdapter(Annotated[AnyRecord, Field(discriminator="kind")])


def read_records(run: Path) -> list[AnyRecord]:
    """Those of a run. What follows the last newline is still being written and is left out."""
    path = run / FILE
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        raise UserError(f"{run}: is not a run (there is no {FILE}).") from None
    found = []
    for number, line in enumerate(lines, start=1):
        if (record := _parsed(line)) is None:
            raise UserError(f"{path}:{number}: is not a record.")
        found.append(record)
    return found


class Follower:
    """Reads along in the records of a run that may be under way: only what is new."""

    def __init__(self, run: Path) -> None:
        self._path, self._offset = run / FILE, 0

    def read(self) -> tuple[bool, list[AnyRecord]]:
        """(whether the run has cut its records back, so that all are read again; the new ones that are whole)."""
        try:
            with self._path.open("rb") as file:
                again = file.seek(0, 2) < self._offset
                self._offset = file.seek(0 if again else self._offset)
                new = file.read()
        except OSError:
            return False, []
        lines = new.split(b"\n")[:-1]
        self._offset += sum(len(line) + 1 for line in lines)
        return again, [record for line in lines if (record := _parsed(line)) is not None]


def _parsed(line: bytes) -> AnyRecord | None:
    try:
        return _ANY.validate_python(json.loads(line))
    except (ValueError, RecursionError):
        return None


def scalars(record: AnyRecord) -> dict[str, float]:
    """Its numbers by their tags on TensorBoard: of an update those of `Update.scalars`, else behind the kind.

    So what a probe and what a validation found do not share a tag.
    """
    found: dict[str, float] = {}
    for key, value in record.model_dump(exclude={"kind", "step"}).items():
        group = isinstance(value, dict) and isinstance(record, Started | Updated)
        found |= _flat(key if group else f"{record.kind}/{key}", value)
    return found


def _flat(place: str, value: object) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _flat(f"{place}/{name}", inner)
    elif isinstance(value, (int, float)):
        yield place, float(value)


class Records:
    """Writes them, and TensorBoard. A resumed run cuts both back to its checkpoint."""

    def __init__(self, folder: Path, offset: int, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from torch.utils.tensorboard import FileWriter

        path = folder / FILE
        folder.mkdir(parents=True, exist_ok=True)
        path.touch()
        # A line at a time: 'multidds experiment' reads along.
        self._file = path.open("r+", buffering=1, encoding="utf-8", newline="\n")
        self._lock(folder)
        self._file.truncate(min(offset, path.stat().st_size))
        self._file.seek(0, 2)
        # Not a SummaryWriter, which would write '_' for most characters of a name.
        self._board = FileWriter(str(folder / "tensorboard"))
        self._board.add_event(Event(session_log=SessionLog(status=SessionLog.START)), step + 1)  # forget what is behind

    def _lock(self, folder: Path) -> None:
        """One writer: a second process is refused. The lock ends with the process, however it ends."""
        with contextlib.suppress(ImportError):  # not on Windows
            import fcntl

            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._file.close()
                raise UserError(f"{folder}: is being trained by another process.") from None
            except OSError:
                pass  # a file system without locks

    def write(self, record: AnyRecord) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._file.write(json.dumps(record.model_dump(), ensure_ascii=False) + "\n")
        values = [Summary.Value(tag=tag, simple_value=number) for tag, number in scalars(record).items()]
        self._board.add_summary(Summary(value=values), record.step)

    def flushed(self) -> int:
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        self._file.close()
        self._board.close()
