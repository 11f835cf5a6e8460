"""The files records.jsonl and mixture.jsonl of a run: their readers and their writer, a line per record or update.

A line ends in a checksum (CRC-32) of itself and of all lines before it, so that none can change or be missing
unnoticed. Behind the last newline is a line that is still being written. Reading does not import torch.
"""

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from multidds import Update
from multidds._base.chain import Chain, is_whole
from multidds._base.errors import DamagedError, UserError
from multidds._base.files import make_folder, readable, sync, take_lock
from multidds.history import PLAIN, line_of, moment_of

from . import checkpoints
from .identity import check_owner
from .records import ANY, AnyRecord, Started, Validated
from .tensorboard import Board, scalars

FILE = "records.jsonl"
FILES = (FILE, PLAIN)


def _read(path: Path, content: bytes) -> tuple[list[dict[str, Any]], Chain]:
    """Returns the lines of a file up to its last newline; a DamagedError has file and line number."""
    chain, lines = Chain(), []
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            lines.append(chain.read(line))
        except ValueError as error:
            raise DamagedError(f"{path}:{number}: {error}.") from None
    if lines and "run" in lines[0]:
        check_owner(path, lines[0]["run"], path.parent, "restore it from a copy.")
    return lines, chain


def read_lines(run: Path, name: str) -> list[dict[str, Any]]:
    """Reads a file of a run. A line that is still being written is left out."""
    path, needed, unreadable = run / name, 0, None
    try:
        needed = checkpoints.counted_bytes(run).get(name, 0)  # before the file: the run may be under way
    except DamagedError as error:
        unreadable = error
    except UserError:
        pass  # it has just given way to a newer one
    if not os.path.lexists(path):
        raise UserError(f"{run}: is not a run (there is no {name}).")
    with readable(path):
        content = path.read_bytes()
    whole, newline, torn = content.rpartition(b"\n")
    lines, _ = _read(path, content)
    if len(whole + newline) < needed:
        checkpoints.check(checkpoints.listed(run)[-1])  # or is that damaged?
        raise _cut_short(path, needed, len(content))
    if is_whole(torn[:-1]):
        raise DamagedError(f"{path}: is damaged (its last line has another end than a newline).")
    if unreadable is not None and not any(line.get("finished") for line in lines[-2:]):
        raise DamagedError(f"{path}: may have lost its last lines, which only a checkpoint can say: {unreadable}")
    return lines


def read_records(run: Path) -> list[AnyRecord]:
    """Reads the records of a run."""
    records = []
    for number, line in enumerate(read_lines(run, FILE), start=1):
        try:
            records.append(_record(line))
        except ValueError as error:
            raise DamagedError(f"{run / FILE}:{number}: {error}.") from None
    return records


def _record(line: Mapping[str, Any]) -> AnyRecord:
    try:
        return ANY.validate_python(line)
    except ValueError:
        raise ValueError("is not a record") from None


def check_lines(path: Path, size: int) -> Chain:
    """Raises a DamagedError unless the first `size` bytes of a file are whole lines. Returns the chain behind them."""
    content = path.read_bytes()[:size] if size and path.exists() else b""
    _, chain = _read(path, content)
    if len(content) < size or (size and not content.endswith(b"\n")):
        raise _cut_short(path, size, len(content))
    return chain


def _cut_short(path: Path, size: int, there: int) -> DamagedError:
    return DamagedError(f"{path}: is damaged (of the {size} bytes that a checkpoint counts on, {there} are there).")


class Follower:
    """A reader of the new records of a run that may be under way, up to a damaged line."""

    def __init__(self, run: Path) -> None:
        self._path = run / FILE
        self._damaged: int | None = None  # the size of a file with a damaged line
        self._begin()

    def _begin(self) -> None:
        self._offset, self._chain = 0, Chain()

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
                records.append(_record(self._chain.read(line)))
            except ValueError:
                return records, False
            self._offset += len(line) + 1
        return records, True


class Records:
    """The writer of records and updates, also to TensorBoard. A second process is refused.

    folder: of the run.
    sizes: {file: bytes to keep}, of a run that is resumed.
    step: the step that is resumed from.
    """

    def __init__(self, folder: Path, sizes: Mapping[str, int], step: int) -> None:
        make_folder(folder)
        for name in FILES:
            (folder / name).touch()
        sync(folder)
        # A line at a time: 'multidds experiment' reads along.
        self._files = {name: (folder / name).open("r+", buffering=1, encoding="ascii", newline="\n") for name in FILES}
        try:
            take_lock(self._files[FILE].fileno(), _refusal(folder))
            self._chains = {name: check_lines(folder / name, sizes.get(name, 0)) for name in FILES}
            for name, file in self._files.items():
                file.truncate(sizes.get(name, 0))
                file.seek(0, 2)
            self._board = Board(folder / "tensorboard", step)
        except BaseException:
            self._close_files()
            raise

    def start(self, mixture: Mapping[str, float], run: str | None) -> None:
        """Writes the first lines of both files. run: its identity."""
        self.write(Started(step=0, run=run))
        self._append(PLAIN, json.dumps({"step": 0, "run": run, "mixture": dict(mixture)}))
        self._board.write(0, {f"mixture/{name}": share for name, share in mixture.items()})

    def write(self, record: AnyRecord) -> None:
        """Writes a record. The dev losses of a validation also stand beside the updates, as evaluations of any run."""
        self._append(FILE, json.dumps(record.model_dump()))
        self._board.write(record.step, scalars(record))
        if isinstance(record, Validated):
            seen = {"step": record.step, "eval_loss": record.dev_loss, "finished": record.finished}
            self._append(PLAIN, json.dumps(seen))

    def write_update(self, update: Update, passes: Mapping[str, float]) -> None:
        self._append(PLAIN, line_of(moment_of(update, passes)))
        self._board.write(update.step, update.scalars(passes=passes))

    def _append(self, name: str, content: str) -> None:
        self._files[name].write(self._chains[name].written(content))

    def flushed(self) -> dict[str, int]:
        """Waits until all lines are on the disk. Returns {file: size in bytes}."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        return {name: file.tell() for name, file in self._files.items()}

    def close(self) -> None:
        try:
            self._close_files()
        finally:
            self._board.close()

    def _close_files(self) -> None:
        with contextlib.ExitStack() as stack:
            for file in self._files.values():
                stack.callback(file.close)


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
