"""The shard files of a prepared folder: written in one go, read a sentence pair at a time.

A file holds the tokens of all sources, those of all targets, and an index: where the two sides of every sentence pair
begin. It is read, not mapped: memory stays that of the sentences at hand, and a file that is cut during a training is
an error like any other. A shard is checked as a whole when it is first read. Does not import torch.
"""

import contextlib
import hashlib
import os
import struct
import tempfile
import weakref
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from multidds._base.errors import DamagedError, UserError

from ..common.checksummed import check_digest

Numbers = np.ndarray[Any, np.dtype[Any]]

_INDEX = np.dtype("<u4")  # where a side begins, in tokens of that side: 2^17 sentences of at most 10,000
_ENTRY = struct.Struct("<4I")  # (source, target) of a sentence pair and of the next one
_ROW = 2 * _INDEX.itemsize
_IN_MEMORY = 1 << 26  # bytes of target tokens of a shard that is being written; more stand in a file
_OPEN = 128  # files at once
_CACHED = 1 << 15  # entries: they are needed when a sentence is drawn, sorted and counted


def token_type(tokens: int) -> str:
    """Returns the type of the numbers of a side with so many tokens."""
    return "<u2" if tokens <= 2**16 else "<u4"


class ShardWriter:
    """The writer of a shard, under another name until it is whole and on the disk.

    path: the file.
    types: of the tokens of both sides.
    """

    def __init__(self, path: Path, types: Sequence[str]) -> None:
        self._path, self._types = path, types
        # Its own name: a process that lost its parent may still be writing the same shard.
        self._partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
        self._hasher = hashlib.sha256()
        self._lengths: list[Numbers] = []  # [pairs, 2] each
        self.tokens = [0, 0]  # of the sources, of the targets

    def __enter__(self) -> "ShardWriter":
        self._file = self._partial.open("wb")
        self._targets = tempfile.SpooledTemporaryFile(_IN_MEMORY, dir=str(self._path.parent))
        return self

    def add(self, source: Numbers, target: Numbers, lengths: Numbers) -> None:
        """Adds sentence pairs: the tokens of all sources, of all targets, and of each. # [S], [T], [pairs, 2]"""
        self._write(source.astype(self._types[0], copy=False).tobytes())
        self._targets.write(target.astype(self._types[1], copy=False).tobytes())
        self._lengths.append(lengths.astype(_INDEX))
        self.tokens = [self.tokens[0] + len(source), self.tokens[1] + len(target)]

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            with self._file, self._targets:
                if kind is None:
                    self._finish()
            if kind is None:
                self._partial.replace(self._path)
        finally:
            with contextlib.suppress(OSError):
                self._partial.unlink(missing_ok=True)

    @property
    def digest(self) -> str:
        return self._hasher.hexdigest()

    def _finish(self) -> None:
        self._targets.seek(0)
        while block := self._targets.read(1 << 20):
            self._write(block)
        rows = np.concatenate([np.zeros((1, 2), _INDEX), *self._lengths])
        self._write(np.cumsum(rows, axis=0, dtype=_INDEX).tobytes())
        self._file.flush()
        os.fsync(self._file.fileno())

    def _write(self, content: bytes) -> None:
        self._hasher.update(content)
        self._file.write(content)


class ShardFiles:
    """The files of a prepared folder, of which a few are open. Each is checked when it is first read.

    folder: of the files.
    digests: of the files, by name.
    remedy: the end of the error message about a damaged file.
    """

    def __init__(self, folder: Path, digests: Mapping[str, str], remedy: str) -> None:
        self._folder, self._digests, self._remedy = folder, digests, remedy
        self._open: OrderedDict[str, int] = OrderedDict()  # the one read last at the end
        self._checked: set[str] = set()
        weakref.finalize(self, _close, self._open)

    def read(self, name: str, size: int, place: int) -> bytes:
        """Reads `size` bytes of a file from a place on."""
        try:
            content = _read(self._handle(name), size, place)
        except OSError as error:
            raise UserError(f"{self._folder / name}: cannot be read: {error.strerror or error}.") from None
        if len(content) != size:
            raise DamagedError(f"{self._folder / name}: is damaged (it ends early); {self._remedy}")
        return content

    def _handle(self, name: str) -> int:
        if name in self._open:
            self._open.move_to_end(name)
            return self._open[name]
        path = self._folder / name
        if name not in self._checked:
            check_digest(path, self._digests.get(name), self._remedy)
            self._checked.add(name)
        while len(self._open) >= _OPEN:
            os.close(self._open.popitem(last=False)[1])
        self._open[name] = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        return self._open[name]


def _close(handles: dict[str, int]) -> None:
    while handles:
        os.close(handles.popitem()[1])


def _read(handle: int, size: int, place: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(handle, size, place)
    os.lseek(handle, place, os.SEEK_SET)  # Windows
    return os.read(handle, size)


class Shard:
    """The sentence pairs of one file, by their places in it.

    files: of the folder.
    name: of the file.
    tokens: of both sides in it.
    types: of the tokens of both sides.
    """

    def __init__(self, files: ShardFiles, name: str, tokens: Sequence[int], types: Sequence[str]) -> None:
        self._files, self._name = files, name
        self._types = [np.dtype(kind) for kind in types]
        sizes = [count * kind.itemsize for count, kind in zip(tokens, self._types, strict=True)]
        self._begins = [0, sizes[0]]  # of the sources, of the targets
        self._index = sum(sizes)

    def entry(self, place: int) -> tuple[int, int, int, int]:
        """Returns where source and target of a sentence pair begin, and where they end."""
        return _ENTRY.unpack(self._files.read(self._name, _ENTRY.size, self._index + place * _ROW))

    def index(self, place: int, count: int) -> Numbers:
        """Returns where the sides of `count` sentence pairs begin, and where the last ones end. # [count + 1, 2]"""
        content = self._files.read(self._name, (count + 1) * _ROW, self._index + place * _ROW)
        return np.frombuffer(content, _INDEX).reshape(-1, 2).astype(np.int64)

    def tokens(self, side: int, begin: int, end: int) -> Numbers:
        """Returns tokens of the sources (side 0) or of the targets (side 1)."""
        kind = self._types[side]
        size, place = (end - begin) * kind.itemsize, self._begins[side] + begin * kind.itemsize
        return np.frombuffer(self._files.read(self._name, size, place), kind)


class Stored:
    """The sentence pairs of one language pair in one split. Nothing of their number is kept in memory.

    runs: (shard, place of the first, number) of sentence pairs that stand in a row.
    entry: `Shard.entry` with a cache.
    """

    def __init__(
        self,
        runs: Sequence[tuple[Shard, int, int]],
        entry: Callable[[Shard, int], tuple[int, int, int, int]] = Shard.entry,
    ) -> None:
        self._runs, self._entry = runs, entry
        self._starts = list(accumulate((count for _, _, count in runs), initial=0))

    def __len__(self) -> int:
        return self._starts[-1]

    def sizes(self, i: int) -> tuple[int, int]:
        """Returns the tokens of source and target of sentence pair i."""
        source, target, source_end, target_end = self._entry(*self._at(i))
        return source_end - source, target_end - target

    def tokens(self, i: int) -> tuple[Numbers, Numbers]:
        shard, place = self._at(i)
        source, target, source_end, target_end = self._entry(shard, place)
        return shard.tokens(0, source, source_end), shard.tokens(1, target, target_end)

    def all_sizes(self) -> Numbers:
        """Returns the tokens of both sides of every sentence pair. # [n, 2]"""
        parts = [np.diff(shard.index(place, count), axis=0) for shard, place, count in self._runs]
        return np.concatenate([np.zeros((0, 2), np.int64), *parts])

    def array(self, side: int) -> tuple[Numbers, Numbers]:
        """Returns (tokens, offsets) of a side, all in memory: sentence i is tokens[offsets[i] : offsets[i + 1]]."""
        tokens = []
        for shard, place, count in self._runs:
            index = shard.index(place, count)[:, side]
            tokens.append(shard.tokens(side, int(index[0]), int(index[-1])))
        offsets = np.concatenate([[0], np.cumsum(self.all_sizes()[:, side])]).astype(np.int64)
        return np.concatenate(tokens), offsets

    def _at(self, i: int) -> tuple[Shard, int]:
        if not 0 <= i < len(self):
            raise IndexError(f"there are {len(self)} sentence pairs, and no pair {i}")
        number = bisect_right(self._starts, i) - 1 if len(self._runs) > 1 else 0
        shard, place, _ = self._runs[number]
        return shard, place + i - self._starts[number]


def stored_pairs(
    files: ShardFiles, shards: Sequence[Mapping[str, Any]], names: Sequence[str], types: Sequence[str]
) -> dict[str, Stored]:
    """Returns every language pair of a split, by name.

    files: of the folder.
    shards: the entries of the split in the manifest.
    names: of the language pairs.
    types: of the tokens of both sides.
    """
    runs: dict[str, list[tuple[Shard, int, int]]] = {name: [] for name in names}
    for facts in shards:
        shard, place = Shard(files, facts["file"], facts["tokens"], types), 0
        for number, count in facts["spans"]:
            if count:
                runs[names[number]].append((shard, place, count))
            place += count
    entry = lru_cache(maxsize=_CACHED)(Shard.entry)
    return {name: Stored(there, entry) for name, there in runs.items()}
