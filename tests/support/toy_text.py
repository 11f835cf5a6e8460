"""Small aligned text files of made-up words, and the recipe that prepares them."""

import shutil

import made_up_languages
import numpy as np

from multidds.nmt.config import parse_config


def recipe(folder, pairs=("ab-base", "cd-base"), lines=300, vocabulary=None, **data):
    """Writes text into a folder; returns the recipe as a table. The sides of a pair have the same text."""
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdefg"), 4)) for _ in range(60)]
    for pair in pairs:
        for split, count in (("train", lines), ("dev", 20), ("test", 15)):
            rows = [row[: 2 + i % 5] for i, row in enumerate(rng.integers(0, 60, (count, 6)).tolist())]
            text = "".join(" ".join(words[i] for i in row) + "\n" for row in rows)
            for lang in pair.split("-"):
                (folder / f"{pair}.{split}.{lang}").write_text(text, encoding="utf-8")
    places = {split: str(folder / ("{pair}." + split + ".{lang}")) for split in ("train", "dev", "test")}
    table = {"folder": str(folder / "prepared"), "pairs": list(pairs), **places, **data}
    return {"data": table, "vocabulary": {"size": 60, **(vocabulary or {})}}


def made(folder, *arguments, **options):
    """The same as a config."""
    return parse_config(recipe(folder, *arguments, **options), "r.toml")


def write_with_loud(folder):
    """Writes the made-up languages, shorter, and one of capital letters, which no vocabulary of theirs has."""
    made_up_languages.write(folder)
    for path in folder.glob("*/*"):
        lines = path.read_text().splitlines()[: 300 if "train" in path.name else 20]
        path.write_text("".join(line + "\n" for line in lines))
    shutil.copytree(folder / "shift-base", folder / "loud-base")
    for path in (folder / "loud-base").glob("*.shift"):
        path.with_suffix(".loud").write_text(path.with_suffix(".base").read_text().upper())
        path.unlink()


CALL = """
import json, sys
from multidds.nmt.config import parse_config
from multidds.nmt.prepare import prepare, shard_plan

if __name__ == "__main__":
    shard_plan.LARGEST = int(sys.argv[2])
    prepare(parse_config(json.loads(sys.argv[1]), "r"), processes=1)
"""  # a script that prepares a recipe, given as JSON, in shards of so many lines
