"""A part of a parallel corpus: every k-th training pair, and at most a number of dev and test pairs.

The study uses it for settings with little data, and for datasets that are no translations. The training pairs of the
languages in `--untranslated` are copies of their source, as in much crawled text. SOURCE has a folder
`<language>-eng` per language with train, dev and test files, such as `train.<language>` and `train.eng`. Line i of both
is one pair.

    python experiments/study/part_of_corpus.py PATH/OF/tatoeba data/tatoeba-part --every 13 --languages aze,bel,glg
    python experiments/study/part_of_corpus.py data/catalogues data/copies --languages aze,tur --untranslated tur
"""

import argparse
from pathlib import Path


def pairs(folder: Path, part: str, language: str) -> list[tuple[str, str]]:
    sides = [(folder / f"{part}.{side}").read_text(encoding="utf-8").splitlines() for side in (language, "eng")]
    return list(zip(*sides, strict=True))


def write(folder: Path, part: str, language: str, lines: list[tuple[str, str]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for side, column in ((language, 0), ("eng", 1)):
        text = "".join(f"{pair[column]}\n" for pair in lines)
        (folder / f"{part}.{side}").write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--languages", required=True, help="codes, with commas between them")
    parser.add_argument("--untranslated", default="", help="languages whose training pairs are copies of their source")
    parser.add_argument("--every", type=int, default=1, help="take every k-th training pair")
    parser.add_argument("--held-out", type=int, default=300, help="dev and test pairs of a language, at most")
    given = parser.parse_args()
    for language in given.languages.split(","):
        source, target = (folder / f"{language}-eng" for folder in (given.source, given.target))
        train = pairs(source, "train", language)[:: given.every]
        dev, test = (pairs(source, part, language)[: given.held_out] for part in ("dev", "test"))
        if language in given.untranslated.split(","):
            train = [(line, line) for line, _ in train]
        for part, lines in (("train", train), ("dev", dev), ("test", test)):
            write(target, part, language, lines)
        print(f"{language}: {len(train)} training pairs, {len(dev)} dev, {len(test)} test")


if __name__ == "__main__":
    main()
