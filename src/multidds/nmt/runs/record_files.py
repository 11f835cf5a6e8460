"""The file records.jsonl of a run: its reader and its writer, a line per record.

A line ends in a checksum (CRC-32) of itself and of all lines before it, so that none can change or be missing
unnoticed. Behind the last newline is a line that is still being written. Reading does not import torch.
"""

import json
import os
import re
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from multidds._base.errors import DamagedError, UserError
from multidds._base.files import make_folder, readable, sync, take_lock

from . import checkpoints
from .identity import check_owner
from .records import ANY, AnyRecord, Started, Validated
from .tensorboard import Board

FILE = "records.jsonl"
_END = re.compile(rb', "checksum": "([0-9a-f]{8})"\}\Z')


def record_line(content: str, before: int = 0) -> tuple[str, int]:
    """Returns the line of a record and its checksum, which the next line needs.

    content: the record as a JSON object that is not empty, in ASCII.
    before: the checksum of the line before; by default this is the first.
    """
    body = content.removesuffix("}")
    checksum = zlib.crc32(body.encode("ascii"), before)
    return f'{body}, "checksum": "{checksum:08x}"}}\n', checksum


class _Chain:
    """A reader of lines, each of which depends on the checksum of the one before."""

    def __init__(self) -> None:
        self.checksum = 0

    def read(self, line: bytes) -> AnyRecord:
        """Returns the record of the next line; raises a ValueError with the reason if it is damaged."""
        line = line.removesuffix(b"\r")  # of a copy on Windows
        end = _END.search(line)
        if end is None:
            raise ValueError("is damaged or of another version (it does not end in a checksum)")
        checksum = zlib.crc32(line[: end.start()], self.checksum)
        if int(end[1], 16) != checksum:
            raise ValueError("is damaged, or a line before it is missing (its checksum does not fit)")
        try:
            record = ANY.validate_python(json.loads(line[: end.start()] + b"}"))
        except (ValueError, RecursionError):
            raise ValueError("is not a record") from None
        self.checksum = checksum
        return record

    def read_all(self, path: Path, lines: Iterable[bytes]) -> list[AnyRecord]:
        """Returns the records of lines; raises a DamagedError with file and line number."""
        records = []
        for number, line in enumerate(lines, start=1):
            try:
                records.append(self.read(line))
            except ValueError as error:
                raise DamagedError(f"{path}:{number}: {error}.") from None
        if records and isinstance(records[0], Started):
            check_owner(path, records[0].run, path.parent, "restore it from a copy.")
        return records


def read_records(run: Path) -> list[AnyRecord]:
    """Reads the records of a run. A line that is still being written is left out."""
    path, needed, unreadable = run / FILE, 0, None
    try:
        needed = checkpoints.counted_records(run)  # before the records: the run may be under way
    except DamagedError as error:
        unreadable = error
    except UserError:
        pass  # it has just given way to a newer one
    if not os.path.lexists(path):
        raise UserError(f"{run}: is not a run (there is no {FILE}).")
    with readable(path):
        content = path.read_bytes()
    whole, newline, torn = content.rpartition(b"\n")
    records = _Chain().read_all(path, whole.split(b"\n") if newline else [])
    if len(whole + newline) < needed:
        checkpoints.check(checkpoints.listed(run)[-1])  # or is that damaged?
        raise _cut_short(path, needed, len(content))
    if _END.search(torn[:-1]):
        raise DamagedError(f"{path}: is damaged (its last line has another end than a newline).")
    if unreadable is not None and not any(isinstance(record, Validated) and record.finished for record in records[-2:]):
        raise DamagedError(f"{path}: may have lost its last lines, which only a checkpoint can say: {unreadable}")
    return records


def check_records(run: Path, size: int) -> int:
    """Raises a DamagedError unless the first `size` bytes of the records are whole lines. Returns their checksum."""
    path, chain = run / FILE, _Chain()
    content = path.read_bytes()[:size] if size and path.exists() else b""
    chain.read_all(path, content.split(b"\n")[:-1])
    if len(content) < size or (size and not content.endswith(b"\n")):
        raise _cut_short(path, size, len(content))
    return chain.checksum


def _cut_short(path: Path, size: int, there: int) -> DamagedError:
    return DamagedError(f"{path}: is damaged (of the {size} bytes that a checkpoint counts on, {there} are there).")


class Follower:
    """A reader of the new records of a run that may be under way, up to a damaged line."""

    def __init__(self, run: Path) -> None:
        self._path = run / FILE
        self._damaged: int | None = None  # the size of a file with a damaged line
        self._begin()

    def _begin(self) -> None:
        self._offset, self._chain = 0, _Chain()

    def read(self) -> tuple[bool, list[AnyRecord]]:
        """Returns (whether all are read again, because the run was cut back; the new records that are whole)."""
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
        """Returns (the next records up to a line that does not fit, whether there is no such line)."""
        file.seek(self._offset)
        records = []
        for line in file.read().split(b"\n")[:-1]:
            try:
                records.append(self._chain.read(line))
            except ValueError:
                return records, False
            self._offset += len(line) + 1
        return records, True


class Records:
    """The writer of records, also to TensorBoard. A second process is refused.

    folder: of the run.
    offset: bytes of the records to keep, of a run that is resumed.
    step: the step that is resumed from.
    """

    def __init__(self, folder: Path, offset: int, step: int) -> None:
        path = folder / FILE
        make_folder(folder)
        path.touch()
        sync(folder)
        # A line at a time: 'multidds experiment' reads along.
        self._file = path.open("r+", buffering=1, encoding="ascii", newline="\n")
        try:
            take_lock(self._file.fileno(), _refusal(folder))
            self._checksum = check_records(folder, offset)
            self._file.truncate(offset)
            self._file.seek(0, 2)
            self._board = Board(folder / "tensorboard", step)
        except BaseException:
            self._file.close()
            raise

    def write(self, record: AnyRecord) -> None:
        line, self._checksum = record_line(json.dumps(record.model_dump()), self._checksum)
        self._file.write(line)
        self._board.write(record)

    def flushed(self) -> int:
        """Waits until all records are on the disk. Returns their size in bytes."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        try:
            self._file.close()
        finally:
            self._board.close()


def check_free(folder: Path) -> None:
    """Raises a UserError if another process writes the records of a run, before anything else is read."""
    try:
        handle = os.open(folder / FILE, os.O_RDWR)
    except OSError:
        return  # there are none yet
    try:
        take_lock(handle, _refusal(folder))
    finally:
        os.close(handle)


def _refusal(folder: Path) -> str:
    return f"{folder}: is being trained by another process."
