"""The folder of a corpus: wheels/, a folder per language, README.md with counts and licences, and corpus.json."""

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from multidds._base.errors import DamagedError
from multidds._base.files import whole_folder

from ...common.checksummed import checksummed, read_checksummed, sha256
from .cleaning import SPLITS, Pair
from .languages import ENGLISH

MANIFEST = "corpus.json"
MAKER = "multidds corpus catalogues"
WHEELS = "wheels"
AWAY = f"move the folder away, and run '{MAKER}' again."


def read_manifest(folder: Path) -> dict[str, Any]:
    return read_checksummed(folder / MANIFEST, AWAY)


def check_made(path: Path, digest: str) -> None:
    """Raises a DamagedError if a text file is one of a corpus of ours, but not as it was made."""
    folder, name = path.parent.parent, f"{path.parent.name}/{path.name}"
    if not (folder / MANIFEST).is_file() or MAKER.encode() not in (folder / MANIFEST).read_bytes():
        return
    if read_manifest(folder)["files"].get(name, digest) != digest:
        raise DamagedError(f"{path}: is not as '{MAKER}' made it; run that again, or change a copy elsewhere.")


def write_corpus(
    folder: Path, corpus: Mapping[str, Mapping[str, Sequence[Pair]]], facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Replaces a folder by a corpus, apart from its wheels. Returns the manifest.

    folder: its place.
    corpus: {language: {split: pairs}}.
    facts: of the manifest, without the files.
    """
    with whole_folder(folder) as partial:
        for language, splits in sorted(corpus.items()):
            inner = partial / f"{language}-{ENGLISH}"
            inner.mkdir()
            for name, pairs in splits.items():
                for side, code in enumerate((ENGLISH, language)):
                    (inner / f"{name}.{code}").write_bytes("".join(pair[side] + "\n" for pair in pairs).encode())
        (partial / "README.md").write_bytes(_readme(facts).encode())
        files = sorted(path for path in partial.rglob("*") if path.is_file())
        manifest = {**facts, "files": {path.relative_to(partial).as_posix(): sha256(path) for path in files}}
        (partial / MANIFEST).write_bytes(checksummed(manifest))
        shutil.copytree(folder / WHEELS, partial / WHEELS, copy_function=_link)
    return manifest


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copy2(source, target)


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
Languages whose training pairs were made copies of their source, on purpose: {untranslated}.

## Whose text this is

The text belongs to the projects below and to their translators, under their licences; keep this list with any copy.

{packages}
"""


def _readme(facts: Mapping[str, Any]) -> str:
    languages = facts["languages"]
    reasons = sorted({reason for counts in languages.values() for reason in counts["dropped"]})
    rows = []
    for name, counts in languages.items():
        numbers = [*(counts[split] for split in SPLITS), counts["held_out_elsewhere"], counts["read"]]
        numbers += [counts["dropped"].get(reason, 0) for reason in reasons]
        rows.append([name, *(f"{number:,}" for number in [*numbers, counts["kept"]])])
    packages = [[p["name"], p["version"], p["licence"], p["kind"]] for p in facts["packages"]]
    return _README.format(
        counts=_markdown(["language", *SPLITS, "held out elsewhere", "read", *reasons, "kept"], rows),
        skipped=len(facts["skipped"]),
        untranslated=", ".join(facts["request"]["untranslated"]) or "none",
        packages=_markdown(["package", "version", "licence", "catalogues"], packages),
    )


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows))
