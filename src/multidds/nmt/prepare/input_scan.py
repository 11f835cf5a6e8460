"""The input files of a preparation: one pass over each finds its digest, its lines, and where some of them begin.

So a process can start in the middle of a file, and the text that is encoded is the text that was hashed. What the lines
mean is `corpora`'s.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .text_files import Bytes, Place, is_compressed, opened, readable

_BLOCK = 1 << 20  # bytes read at once
_NEWLINE = ord("\n")
EVERY = 4096  # lines from one mark to the next


@dataclass(frozen=True)
class Input:
    """What one pass over a file has found."""

    digest: str  # SHA-256, as it is on the disk
    lines: int
    marks: tuple[int, ...]  # the bytes where lines 0, EVERY, 2 EVERY, ... begin; of a compressed file only the first

    def place(self, line: int) -> Place:
        """The nearest mark at or before a line, counted from 0."""
        number = min(line // EVERY, len(self.marks) - 1)
        return number * EVERY, self.marks[number]


def scan(path: Path) -> Input:
    """Read a file once; a compressed one twice."""
    with readable(path):
        with path.open("rb") as file:
            if not is_compressed(file):
                return _scanned(file)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        with opened(path) as unpacked:
            return Input(digest, _scanned(unpacked).lines, (0,))


def _scanned(file: Bytes) -> Input:
    hasher, read, lines, last = hashlib.sha256(), 0, 0, b"\n"
    marks = [0]
    while block := file.read(_BLOCK):
        hasher.update(block)
        ends = np.flatnonzero(np.frombuffer(block, np.uint8) == _NEWLINE)
        first = -lines % EVERY or EVERY  # newlines of this block up to the one before the next mark
        marks += (ends[first - 1 :: EVERY] + read + 1).tolist()
        read, lines, last = read + len(block), lines + len(ends), block[-1:]
    return Input(hasher.hexdigest(), lines + (last != b"\n"), tuple(marks))
