"""Pairs of sentences from the gettext and JSON catalogues of wheels, with their languages.

Everything happens in memory. Nothing of a wheel is unpacked, run or evaluated. A broken catalogue is left out.
"""

import contextlib
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import polib
from packages import Package
from pairs import Pair

from multidds._base.errors import UserError

MAX_MEMBER = 16 * 2**20  # bytes of a catalogue
MAX_TOTAL = 512 * 2**20  # bytes of all catalogues of a wheel

_BY_SCRIPT = {  # {script: {ISO 639-3 code: the code in catalogues}}
    "ARABIC": {"fas": "fa"},
    "CYRILLIC": {"bel": "be", "bul": "bg", "mkd": "mk", "rus": "ru"},
    "GREEK": {"ell": "el"},
    "HANGUL": {"kor": "ko"},
    "LATIN": {"aze": "az", "ces": "cs", "fra": "fr", "glg": "gl", "hrv": "hr", "por": "pt", "slk": "sk", "tur": "tr"},
    "THAANA": {"div": "dv"},
}
SCRIPTS = {language: script for script, codes in _BY_SCRIPT.items() for language in codes}
_LANGUAGES = {code: language for codes in _BY_SCRIPT.values() for language, code in codes.items()}
# Slavic plurals: whatever the number of forms, the first is that of 1 and the last that of many.
_FIRST_ONE_LAST_MANY = {"bel", "ces", "hrv", "rus", "slk"}


def language_of(code: str) -> str | None:
    """Returns the language of a catalogue's code (pt_BR: por); None if it is unknown or in an unusual script."""
    base, *tags = code.replace("_", "-").lower().split("-")
    unusual = any(len(tag) == 4 and tag.isalpha() for tag in tags)  # az_Latn
    return None if unusual else _LANGUAGES.get(base)


def read_all(
    wheels: Sequence[tuple[Package, Path]], languages: Sequence[str]
) -> tuple[dict[str, list[Pair]], list[str]]:
    """Returns the pairs of each language, and the catalogues that could not be read."""
    pairs: dict[str, list[Pair]] = {language: [] for language in languages}
    skipped = []
    for package, path in wheels:
        with _opened(path) as wheel:
            english = cache(lambda name, wheel=wheel: _parsed_json(wheel.read(name)))
            for name, language in catalogues_of(wheel.names, package.kind).items():
                if language not in pairs:
                    continue
                try:
                    if package.kind == "json":
                        pairs[language] += _json_pairs(english(_english_beside(name)), wheel.read(name))
                    else:
                        pairs[language] += _gettext_pairs(name, wheel.read(name), language)
                except _UnreadableError as error:
                    skipped.append(f"{path.name}: {name}: {error}")
    if missing := [language for language in languages if not pairs[language]]:
        raise UserError(f"--languages: the packages have no translations into {missing[0]!r}. Leave it out.")
    return pairs, skipped


class _Wheel:
    """The members of a wheel, in memory. Sizes are checked as members are read, not as the archive declares them."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self._path = path
        self._archive = archive
        self._bytes_read = 0
        self.names = archive.namelist()
        for member in archive.infolist():
            name, parts = member.filename, PurePosixPath(member.filename)
            if parts.is_absolute() or ".." in parts.parts or "\\" in name or ":" in name:
                raise UserError(f"{path}: holds {name!r}, a path that leads out of it. Do not trust this wheel.")
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others unpack without a limit
                raise UserError(f"{path}: {name!r} is not compressed as in a wheel. Do not trust this wheel.")

    def read(self, name: str) -> bytes:
        size = self._archive.getinfo(name).file_size
        if size > MAX_MEMBER:
            raise UserError(f"{self._path}: {name!r} is larger than {MAX_MEMBER:,} bytes, too large for a catalogue.")
        with self._archive.open(name) as file:
            data = file.read(size + 1)  # with a number: unpacks no more than that
        self._bytes_read += len(data)
        if self._bytes_read > MAX_TOTAL:
            raise UserError(f"{self._path}: its catalogues are larger than {MAX_TOTAL:,} bytes together.")
        return data


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[_Wheel]:
    try:
        with zipfile.ZipFile(path) as archive:
            yield _Wheel(path, archive)
    except (zipfile.BadZipFile, zlib.error, EOFError, struct.error, RuntimeError, ValueError) as error:
        raise UserError(f"{path}: damaged wheel ({error}). Remove it to download it again.") from None


def catalogues_of(names: Iterable[str], kind: str) -> dict[str, str]:
    """Returns the files of a wheel with translations and their languages; of a .po and its .mo the .po."""
    suffixes = (".po", ".mo") if kind == "gettext" else (".json",)
    files = {name for name in names if name.endswith(suffixes)}
    found = {}
    for name in sorted(files):
        path = PurePosixPath(name)
        if kind == "gettext":
            beside = path.suffix == ".mo" and str(path.with_suffix(".po")) in files
            fits, code = path.parent.name == "LC_MESSAGES" and not beside, path.parent.parent.name
        else:
            fits = path.parent.name == "translations" and _english_beside(name) in files
            code = path.stem.rpartition(".")[2]
        if fits and (language := language_of(code)):
            found[name] = language
    return found


def _english_beside(name: str) -> str:
    """Returns translations/sensor.en.json for translations/sensor.cs.json."""
    path = PurePosixPath(name)
    prefix, dot, _ = path.stem.rpartition(".")
    return str(path.with_name(f"{prefix}{dot}en.json"))


class _UnreadableError(Exception):
    """A broken catalogue: it is left out, and listed in the manifest."""


def _json_pairs(english: Any, data: bytes) -> list[Pair]:
    pairs, nodes = [], [(english, _parsed_json(data))]
    while nodes:  # side by side and without recursion: depth costs nothing
        a, b = nodes.pop()
        if isinstance(a, dict) and isinstance(b, dict):
            nodes += [(a[key], b[key]) for key in a if key in b]
        elif isinstance(a, str) and isinstance(b, str) and a.strip() and b.strip():
            pairs.append((a, b))
    return pairs


def _parsed_json(data: bytes) -> Any:
    try:
        return json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        raise _UnreadableError("not valid JSON") from None


def _gettext_pairs(name: str, data: bytes, language: str) -> list[Pair]:
    """Returns pairs. Plural rules are code and ignored: only forms that need none are used."""
    pairs: list[Pair] = []
    for one, many, forms in _po_entries(data) if name.endswith(".po") else _mo_entries(data):
        if not many:
            pairs.append((one, forms[0]))
        elif len(forms) == 1:
            pairs.append((many, forms[0]))
        elif len(forms) == 2 or language in _FIRST_ONE_LAST_MANY:
            pairs += [(one, forms[0]), (many, forms[-1])]
    return [(a, b) for a, b in pairs if a.strip() and b.strip()]


_Entry = tuple[str, str, list[str]]  # English, its plural or "", translations


def _po_entries(data: bytes) -> list[_Entry]:
    try:
        # polib splits lines where Python does, which is more often than gettext does.
        text = re.sub("[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]", " ", data.decode("utf-8-sig"))
        # polib opens a file if the text is the name of one: with the first line it is not.
        catalogue = polib.pofile("# multidds\n" + text, encoding="utf-8")
    except UnicodeDecodeError:
        raise _UnreadableError("not UTF-8") from None
    except Exception:  # anything, from a parser that was not made for this
        raise _UnreadableError("not a valid .po file") from None
    entries = []
    for entry in catalogue:
        forms = [form for _, form in sorted(entry.msgstr_plural.items())] if entry.msgid_plural else [entry.msgstr]
        if forms and not (entry.obsolete or "fuzzy" in entry.flags):
            entries.append((entry.msgid, entry.msgid_plural or "", forms))
    return entries


def _mo_entries(data: bytes) -> list[_Entry]:
    """Parses a .mo file. polib would open files that the data names."""
    try:
        order = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}[data[:4]]
        _, count, *tables = struct.unpack_from(f"{order}4I", data, 4)
        sides = []
        for table in tables:
            places = list(struct.iter_unpack(f"{order}2I", data[table : table + 8 * count]))
            inside = all(length + start <= len(data) for length, start in places)
            # Strings that overlap could fill the memory.
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
