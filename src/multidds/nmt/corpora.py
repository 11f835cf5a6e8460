"""Where text comes from: aligned plain files, TSV, JSONL and the TED-58 release, each plain or gzip-compressed.

Yields (line number, source, target) and refuses what is not aligned or not UTF-8, with file and line number.
"""

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, count, islice, zip_longest
from pathlib import Path
from typing import Any

from .config import Data, Pair
from .errors import UserError

# The markers of a missing translation in the release of Qi et al. (2018).
TED_MISSING = ("__NULL__", "_ _ NULL _ _")
_BLOCK = 1000  # lines decoded at once


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


def read_pairs(
    data: Data, pair: Pair, split: str, start: int = 0, stop: int | None = None
) -> Iterator[tuple[int, str, str]]:
    """(line number, source, target), from 1; the sides as they are in the file, without the line end.

    With `start` and `stop` only those of the lines start + 1 to stop of the files.
    """
    files = files_of(data, pair, split)
    if data.format == "text":
        return _aligned(files[0], files[1], start, stop)
    if data.format == "jsonl":
        source, target = (str(data.columns.get(lang, lang)) for lang in (pair.source, pair.target))
        return _jsonl(files[0], source, target, start, stop)
    return _table(data, files[0], pair, start, stop)


def lines_of(path: Path, start: int = 0, stop: int | None = None) -> Iterator[str]:
    """The lines of a UTF-8 file, split at newlines only, so that line i of two files stay together."""
    return chain.from_iterable(_blocks(path, start, stop))


def _blocks(path: Path, start: int, stop: int | None) -> Iterator[list[str]]:
    """Lines, many at a time: decoding them one by one is slow beside their encoding."""
    try:
        with _opened(path) as file:
            lines, number = islice(file, start, stop), start
            while block := list(islice(lines, _BLOCK)):
                yield _decoded(path, block, number)
                number += len(block)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path}: damaged gzip file ({error}).") from None
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file.") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}.") from None


def _decoded(path: Path, lines: list[bytes], before: int) -> list[str]:
    text = b"".join(lines)
    try:
        return _split(text.decode("utf-8-sig" if before == 0 else "utf-8"))
    except UnicodeDecodeError as error:
        number = text.count(b"\n", 0, error.start)
        start = error.start - sum(map(len, lines[:number]))
        raise UserError(f"{path}:{before + number + 1}: not valid UTF-8 (byte {start + 1}: {error.reason}).") from None


def _split(text: str) -> list[str]:
    return text.removesuffix("\n").replace("\r\n", "\n").removesuffix("\r").split("\n")


def count_lines(path: Path) -> int:
    """The lines of a file, plain or compressed."""
    with _opened(path) as file:
        return sum(1 for _ in file)


def _filled(data: Data, split: str, template: str, pair: Pair, lang: str) -> Path:
    """{source}, {target}, {pair}, {lang} as they say; {many} is the side that is not the language all pairs share."""
    shared = set.intersection(*({p.source, p.target} for p in data.pairs))
    shared_one = data.pairs[0].target if len(shared) != 1 else shared.pop()
    many = pair.target if pair.source == shared_one else pair.source
    values = {"source": pair.source, "target": pair.target, "pair": pair.name, "lang": lang, "many": many}
    try:
        return Path(template.format_map(values))
    except (KeyError, IndexError, ValueError, AttributeError):
        known = ", ".join("{" + key + "}" for key in values)
        raise UserError(f"[data] {split}: {template!r} may hold {known}, and nothing else in braces.") from None


@contextmanager
def _opened(path: Path) -> Iterator[Iterable[bytes]]:
    with path.open("rb") as file:
        if file.peek(2)[:2] != b"\x1f\x8b":
            yield file
        else:
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield unpacked


def _aligned(source: Path, target: Path, start: int, stop: int | None) -> Iterator[tuple[int, str, str]]:
    number = start + 1
    nothing: list[str] = []
    for a, b in zip_longest(_blocks(source, start, stop), _blocks(target, start, stop), fillvalue=nothing):
        yield from zip(count(number), a, b, strict=False)
        if len(a) != len(b):
            short, long = (source, target) if len(a) < len(b) else (target, source)
            raise UserError(f"{short}: has {count_lines(short)} lines, but {long} has more: they are not aligned.")
        number += len(a)


def _jsonl(path: Path, source: str, target: str, start: int, stop: int | None) -> Iterator[tuple[int, str, str]]:
    for number, line in enumerate(lines_of(path, start, stop), start=start + 1):
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


def _table(data: Data, path: Path, pair: Pair, start: int, stop: int | None) -> Iterator[tuple[int, str, str]]:
    """Tab-separated columns, never quoted. In the TED release rows without one of the two languages are left out."""
    header: list[str] = []
    if data.header or data.format == "ted":
        header = next(lines_of(path, stop=1), "").split("\t")
        start = max(start, 1)
    places = [
        _column(path, header, data.columns.get(lang, lang if header else default), lang)
        for default, lang in enumerate((pair.source, pair.target))
    ]
    for number, line in enumerate(lines_of(path, start, stop), start=start + 1):
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
