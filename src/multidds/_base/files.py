"""Files and folders that are written whole or not at all, and locks that keep a second writer out.

New content is written beside its place, as NAME.partial, and renamed when it is on the disk. A reader finds the old
content or the new one; after an error, a full disk included, nothing is left of the new one (but see `resumed_folder`).
"""

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from .errors import DamagedError, UserError

PARTIAL = ".partial"
LOCK = ".lock"
_OLD = ".old"


@contextlib.contextmanager
def readable(path: Path, what: str = "file", regular: bool = True) -> Iterator[None]:
    """Turns an error of the block that reads a file into one line about that file.

    path: the file.
    what: a word for it, for the case that it does not exist.
    regular: whether pipes and devices, which may have no end, are refused.
    """
    try:
        if regular and not stat.S_ISREG(path.stat().st_mode):
            raise DamagedError(f"{path}: is not a regular file.")
        yield
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such {what}.") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}.") from None


@contextlib.contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Gives an error of the block the path if it names none, or two: a copy to a full disk names its source first."""
    try:
        yield
    except OSError as error:
        if error.filename is None or error.filename2 is not None:
            error.filename, error.filename2 = str(path), None
        raise


def write_whole(path: Path, content: str | bytes) -> None:
    with whole_file(path) as partial, partial.open("xb") as file:
        file.write(content if isinstance(content, bytes) else content.encode("utf-8"))


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yields a path to write to, which replaces `path` when the block ends."""
    make_folder(path.parent)
    partial = path.with_name(path.name + PARTIAL)
    try:
        with named_errors(path):
            partial.unlink(missing_ok=True)  # of a process that was killed, or a link to another place
            yield partial
            move_into_place(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Yields an empty folder to fill, which replaces the folder `path` when the block ends."""
    partial = path.with_name(path.name + PARTIAL)
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
    make_folder(path.parent)
    try:
        with named_errors(path):
            partial.mkdir()
            yield partial
            _replace(partial, path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


@contextlib.contextmanager
def resumed_folder(path: Path, purpose: str) -> Iterator[Path]:
    """Yields a folder beside `path`, whose folder "data" replaces `path` when the block ends.

    After an interrupted block, the next one with the same purpose gets the same folder, with all that was written to
    it; the block decides which of those files it can use. A UserError empties it: the input has to be changed first.

    path: the folder to replace.
    purpose: a text that identifies what is made.
    """
    partial = path.with_name(path.name + PARTIAL)
    stamp = partial / "purpose"
    if not stamp.is_file() or stamp.read_bytes() != purpose.encode():
        shutil.rmtree(partial, ignore_errors=True)
        make_folder(partial)
        write_whole(stamp, purpose)
    try:
        with named_errors(partial):
            yield partial
    except UserError:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    _replace(partial / "data", path)
    shutil.rmtree(partial, ignore_errors=True)


def recover(path: Path) -> None:
    """Puts a folder back that a killed process was just replacing."""
    old = path.with_name(path.name + _OLD)
    if old.exists() and not path.exists():
        old.rename(path)


def _replace(partial: Path, path: Path) -> None:
    """Moves a folder to the place of another one."""
    old = path.with_name(path.name + _OLD)
    shutil.rmtree(old, ignore_errors=True)
    try:
        if path.exists():
            path.rename(old)
        move_into_place(partial, path)
    except BaseException:
        recover(path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def move_into_place(partial: Path, path: Path) -> None:
    """Renames a file or folder, durably: its content is on the disk before, its new name after."""
    for written in [*partial.rglob("*"), partial]:
        sync(written)
    partial.replace(path)
    sync(path.parent)


def make_folder(path: Path) -> None:
    """Makes a folder and those above it, on the disk."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)


def sync(path: Path) -> None:
    """Waits until the content of a file, or the names in a folder, are on the disk."""
    folder = path.is_dir()
    with contextlib.suppress(OSError) if folder else contextlib.nullcontext():  # not every system can for folders
        handle = os.open(path, os.O_RDONLY if folder else os.O_RDWR)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def locked(path: Path, refusal: str) -> Iterator[None]:
    """Holds a lock while the block runs. It ends with the process: the file that a killed one leaves locks nobody out.

    path: the lock file.
    refusal: the message of the UserError if another process holds the lock.
    """
    make_folder(path.parent)
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            take_lock(handle, refusal)
            if path.exists() and os.path.samestat(os.fstat(handle), path.stat()):
                break
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # its last holder deleted it in the meantime
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # the folder is gone, or the system keeps open files
            path.unlink()
        os.close(handle)


def take_lock(handle: int, refusal: str) -> None:
    """Locks an open file until it is closed, or raises a UserError with the refusal."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(refusal) from None
    except OSError:
        pass  # a file system without locks
