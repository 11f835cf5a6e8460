"""The lines of each shard. They depend on the text alone, not on the processes that encode it.

The lines of all language pairs of a split stand in a row, in the order of the pairs, and are cut into shards of equal
numbers of lines. So ten thousand small pairs are a few files, and one large pair is many.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..config.config import Config, Pair
from .text_files import Input, Place, files_of

SMALLEST, LARGEST = 1 << 13, 1 << 17  # lines of a shard: enough work for a process; little is lost by a fault
SHARDS = 64  # wanted in a split: enough for all processes, and all can be open at once


@dataclass(frozen=True)
class Span:
    """Lines start + 1 to stop of a language pair, and where to begin reading its files."""

    pair: Pair
    start: int
    stop: int
    places: tuple[Place, ...] = ()


@dataclass(frozen=True)
class Shard:
    """One file of the training or dev sets: spans of one or more language pairs."""

    split: str
    number: int
    spans: tuple[Span, ...]

    @property
    def name(self) -> str:
        return f"{self.split}-{self.number:05}"

    @property
    def file(self) -> str:
        return f"{self.name}.bin"


def lines_per_shard(lines: int) -> int:
    """Returns the lines of a shard of a split with so many lines."""
    return min(LARGEST, max(SMALLEST, -(-lines // SHARDS)))


def cut(lines: Sequence[int], size: int) -> Iterator[list[tuple[int, int, int]]]:
    """Yields the parts of each shard: (number of the pair, start, stop).

    lines: of each pair.
    size: lines of a shard.
    """
    shard: list[tuple[int, int, int]] = []
    room = size
    for number, there in enumerate(lines):
        start = 0
        while start < there:
            stop = min(there, start + room)
            shard.append((number, start, stop))
            room -= stop - start
            start = stop
            if room == 0:
                yield shard
                shard, room = [], size
    if shard:
        yield shard


def shards_of(config: Config, inputs: Mapping[str, Input]) -> list[Shard]:
    """Returns the shards of the training sets and of the dev sets. inputs: the scans of their files, by path."""
    shards = []
    for split in ("train", "dev"):
        files = [[inputs[str(path)] for path in files_of(config.data, pair, split)] for pair in config.data.pairs]
        lines = [max(file.lines for file in sides) for sides in files]
        for number, parts in enumerate(cut(lines, lines_per_shard(sum(lines)))):
            spans = (
                Span(config.data.pairs[i], start, stop, tuple(file.place(start) for file in files[i]))
                for i, start, stop in parts
            )
            shards.append(Shard(split, number, tuple(spans)))
    return shards
