"""A parallel corpus in which part of the training targets are wrong, with a record of the wrong lines.

It tests `[examples]` on real text (docs/dirty-data.md). In every damaged language, 30% of the training pairs get the
target of another sentence, as wrong alignment does. 10% get a copy of their source, as in text that was never
translated. The seed alone decides which lines are damaged. They are written to `train.damage`, one word per line:
"right", "other" or "copy". Dev and test sets, and the other languages, do not change.

    python experiments/dirty/damaged_corpus.py data/catalogues data/catalogues-damaged \\
        --languages aze,bel,glg,slk,tur,rus,por,ces --damaged slk,tur,rus,por,ces
"""

import argparse
import random
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "study"))
from part_of_corpus import pairs, write


def damaged(
    lines: list[tuple[str, str]], others: float, copies: float, seed: str
) -> tuple[list[tuple[str, str]], list[str]]:
    """(the pairs, what each is): a share `others` of the targets moved one on among themselves, `copies` the source."""
    shuffled = random.Random(seed).sample(range(len(lines)), len(lines))
    moved = shuffled[: round(others * len(lines))]
    copied = shuffled[len(moved) : len(moved) + round(copies * len(lines))]
    found, kinds = list(lines), ["right"] * len(lines)
    for place, other in zip(moved, [*moved[1:], *moved[:1]], strict=True):
        found[place] = (lines[place][0], lines[other][1])
        kinds[place] = "right" if lines[other][1] == lines[place][1] else "other"
    for place in copied:
        found[place] = (lines[place][0], lines[place][0])
        kinds[place] = "right" if lines[place][0] == lines[place][1] else "copy"
    return found, kinds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--languages", required=True, help="codes, with commas between them")
    parser.add_argument("--damaged", required=True, help="those of them whose training pairs are damaged")
    parser.add_argument("--others", type=float, default=0.3, help="share of targets that are another sentence's")
    parser.add_argument("--copies", type=float, default=0.1, help="share of targets that are copies of the source")
    parser.add_argument("--leave-out", action="store_true", help="leave damaged pairs out, as a perfect filter would")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    for language in given.languages.split(","):
        source, target = (folder / f"{language}-eng" for folder in (given.source, given.target))
        for part in ("dev", "test"):
            write(target, part, language, pairs(source, part, language))
        lines = pairs(source, "train", language)
        shares = (given.others, given.copies) if language in given.damaged.split(",") else (0.0, 0.0)
        lines, kinds = damaged(lines, *shares, seed=f"{given.seed}:{language}")
        if given.leave_out:
            lines = [line for line, kind in zip(lines, kinds, strict=True) if kind == "right"]
            kinds = ["right"] * len(lines)
        write(target, "train", language, lines)
        (target / "train.damage").write_text("".join(f"{kind}\n" for kind in kinds), encoding="utf-8")
        print(f"{language}: {len(lines)} training pairs, {kinds.count('other')} others, {kinds.count('copy')} copies")


if __name__ == "__main__":
    main()
