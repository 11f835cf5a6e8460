"""Where text comes from: aligned plain files, TSV, JSONL and the TED-58 release, each plain or gzip-compressed.

Yields (line number, source, target) and refuses what is not aligned or not UTF-8, with file and line number.
"""

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from itertools import chain, count, islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from ..common.errors import UserError
from ..config.config import Config, Data, Pair

# The markers of a missing translation in the release of Qi et al. (2018).
TED_MISSING = ("__NULL__", "_ _ NULL _ _")
_BLOCK = 4000  # lines at once: their decoding and encoding cost least by the thousand
_READ = 1 << 18  # bytes at once
_SCAN_BYTES = 1 << 20  # read at once by a scan
_NEWLINE = ord("\n")
MARK_EVERY = 4096  # lines from one mark to the next


def files_of(data: Data, pair: Pair, split: str) -> list[Path]:
    """The files of one split of a language pair: two for aligned text, one for tables."""
    template = getattr(data, split)
    if template is None:
        raise UserError(f"[data] {split} is not set.")
    if data.format == "text":
        if "{lang}" not in template:
            raise UserError(f"[data] {split}: aligned files need '{{lang}}' in their path, but it is {template!r}.")
        return [_filled(data, split, template, pair, lang) for lang in (pair.source, pair.target)]
    return [_filled(data, split, template, pair, "")]


Bytes = BufferedReader | gzip.GzipFile
Place = tuple[int, int]  # a line, counted from 0, and the byte of its file where it begins
_BEGINNING: Place = (0, 0)


def read_pairs(
    data: Data, pair: Pair, split: str, start: int = 0, stop: int | None = None, places: Sequence[Place] = ()
) -> Iterator[tuple[int, str, str]]:
    """(line number, source, target), from 1; the sides as they are in the file, without the line end.

    With `start` and `stop` only those of the lines start + 1 to stop of the files. `places`: a line at or before them
    in each of the files, so that nothing before it has to be read.
    """
    files = files_of(data, pair, split)
    places = places or [_BEGINNING] * len(files)
    if data.format == "text":
        return _aligned_pairs(files, start, stop, places)
    if data.format == "jsonl":
        source, target = (str(data.columns.get(lang, lang)) for lang in (pair.source, pair.target))
        return _jsonl(files[0], source, target, start, stop, places[0])
    return _table(data, files[0], pair, start, stop, places[0])


def read_columns(
    data: Data, pair: Pair, split: str, start: int = 0, stop: int | None = None, places: Sequence[Place] = ()
) -> Iterator[tuple[list[str], list[str]]]:
    """(sources, targets), many at a time: what `read_pairs` reads, stripped."""
    if data.format == "text":
        files = files_of(data, pair, split)
        for _, a, b in _aligned(files, start, stop, places or [_BEGINNING] * len(files)):
            yield list(map(str.strip, a)), list(map(str.strip, b))
        return
    rows = read_pairs(data, pair, split, start, stop, places)
    while block := list(islice(rows, _BLOCK)):
        yield [source.strip() for _, source, _ in block], [target.strip() for _, _, target in block]


def lines_of(path: Path, start: int = 0, stop: int | None = None, place: Place = _BEGINNING) -> Iterator[str]:
    """The lines of a UTF-8 file, split at newlines only, so that line i of two files stay together."""
    return map(_without_end, chain.from_iterable(_blocks(path, start, stop, place)))


def _without_end(line: str) -> str:
    return line.removesuffix("\r")


def _blocks(path: Path, start: int, stop: int | None, place: Place) -> Iterator[list[str]]:
    """Lines without their newlines, many at a time: one by one is slow beside their encoding."""
    number = start
    with readable(path):
        try:
            with opened(path) as file:
                _go_to(file, start, place)
                for block in _texts(file, start, stop):
                    yield block
                    number += len(block)
        except UnicodeDecodeError:  # here, or not far behind the last of these lines
            with opened(path) as file:
                _go_to(file, number, place)
                rest = islice(file, None if stop is None else stop - number)
                while raw := list(islice(rest, _BLOCK)):
                    yield _decoded(path, raw, number)
                    number += len(raw)


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Around what reads a text file: what is wrong with the file, as a sentence."""
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path}: damaged gzip file ({error}).") from None
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file.") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}.") from None


def _texts(file: Bytes, start: int, stop: int | None) -> Iterator[list[str]]:
    """What is next in a file, up to line `stop`; all blocks but the last have the same number of lines."""
    lines: list[str] = []
    encoding = "utf-8" if start else "utf-8-sig"
    left = _BLOCK if stop is None else stop - start
    while left > 0 and (content := file.read(_READ)):
        lines += (content + file.readline()).decode(encoding).removesuffix("\n").split("\n")
        encoding = "utf-8"
        while len(lines) >= _BLOCK and left > 0:
            block, lines = lines[: min(_BLOCK, left)], lines[_BLOCK:]
            yield block
            left -= 0 if stop is None else len(block)
    if lines and left > 0:
        yield lines[:left]


def _go_to(file: Bytes, start: int, place: Place) -> None:
    """To the beginning of a line, from a place at or before it."""
    line, byte = place
    file.seek(byte)
    skipped = start - line
    next(islice(file, skipped, skipped), None)


def _decoded(path: Path, lines: list[bytes], before: int) -> list[str]:
    """Each by itself: slower, but it is known which one is not text."""
    texts = []
    for number, line in enumerate(lines, start=before + 1):
        try:
            texts.append(line.decode("utf-8-sig" if number == 1 else "utf-8").removesuffix("\n"))
        except UnicodeDecodeError as error:
            raise UserError(f"{path}:{number}: not valid UTF-8 (byte {error.start + 1}: {error.reason}).") from None
    return texts


def count_lines(path: Path) -> int:
    """The lines of a file, plain or compressed."""
    with opened(path) as file:
        return sum(1 for _ in file)


def _filled(data: Data, split: str, template: str, pair: Pair, lang: str) -> Path:
    """{source}, {target}, {pair}, {lang} as they say; {many} is the side that is not the language all pairs share."""
    many = pair.target if pair.source == _shared(data.pairs) else pair.source
    values = {"source": pair.source, "target": pair.target, "pair": pair.name, "lang": lang, "many": many}
    try:
        return Path(template.format_map(values))
    except (KeyError, IndexError, ValueError, AttributeError):
        known = ", ".join("{" + key + "}" for key in values)
        raise UserError(f"[data] {split}: {template!r} may hold {known}, and nothing else in braces.") from None


_known: tuple[tuple[Pair, ...], str] = ((), "")  # the pairs that were asked about last


def _shared(pairs: tuple[Pair, ...]) -> str:
    """The language that all pairs have on a side; where there is not one, the first target."""
    global _known
    if _known[0] is not pairs:  # comparing ten thousand for each of them would be slow
        shared = set.intersection(*({pair.source, pair.target} for pair in pairs))
        _known = pairs, pairs[0].target if len(shared) != 1 else shared.pop()
    return _known[1]


@contextmanager
def opened(path: Path) -> Iterator[Bytes]:
    """The bytes of a file, unpacked if it is compressed."""
    with path.open("rb") as file:
        if not is_compressed(file):
            yield file
        else:
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield unpacked


def is_compressed(file: BufferedReader) -> bool:
    return file.peek(2)[:2] == b"\x1f\x8b"


def _aligned(
    files: Sequence[Path], start: int, stop: int | None, places: Sequence[Place]
) -> Iterator[tuple[int, list[str], list[str]]]:
    """(number of the first line, lines of the one file, lines of the other)."""
    number = start + 1
    nothing: list[str] = []
    blocks = [_blocks(path, start, stop, place) for path, place in zip(files, places, strict=True)]
    for a, b in zip_longest(*blocks, fillvalue=nothing):
        both = min(len(a), len(b))
        yield number, a[:both], b[:both]
        if len(a) != len(b):
            short, long = files if len(a) < len(b) else reversed(files)
            raise UserError(f"{short}: has {count_lines(short)} lines, but {long} has more: they are not aligned.")
        number += both


def _aligned_pairs(
    files: Sequence[Path], start: int, stop: int | None, places: Sequence[Place]
) -> Iterator[tuple[int, str, str]]:
    for number, a, b in _aligned(files, start, stop, places):
        yield from zip(count(number), map(_without_end, a), map(_without_end, b), strict=False)


def _jsonl(
    path: Path, source: str, target: str, start: int, stop: int | None, place: Place
) -> Iterator[tuple[int, str, str]]:
    for number, line in enumerate(lines_of(path, start, stop, place), start=start + 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}:{number}: not valid JSON ({error}).") from None
        sides = [_reached(record, key) for key in (source, target)]
        for key, side in zip((source, target), sides, strict=True):
            if not isinstance(side, str):
                raise UserError(
                    f"{path}:{number}: there is no text at {key!r}; [data] columns says where each language is."
                )
        yield number, sides[0].replace("\n", " "), sides[1].replace("\n", " ")


def _reached(record: Any, dotted: str) -> Any:
    """record["translation"]["az"] for "translation.az"; a key with dots in it is tried first."""
    if isinstance(record, dict) and dotted in record:
        return record[dotted]
    for key in dotted.split("."):
        record = record.get(key) if isinstance(record, dict) else None
    return record


def _table(
    data: Data, path: Path, pair: Pair, start: int, stop: int | None, place: Place
) -> Iterator[tuple[int, str, str]]:
    """Tab-separated columns, never quoted. In the TED release rows without one of the two languages are left out."""
    header: list[str] = []
    if data.header or data.format == "ted":
        header = next(lines_of(path, stop=1), "").split("\t")
        start = max(start, 1)
    places = [
        _column(path, header, data.columns.get(lang, lang if header else default), lang)
        for default, lang in enumerate((pair.source, pair.target))
    ]
    for number, line in enumerate(lines_of(path, start, stop, place), start=start + 1):
        cells = line.split("\t")
        if header and len(cells) != len(header):
            raise UserError(f"{path}:{number}: has {len(cells)} columns, but the header has {len(header)}.")
        if max(places) >= len(cells):
            raise UserError(f"{path}:{number}: has {len(cells)} columns, but column {max(places) + 1} is needed.")
        source, target = (cells[place] for place in places)
        if data.format == "ted" and any(mark in side for mark in TED_MISSING for side in (source, target)):
            continue
        if data.format == "ted" and not (source.strip() and target.strip()):
            continue
        yield number, source, target


def _column(path: Path, header: list[str], column: str | int, lang: str) -> int:
    if isinstance(column, int):
        if column < 0 or (header and column >= len(header)):
            raise UserError(f"{path}: there is no column {column} for {lang!r}; columns are counted from 0.")
        return column
    if column not in header:
        found = f"the header has {', '.join(map(repr, header[:20]))}" if header else "there is no header"
        raise UserError(f"{path}:1: there is no column {column!r} for {lang!r}; {found}. Set [data] columns.")
    return header.index(column)


@dataclass(frozen=True)
class Input:
    """What one pass over a file has found."""

    digest: str  # SHA-256, as it is on the disk
    lines: int
    marks: tuple[int, ...]  # byte of every MARK_EVERY-th line; of a compressed file only 0

    def place(self, line: int) -> Place:
        """The nearest mark at or before a line, counted from 0."""
        number = min(line // MARK_EVERY, len(self.marks) - 1)
        return number * MARK_EVERY, self.marks[number]


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
    while block := file.read(_SCAN_BYTES):
        hasher.update(block)
        ends = np.flatnonzero(np.frombuffer(block, np.uint8) == _NEWLINE)
        first = -lines % MARK_EVERY or MARK_EVERY  # newlines of this block up to the one before the next mark
        marks += (ends[first - 1 :: MARK_EVERY] + read + 1).tolist()
        read, lines, last = read + len(block), lines + len(ends), block[-1:]
    return Input(hasher.hexdigest(), lines + (last != b"\n"), tuple(marks))


def scan_inputs(config: Config) -> dict[str, Input]:
    """Scans every text file of a config, by its path."""
    splits = ["train", "dev", *(["test"] if config.data.test else [])]
    paths = {str(path) for split in splits for pair in config.data.pairs for path in files_of(config.data, pair, split)}
    return {path: scan(Path(path)) for path in sorted(paths)}
