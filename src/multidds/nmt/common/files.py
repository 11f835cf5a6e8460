"""Files and folders that are written whole or not at all, and stay so if the machine stops a moment later.

What is being written stands beside its place as NAME.partial. A reader finds the old content or the new; after an
error, a full disk included, nothing is left of the new, but where the work can go on. A lock keeps a second writer out.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from .errors import UserError

PARTIAL = ".partial"
LOCK = ".lock"


def write_whole(path: Path, content: str | bytes) -> None:
    with whole_file(path) as partial:
        partial.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yields a path to write to, which takes the place of `path` when the block ends."""
    make_folder(path.parent)
    partial = path.with_name(path.name + PARTIAL)
    try:
        yield partial
        move_into_place(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Yields an empty folder to fill, which takes the place of `path` and of all that was in it when the block ends."""
    partial = path.with_name(path.name + PARTIAL)
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
    make_folder(path.parent)
    try:
        partial.mkdir()
        yield partial
        _replace(partial, path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


@contextlib.contextmanager
def resumed_folder(path: Path, purpose: str) -> Iterator[Path]:
    """Yields a folder beside `path`, whose folder "data" takes the place of `path` when the block ends.

    What a block that was interrupted has left for the same purpose is there again; who goes on says what of it can be
    trusted. A UserError leaves nothing: something else has to be changed first.
    """
    partial = path.with_name(path.name + PARTIAL)
    stamp = partial / "purpose"
    try:
        same = stamp.read_text(encoding="utf-8") == purpose
    except (OSError, UnicodeDecodeError):
        same = False
    if not same:
        shutil.rmtree(partial, ignore_errors=True)
        make_folder(path.parent)
        partial.mkdir()
        write_whole(stamp, purpose)
    try:
        yield partial
    except UserError:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    _replace(partial / "data", path)
    shutil.rmtree(partial, ignore_errors=True)


def _replace(partial: Path, path: Path) -> None:
    """A folder takes the place of another, which is there until then."""
    old = path.with_name(path.name + ".old")
    try:
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)
            path.rename(old)
        move_into_place(partial, path)
    except BaseException:
        if old.exists() and not path.exists():
            old.rename(path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def move_into_place(partial: Path, path: Path) -> None:
    """Rename a file, or a folder with all that is in it, when it is on the disk; then the rename is there too."""
    for written in [*partial.rglob("*"), partial] if partial.is_dir() else [partial]:
        sync(written)
    partial.replace(path)
    sync(path.parent)


def make_folder(path: Path) -> None:
    """A folder and those above it, on the disk like what will be in it."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)


def sync(path: Path) -> None:
    """What was written to a file, or renamed within a folder, is on the disk."""
    folder = path.is_dir()
    with contextlib.suppress(OSError) if folder else contextlib.nullcontext():  # not every system can for folders
        handle = os.open(path, os.O_RDONLY if folder else os.O_RDWR)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def locked(path: Path, refusal: str) -> Iterator[None]:
    """Hold the lock file at `path`, or raise a UserError with the refusal at once if another process does.

    The lock ends with the process, however it ends: a file that a dead one has left is in nobody's way.
    """
    make_folder(path.parent)
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            take_lock(handle, refusal)
            if _is_at(handle, path):
                break
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # whoever held it has deleted it since
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # the folder may be gone; where open files cannot be deleted it stays
            path.unlink()
        os.close(handle)


def take_lock(handle: int, refusal: str) -> None:
    """Lock an open file or folder, or raise a UserError with the refusal. Closing it ends the lock."""
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


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False
