"""Writes a small parallel corpus of made-up languages, for recipes/tiny.toml and the tests.

"base" has sentences of words made of syllables. "mirror" is base with the letters of every word reversed; "shift" has
every letter moved on by one. The rules are known, so a model that learns them reaches a BLEU near 100.

    python examples/made_up_languages.py data/made-up
"""

import random
import sys
from pathlib import Path

TRAINING = {"mirror": 500, "shift": 3000}  # unequal, as in life
HELD_OUT = 100


def words() -> list[str]:
    rng = random.Random(1)
    return sorted(
        {"".join(rng.choice("bdgklmnprst") + rng.choice("aeiou") for _ in range(rng.randint(1, 3))) for _ in range(80)}
    )


def sentence(rng: random.Random, lexicon: list[str]) -> str:
    return " ".join(rng.choice(lexicon) for _ in range(rng.randint(3, 9)))


def mirror(text: str) -> str:
    return " ".join(word[::-1] for word in text.split(" "))


def shift(text: str) -> str:
    return "".join(chr(ord(c) + 1) if c != " " else c for c in text)


def write(folder: Path) -> None:
    lexicon = words()
    seen: set[str] = set()
    for language, rule in (("mirror", mirror), ("shift", shift)):
        rng = random.Random(language)
        for split, count in (("dev", HELD_OUT), ("test", HELD_OUT), ("train", TRAINING[language])):
            lines = []
            while len(lines) < count:
                line = sentence(rng, lexicon)
                if line not in seen:  # no held-out sentence is in any training set
                    seen.add(line)
                    lines.append(line)
            target = folder / f"{language}-base"
            target.mkdir(parents=True, exist_ok=True)
            for name, text in (("base", lines), (language, [rule(line) for line in lines])):
                (target / f"{split}.{name}").write_text("".join(line + "\n" for line in text), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "data/made-up"))
