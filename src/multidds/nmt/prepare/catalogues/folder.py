"""The folder of a corpus: one writer at a time, whole or not there, and nothing in it but what we made.

Owns the names of the files, the manifest, and the README with counts and licences.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...common.checksummed import checksummed, read_checksummed, sha256
from ...common.errors import DamagedError, UserError
from ...common.files import move_into_place, take_lock
from .cleaning import SPLITS, Pair
from .languages import ENGLISH

MANIFEST = "corpus.json"
_MAKER = "multidds corpus catalogues"


class Folder:
    """The folder of a corpus: wheels/, a folder per language, README.md, and corpus.json, which comes last.

    Without corpus.json it is no corpus. A build stands in .partial until it is whole; then the old corpus loses its
    manifest, and the new files move to their places. Whatever happens in between, one of the manifests still says which
    files are ours, so that the next call can clear up, and touches nothing else.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.wheels, self._partial = path, path / "wheels", path / ".partial"
        self.manifest: dict[str, Any] | None = None
        self._lock = -1

    def __enter__(self) -> "Folder":
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
            take_lock(self._lock, f"{self.path}: another process is making a corpus there.")

    def _manifests(self) -> list[dict[str, Any]]:
        """The manifest in place, then those of a build that was interrupted while it moved in."""
        found = [read_manifest(self.path / MANIFEST)]
        for name in (MANIFEST, "replaced.json"):
            with contextlib.suppress(DamagedError):  # it was being written
                found.append(read_manifest(self._partial / name))
        return found

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
            move_into_place(self.path / MANIFEST, self._partial / "replaced.json")
            self._remove([self.manifest])
        for path in sorted(self._partial.iterdir()):
            if path.name not in (MANIFEST, "replaced.json"):
                move_into_place(path, self.path / path.name)
        move_into_place(self._partial / MANIFEST, self.path / MANIFEST)
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
        (self._partial / MANIFEST).write_bytes(checksummed(manifest))

    def _remove(self, manifests: Iterable[dict[str, Any]], keep: Iterable[str] = ()) -> None:
        names = {name for manifest in manifests for name in manifest.get("files", {})} - set(keep)
        for name in names:
            (self.path / name).unlink(missing_ok=True)
        for name in {parent for name in names if (parent := name.rpartition("/")[0])}:
            with contextlib.suppress(OSError):  # not there, or not empty
                (self.path / name).rmdir()


_FILES = re.compile(rf"README\.md|([a-z]{{3}})-{ENGLISH}/(train|dev|test)\.(\1|{ENGLISH})")


def read_manifest(path: Path) -> dict[str, Any]:
    """A manifest of ours, or {} where there is none. It says what may be deleted: other names are not believed."""
    try:
        manifest = read_checksummed(path, "move the folder away, and run 'multidds corpus catalogues' again.")
    except FileNotFoundError:
        return {}
    if manifest.get("made_by") != _MAKER:
        return {}
    return manifest | {"files": {name: str(d) for name, d in manifest["files"].items() if _FILES.fullmatch(name)}}


def check_made(path: Path, digest: str) -> None:
    """A DamagedError if a file of text stands in a corpus of ours, and is not as it was made."""
    folder = path.parent.parent
    made = read_manifest(folder / MANIFEST).get("files", {}).get(f"{path.parent.name}/{path.name}", digest)
    if made != digest:
        raise DamagedError(
            f"{path}: is not as 'multidds corpus catalogues' made it; run that again, or change a copy elsewhere."
        )


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
language is in no training file, and none is in both dev and test; case, punctuation, tags, placeholders and numbers
do not make another sentence. "Held out elsewhere" is what a language cannot train on for that reason. A tenth of a
language is its dev set and a tenth its test set, 100 to 300 sentences each; where that gives fewer than 300 test
sentences, the test set takes more, up to 300, as long as about 220 are left to train on.
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
    packages = [[p["name"], p["version"], p["licence"], p["kind"]] for p in manifest["packages"]]
    return _README.format(
        counts=_markdown(["language", *SPLITS, "held out elsewhere", "read", *reasons, "kept"], rows),
        skipped=len(manifest["skipped"]),
        packages=_markdown(["package", "version", "licence", "catalogues"], packages),
    )


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows))
