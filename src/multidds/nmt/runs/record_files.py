"""The file records.jsonl of a run: its reader and its writer, a line per record.

A line ends in a checksum (CRC-32) of itself and all lines before it, so that none can change or be missing unnoticed;
what follows the last newline is a line that was being written. Reading does not import torch.
"""

import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from ..common.errors import DamagedError, UserError
from ..common.files import make_folder, sync, take_lock
from . import checkpoints
from .records import ANY, AnyRecord
from .tensorboard import Board

FILE = "records.jsonl"
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
            record = ANY.validate_python(json.loads(line[: end.start()].decode("utf-8", "surrogatepass") + "}"))
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
            self._board = Board(folder / "tensorboard", step)
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
