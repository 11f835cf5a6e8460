"""Text in aligned plain files, TSV, JSONL and the TED-58 release, each plain or compressed by gzip.

Lines are split at newlines only, so that line i of two files stay together. Text that is not aligned or not UTF-8 is
refused, with file and line number. One scan of a file finds its digest, its lines and where some of them begin, so that
a process can start in the middle of it.
"""

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, cast

import numpy as np

from multidds._base import files
from multidds._base.errors import UserError

from ..config.config import Config, Data, Pair

# The markers of a missing translation in the release of Qi et al. (2018).
TED_MISSING = ("__NULL__", "_ _ NULL _ _")
MARK_EVERY = 4096  # lines from one mark of a scan to the next
_HALF_PAIR = re.compile("[\ud800-\udfff]")  # a surrogate without the other one: no UTF-8 can have it
_BLOCK = 4000  # lines decoded or encoded at once
_SCAN_BYTES = 1 << 20  # bytes read at once by a scan
_NEWLINE = ord("\n")

Place = tuple[int, int]  # a line, counted from 0, and the byte of its file where it begins
_BEGINNING: Place = (0, 0)


def files_of(data: Data, pair: Pair, split: str) -> list[Path]:
    """Returns the files of one split of a language pair: two for aligned text, one for tables."""
    template = getattr(data, split)
    if template is None:
        raise UserError(f"[data] {split} is not set.")
    if data.format != "text":
        return [_filled(data, split, template, pair, "")]
    if "{lang}" not in template:
        raise UserError(f"[data] {split}: aligned files need '{{lang}}' in their path, but it is {template!r}.")
    return [_filled(data, split, template, pair, lang) for lang in (pair.source, pair.target)]


def _filled(data: Data, split: str, template: str, pair: Pair, lang: str) -> Path:
    """Fills in a template. {many} is the side of the pair that is not the language that all pairs share."""
    many = pair.target if pair.source == data.shared_language else pair.source
    values = {"source": pair.source, "target": pair.target, "pair": pair.name, "lang": lang, "many": many}
    try:
        return Path(template.format_map(values))
    except (KeyError, IndexError, ValueError, AttributeError):
        known = ", ".join("{" + key + "}" for key in values)
        raise UserError(f"[data] {split}: {template!r} may hold {known}, and nothing else in braces.") from None


def read_pairs(
    data: Data, pair: Pair, split: str, start: int = 0, stop: int | None = None, places: Sequence[Place] = ()
) -> Iterator[tuple[str, str]]:
    """Yields (source, target) as they are in the file, without the line end.

    data: the formats and places of the text.
    pair: the language pair.
    split: "train", "dev" or "test".
    start: lines of the files to leave out; by default none.
    stop: the line to stop before, counted from 0; by default none.
    places: a place at or before the start in each of the files, so that reading begins there.
    """
    paths = files_of(data, pair, split)
    places = places or [_BEGINNING] * len(paths)
    if data.format == "text":
        return _aligned(paths, start, stop, places)
    if data.format == "jsonl":
        return _jsonl(data, paths[0], pair, start, stop, places[0])
    return _table(data, paths[0], pair, start, stop, places[0])


def read_columns(
    data: Data, pair: Pair, split: str, start: int = 0, stop: int | None = None, places: Sequence[Place] = ()
) -> Iterator[tuple[list[str], list[str]]]:
    """Yields (sources, targets), stripped, many at a time. The arguments are those of `read_pairs`."""
    rows = read_pairs(data, pair, split, start, stop, places)
    while block := list(islice(rows, _BLOCK)):
        yield [source.strip() for source, _ in block], [target.strip() for _, target in block]


# ---------------------------------------------------------------------------------------------- lines of a file


def lines_of(path: Path, start: int = 0, stop: int | None = None, place: Place = _BEGINNING) -> Iterator[str]:
    """Yields the lines of a UTF-8 file. The arguments are those of `read_pairs`, for one file."""
    line, byte = place
    number = start
    with _opened(path) as file:
        file.seek(byte)
        lines = islice(file, start - line, None if stop is None else stop - line)
        while raw := list(islice(lines, _BLOCK)):  # decoding many at once is fast
            yield from _decoded(path, raw, number)
            number += len(raw)


@contextmanager
def _opened(path: Path) -> Iterator[BufferedReader]:
    """Opens a file for its bytes, unpacked if it is compressed."""
    try:
        with files.readable(path), path.open("rb") as file:
            if not _is_compressed(file):
                yield file
            else:
                with gzip.GzipFile(fileobj=file) as unpacked:
                    yield BufferedReader(cast(Any, unpacked))
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path}: damaged gzip file ({error}).") from None


def _is_compressed(file: BufferedReader) -> bool:
    return file.peek(2)[:2] == b"\x1f\x8b"


def _decoded(path: Path, raw: list[bytes], before: int) -> list[str]:
    """Decodes lines. before: the number of lines before them, for the byte order mark and the error."""
    try:
        encoding = "utf-8" if before else "utf-8-sig"
        return b"".join(raw).replace(b"\r\n", b"\n").decode(encoding).removesuffix("\n").split("\n")
    except UnicodeDecodeError:
        for number, line in enumerate(raw, start=before + 1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                place = f"byte {error.start + 1}: {error.reason}"
                raise UserError(f"{path}:{number}: not valid UTF-8 ({place}).") from None
        raise


# ---------------------------------------------------------------------------------------------- formats


def _aligned(paths: Sequence[Path], start: int, stop: int | None, places: Sequence[Place]) -> Iterator[tuple[str, str]]:
    sides = [lines_of(path, start, stop, place) for path, place in zip(paths, places, strict=True)]
    for source, target in zip_longest(*sides):
        if source is None or target is None:
            short, long = paths if source is None else reversed(paths)
            lines = sum(1 for _ in lines_of(short))
            raise UserError(f"{short}: has {lines} lines, but {long} has more: they are not aligned.")
        yield source, target


def _jsonl(data: Data, path: Path, pair: Pair, start: int, stop: int | None, place: Place) -> Iterator[tuple[str, str]]:
    keys = [str(data.columns.get(lang, lang)) for lang in (pair.source, pair.target)]
    for number, line in enumerate(lines_of(path, start, stop, place), start=start + 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}:{number}: not valid JSON ({error}).") from None
        sides = [_value_at(record, key) for key in keys]
        for key, side in zip(keys, sides, strict=True):
            if not isinstance(side, str):
                raise UserError(
                    f"{path}:{number}: there is no text at {key!r}; [data] columns says where each language is."
                )
            if "\\u" in line and (half := _HALF_PAIR.search(side)):
                raise UserError(f"{path}:{number}: {half[0]!r} at {key!r} is half a character. Remove or replace it.")
        yield sides[0].replace("\n", " "), sides[1].replace("\n", " ")


def _value_at(record: Any, dotted: str) -> Any:
    """Returns record["translation"]["az"] for "translation.az"; a key with dots in it is tried first."""
    if isinstance(record, dict) and dotted in record:
        return record[dotted]
    for key in dotted.split("."):
        record = record.get(key) if isinstance(record, dict) else None
    return record


def _table(data: Data, path: Path, pair: Pair, start: int, stop: int | None, place: Place) -> Iterator[tuple[str, str]]:
    """Yields rows of tab-separated columns, never quoted; of the TED release only those with both languages."""
    header: list[str] = []
    if data.header or data.format == "ted":
        header = next(lines_of(path, stop=1), "").split("\t")
        start = max(start, 1)
    columns = [
        _column(path, header, data.columns.get(lang, lang if header else default), lang)
        for default, lang in enumerate((pair.source, pair.target))
    ]
    for number, line in enumerate(lines_of(path, start, stop, place), start=start + 1):
        cells = line.split("\t")
        if header and len(cells) != len(header):
            raise UserError(f"{path}:{number}: has {len(cells)} columns, but the header has {len(header)}.")
        if max(columns) >= len(cells):
            raise UserError(f"{path}:{number}: has {len(cells)} columns, but column {max(columns) + 1} is needed.")
        sides = [cells[column] for column in columns]
        if data.format != "ted" or not any(_is_missing(side) for side in sides):
            yield sides[0], sides[1]


def _is_missing(cell: str) -> bool:
    return not cell.strip() or any(mark in cell for mark in TED_MISSING)


def _column(path: Path, header: list[str], column: str | int, lang: str) -> int:
    if isinstance(column, int):
        if column < 0 or (header and column >= len(header)):
            raise UserError(f"{path}: there is no column {column} for {lang!r}; columns are counted from 0.")
        return column
    if column not in header:
        there = f"the header has {', '.join(map(repr, header[:20]))}" if header else "there is no header"
        raise UserError(f"{path}:1: there is no column {column!r} for {lang!r}; {there}. Set [data] columns.")
    return header.index(column)


# ---------------------------------------------------------------------------------------------- scans


@dataclass(frozen=True)
class Input:
    """The findings of one scan of a file."""

    digest: str  # SHA-256 of the bytes on the disk
    lines: int
    marks: tuple[int, ...]  # byte of every MARK_EVERY-th line; of a compressed file only 0

    def place(self, line: int) -> Place:
        """Returns the nearest mark at or before a line, counted from 0."""
        number = min(line // MARK_EVERY, len(self.marks) - 1)
        return number * MARK_EVERY, self.marks[number]


def scan(path: Path) -> Input:
    """Reads a file once; a compressed one twice."""
    with files.readable(path), path.open("rb") as raw:
        compressed = _is_compressed(raw)
        digest = hashlib.file_digest(raw, "sha256").hexdigest() if compressed else ""
    with _opened(path) as file:
        found = _scanned(file)
    return Input(digest, found.lines, (0,)) if compressed else found


def _scanned(file: BufferedReader) -> Input:
    hasher = hashlib.sha256()
    marks, read, lines, last = [0], 0, 0, b"\n"
    while block := file.read(_SCAN_BYTES):
        hasher.update(block)
        ends = np.flatnonzero(np.frombuffer(block, np.uint8) == _NEWLINE)
        first = -lines % MARK_EVERY or MARK_EVERY  # newlines of this block up to the one before the next mark
        marks += (ends[first - 1 :: MARK_EVERY] + read + 1).tolist()
        read, lines, last = read + len(block), lines + len(ends), block[-1:]
    return Input(hasher.hexdigest(), lines + (last != b"\n"), tuple(marks))


def scan_inputs(config: Config) -> dict[str, Input]:
    """Scans every text file of a config; the result is by path."""
    splits = ["train", "dev", *(["test"] if config.data.test else [])]
    paths = {str(path) for split in splits for pair in config.data.pairs for path in files_of(config.data, pair, split)}
    return {path: scan(Path(path)) for path in sorted(paths)}
