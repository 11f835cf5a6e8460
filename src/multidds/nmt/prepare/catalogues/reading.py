"""From wheels to pairs of sentences: finds the catalogues in a wheel and reads gettext and JSON.

Everything happens in memory; nothing of a wheel is unpacked, run or evaluated. Wheels are not trusted: what one may
cost is limited, and a broken catalogue is left out.
"""

import contextlib
import json
import re
import struct
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from ...common.errors import UserError
from .cleaning import Pair
from .languages import FIRST_ONE_LAST_MANY, language_of
from .packages import Package, Say

# What one wheel may cost in memory, whatever it says about itself.
MAX_MEMBER, MAX_TOTAL = 16 * 2**20, 512 * 2**20  # bytes


@dataclass
class Reading:
    """What was found of one language."""

    pairs: list[Pair] = field(default_factory=list)
    catalogues: int = 0
    unfinished: int = 0  # entries marked fuzzy or obsolete


def read_all(
    wheels: Sequence[tuple[Package, Path]], languages: Sequence[str], say: Say
) -> tuple[dict[str, Reading], list[str], set[str]]:
    """Per language what there is, the catalogues that could not be read, and the languages that have any."""
    found: dict[str, Reading] = {language: Reading() for language in languages}
    skipped: list[str] = []
    there: set[str] = set()
    for number, (package, path) in enumerate(wheels):
        with _opened(path) as wheel:
            read = _gettext if package.kind == "gettext" else _json
            by_language = catalogues_of(wheel.members, package.kind)
            there |= by_language.keys()
            for i, language in enumerate(languages):
                say(f"reading {package.name}: {language}", number * len(languages) + i, len(wheels) * len(languages))
                for catalogue in by_language.get(language, []):
                    try:
                        pairs, unfinished = read(wheel, catalogue, language)
                    except _UnreadableError as error:
                        skipped.append(f"{path.name}: {catalogue}: {error}")
                        continue
                    found[language].pairs += pairs
                    found[language].catalogues += 1
                    found[language].unfinished += unfinished
    return found, skipped, there


def all_found(languages: Sequence[str], found: Mapping[str, Reading], there: Iterable[str]) -> None:
    if missing := [language for language in languages if not found[language].pairs]:
        raise UserError(
            f"--languages: the packages have no translations into {missing[0]!r}; "
            f"they have {', '.join(sorted(there)) or 'none at all'}."
        )


def catalogues_of(names: Iterable[str], kind: str) -> dict[str, list[str]]:
    """Language -> the members of a wheel with its translations; of a .po and its .mo the .po."""
    suffixes = (".po", ".mo") if kind == "gettext" else (".json",)
    members = {name for name in names if name.endswith(suffixes)}
    found = defaultdict(list)
    for name in sorted(members):
        path = PurePosixPath(name)
        if kind == "gettext":
            beside = path.suffix == ".mo" and str(path.with_suffix(".po")) in members
            if path.parent.name != "LC_MESSAGES" or beside:
                continue
            language = language_of(path.parent.parent.name)
        else:
            if path.parent.name != "translations" or _english_beside(path) not in members:
                continue
            language = language_of(path.stem.rpartition(".")[2])
        if language:
            found[language].append(name)
    return dict(found)


def _english_beside(path: PurePosixPath) -> str:
    """translations/sensor.en.json for translations/sensor.cs.json."""
    prefix, dot, _ = path.stem.rpartition(".")
    return str(path.with_name(f"{prefix}{dot}en.json"))


class _UnreadableError(Exception):
    """A catalogue that is broken: it is left out, and listed in the manifest."""


class _Wheel:
    """The members of a wheel, in memory. Sizes are checked as they are read, not as the archive declares them."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path, self._archive, self._read = path, archive, 0
        self.members: dict[str, zipfile.ZipInfo] = {}
        self.english: dict[str, Any] = {}  # JSON that every language is compared with, parsed once
        for info in archive.infolist():
            name = PurePosixPath(info.filename)
            if name.is_absolute() or ".." in name.parts or "\\" in info.filename or ":" in info.filename:
                raise UserError(
                    f"{path}: holds {info.filename!r}, a path that leads out of it; do not trust this wheel."
                )
            if info.flag_bits & 1:
                raise UserError(f"{path}: {info.filename!r} is encrypted, which no wheel is.")
            self.members[info.filename] = info

    def read(self, name: str) -> bytes:
        info = self.members[name]
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise UserError(f"{self.path}: {name!r} is packed in a way that no wheel uses.")
        if info.file_size > MAX_MEMBER:
            raise UserError(f"{self.path}: {name!r} is larger than {MAX_MEMBER:,} bytes, too large for a catalogue.")
        with self._archive.open(info) as file:
            data = file.read(info.file_size + 1)  # with a number: unpacks no more than that
        self._read += len(data)
        if self._read > MAX_TOTAL:
            raise UserError(f"{self.path}: its catalogues are larger than {MAX_TOTAL:,} bytes together.")
        return data


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[_Wheel]:
    try:
        with zipfile.ZipFile(path) as archive:
            yield _Wheel(path, archive)
    except (zipfile.BadZipFile, zlib.error, EOFError, struct.error, NotImplementedError, ValueError) as error:
        raise UserError(f"{path}: damaged wheel ({error}); remove it to download it again.") from None


def _json(wheel: _Wheel, name: str, language: str) -> tuple[list[Pair], int]:
    beside = _english_beside(PurePosixPath(name))
    if beside not in wheel.english:
        wheel.english[beside] = _parsed_json(wheel.read(beside))
    pairs, open_ = [], [(wheel.english[beside], _parsed_json(wheel.read(name)))]
    while open_:  # side by side and without recursion: depth costs nothing
        a, b = open_.pop()
        if isinstance(a, dict) and isinstance(b, dict):
            open_ += [(a[key], b[key]) for key in a if key in b]
        elif isinstance(a, str) and isinstance(b, str) and a.strip() and b.strip():
            pairs.append((a, b))
    return pairs, 0


def _parsed_json(data: bytes) -> Any:
    try:
        return json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        raise _UnreadableError("not valid JSON") from None


def _gettext(wheel: _Wheel, name: str, language: str) -> tuple[list[Pair], int]:
    """Plural rules are code; they are not looked at: forms are used where their number alone says which is which."""
    data = wheel.read(name)
    entries, unfinished = _po_entries(data) if name.endswith(".po") else (_mo_entries(data), 0)
    pairs: list[Pair] = []
    for one, many, forms in entries:
        if not many:
            pairs.append((one, forms[0]))
        elif len(forms) == 1:
            pairs.append((many, forms[0]))
        elif len(forms) == 2 or language in FIRST_ONE_LAST_MANY:
            pairs += [(one, forms[0]), (many, forms[-1])]
    return [(a, b) for a, b in pairs if a.strip() and b.strip()], unfinished


_Entry = tuple[str, str, list[str]]  # English, its plural or "", translations


def _po_entries(data: bytes) -> tuple[list[_Entry], int]:
    import polib

    try:
        # polib splits lines where Python does, which is more often than gettext does.
        text = re.sub("[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]", " ", data.decode("utf-8-sig"))
        # polib opens a file if the text is the name of one: the first line sees to it that it is not.
        catalogue = polib.pofile("# multidds\n" + text, encoding="utf-8")
    except UnicodeDecodeError:
        raise _UnreadableError("not UTF-8") from None
    except Exception:  # whatever a parser does with what it was not made for
        raise _UnreadableError("not a valid .po file") from None
    finished = [entry for entry in catalogue if not (entry.obsolete or "fuzzy" in entry.flags)]
    entries = [
        (entry.msgid, entry.msgid_plural or "", [form for _, form in sorted(entry.msgstr_plural.items())])
        if entry.msgid_plural
        else (entry.msgid, "", [entry.msgstr])
        for entry in finished
    ]
    return [entry for entry in entries if entry[2]], len(catalogue) - len(finished)


def _mo_entries(data: bytes) -> list[_Entry]:
    """Not by polib: it opens files that the data names, and strings that overlap could fill the memory."""
    try:
        order = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}[data[:4]]
        _, count, *tables = struct.unpack_from(f"{order}4I", data, 4)
        if count > len(data) // 16:
            raise _UnreadableError("not a valid .mo file")
        sides = []
        for table in tables:
            places = list(struct.iter_unpack(f"{order}2I", data[table : table + 8 * count]))
            inside = all(length + start <= len(data) for length, start in places)
            if len(places) != count or not inside or sum(length for length, _ in places) > len(data):
                raise _UnreadableError("not a valid .mo file")
            sides.append([data[start : start + length].decode() for length, start in places])
    except (KeyError, struct.error):
        raise _UnreadableError("not a valid .mo file") from None
    except UnicodeDecodeError:
        raise _UnreadableError("not UTF-8") from None
    entries = []
    for key, value in zip(*sides, strict=True):
        one, _, many = key.rpartition("\x04")[2].partition("\0")  # a context ends at \x04
        entries.append((one, many, value.split("\0")))
    return [entry for entry in entries if entry[0]]  # the header has no message
