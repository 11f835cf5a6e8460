"""Files and folders that are written whole or not at all, and stay so if the machine stops a moment later.

What is being written stands beside its place as NAME.partial. A reader finds the old content or the new; after an
error, a full disk included, nothing is left of the new.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

PARTIAL = ".partial"


def write_whole(path: Path, content: str | bytes) -> None:
    with whole_file(path) as partial:
        partial.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yields a path to write to, which takes the place of `path` when the block ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
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
    partial, old = (path.with_name(path.name + ending) for ending in (PARTIAL, ".old"))
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
    try:
        partial.mkdir(parents=True)
        yield partial
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)
            path.rename(old)
        move_into_place(partial, path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        if old.exists() and not path.exists():
            old.rename(path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def move_into_place(partial: Path, path: Path) -> None:
    """Rename a file, or a folder with all that is in it, when it is on the disk; then the rename is there too."""
    for written in [*partial.rglob("*"), partial] if partial.is_dir() else [partial]:
        _sync(written)
    partial.replace(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    folder = path.is_dir()
    with contextlib.suppress(OSError) if folder else contextlib.nullcontext():  # not every system can for folders
        handle = os.open(path, os.O_RDONLY if folder else os.O_RDWR)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
