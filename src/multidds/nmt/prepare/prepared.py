"""The reader of a prepared folder.

Every file is checked against its digest in the manifest when it is first read. Does not import torch.
"""

import json
from functools import cached_property
from pathlib import Path
from typing import Any

from multidds._base.errors import UserError
from multidds._base.escaping import file_name

from ..common.checksummed import check_digest, read_checksummed
from ..config.config import Config
from .shard_files import Numbers, ShardFiles, Stored, stored_pairs, token_type
from .vocabulary import load_vocabulary, tag_of

LAYOUT = 4  # of the prepared folder; grows when it changes
MANIFEST = "manifest.json"
AGAIN = "run 'multidds prepare' again."
AWAY = "move the folder away, or choose another [data] folder, and run 'multidds prepare' again."
_SIDES = ("source", "target")


def read_manifest(folder: Path) -> dict[str, Any]:
    """Reads the manifest of a folder that this version has prepared."""
    if not (folder / MANIFEST).exists():
        raise UserError(f"{folder}: nothing is prepared there; run 'multidds prepare' with the same recipe.")
    manifest = read_checksummed(folder / MANIFEST, AWAY)
    if manifest.get("layout") != LAYOUT:
        raise UserError(f"{folder}: was prepared by another version; {AGAIN}")
    return manifest


def prepared_settings(config: Config) -> dict[str, Any]:
    """Returns the part of a config that decides what is prepared."""
    settings: dict[str, Any] = json.loads(config.model_dump_json(include={"data", "vocabulary"}))
    del settings["data"]["folder"], settings["data"]["setting"]
    if config.train.start_from:
        settings["train"] = {"start_from": config.train.start_from}
    return settings


class Prepared:
    """A prepared folder, opened for training, translation or evaluation.

    config: of the run. A UserError is raised if its data are not prepared, or with other settings.
    """

    def __init__(self, config: Config) -> None:
        self.folder = config.data.folder
        self.manifest = read_manifest(self.folder)
        wanted, there = (_flat(s) for s in (prepared_settings(config), self.manifest["settings"]))
        if changed := [key for key in {**there, **wanted} if wanted.get(key) != there.get(key)]:
            raise UserError(
                f"{self.folder}: was prepared with other settings ({', '.join(changed)}); "
                "run 'multidds prepare' with this recipe."
            )
        self.sizes: dict[str, int] = {
            name: self.manifest["pairs"][name]["train"]["pairs"] for name in config.data.names
        }
        self.vocabulary = load_vocabulary(self.folder)
        self._pairs = config.data.pairs
        self._files = ShardFiles(self.folder, self.manifest["files"], AGAIN)
        self._splits: dict[str, dict[str, Stored]] = {}

    @property
    def fingerprint(self) -> str:
        return str(self.manifest["fingerprint"])

    @cached_property
    def tags(self) -> dict[str, int | None]:
        """{language pair: the source token that asks for its target language}; None if there is only one target."""
        if len({pair.target for pair in self._pairs}) == 1:
            return {pair.name: None for pair in self._pairs}
        numbers = {token: number for number, token in enumerate(self.vocabulary["source"])}
        return {pair.name: numbers[tag_of(pair.target)] for pair in self._pairs}

    def stored(self, pair: str, split: str) -> Stored:
        """Returns the sentence pairs of the training or dev set of a language pair, which are read when asked for."""
        if split not in self._splits:
            types = [token_type(len(self.vocabulary[side])) for side in _SIDES]
            names = [pair.name for pair in self._pairs]
            self._splits[split] = stored_pairs(self._files, self.manifest["shards"][split], names, types)
        return self._splits[split][pair]

    def longer_tokens(self, pair: str, split: str) -> int:
        """Returns the tokens of the longer side of all sentence pairs, with tags, without <s> and </s>."""
        return int(self.manifest["pairs"][pair][split]["longer"])

    def arrays(self, pair: str, split: str, side: str) -> tuple[Numbers, Numbers]:
        """Returns (tokens, offsets), all in memory: sentence i is tokens[offsets[i] : offsets[i + 1]]."""
        return self.stored(pair, split).array(_SIDES.index(side))

    def test_lines(self, pair: str, side: str) -> list[str]:
        """Returns the lines of one side of a test set."""
        path = self.folder / f"{file_name(pair)}.test.{side}.txt"
        if not path.exists():
            raise UserError(f"{path}: there is no test set for {pair!r}; set [data] test and prepare again.")
        check_digest(path, self.manifest["files"].get(path.name), AGAIN)
        return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    return {f"{section}.{key}": value for section, keys in settings.items() for key, value in keys.items()}
