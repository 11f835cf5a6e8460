"""Small aligned text files of made-up words, and the recipe that prepares them."""

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


CALL = """
import json, sys
from multidds.nmt.config import parse_config
from multidds.nmt.prepare import prepare, shard_plan

if __name__ == "__main__":
    shard_plan.LARGEST = int(sys.argv[2])
    prepare(parse_config(json.loads(sys.argv[1]), "r"), processes=1)
"""  # a script that prepares a recipe, given as JSON, in shards of so many lines
