"""From text to a prepared folder: sentencepiece models, vocabularies, shards of tokens, and a manifest of all of it.

Everything is made beside the final folder, which it replaces when it is whole: nobody takes an interrupted call for a
finished one. The next call goes on behind what is finished, task by task (tasks.py). The manifest has a digest of every
file, which is checked when the file is first read. encoding.py makes the shards. Does not import torch.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache, partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from ..common.checksummed import check_digest, read_checksummed, sealed, sha256
from ..common.errors import DamagedError, UserError
from ..common.escaping import file_name
from ..common.files import LOCK, PARTIAL, locked, resumed_folder
from ..config.config import Config
from .catalogues.folder import check_made
from .encode import ShardEncoder, counted, keep_texts
from .input_scan import Input, scan
from .resumable_tasks import DeadWorkerError, Facts, Task, TaskFolder, finish, pool_of, start_worker
from .shard_files import ShardFiles, Stored, stored_pairs, token_type
from .shard_plan import Shard, Span, cut, lines_per_shard
from .subwords import keep_model, train_model, write_vocabularies
from .text_files import files_of
from .vocabulary import FILE as VOCABULARY
from .vocabulary import kept_folder, kept_models, load_vocabulary, model_file, models_of, tag_of

LAYOUT = 4  # of the prepared folder; grows when it changes


_FIRST_SEALED = 3
MANIFEST = "manifest.json"
_AGAIN = "run 'multidds prepare' again."
_AWAY = "move the folder away, or choose another [data] folder, and run 'multidds prepare' again."
_TEXTS = 64  # test sets in one task
_SIDES = ("source", "target")
_GONE = "gone"  # instead of the digest of a vocabulary that is to be kept, but is not there

Say = Callable[[str, int, int], None]  # what is done, how many of how many tasks


def prepare(
    config: Config,
    processes: int = 0,
    progress: Say | None = None,
    notice: Callable[[str], None] = lambda text: None,
) -> bool:
    """Prepare the data of a config. Returns False where everything was there already and nothing had changed.

    What is damaged is made again; `notice` is told. What an interrupted call has finished is not.
    """
    folder = config.data.folder.resolve()  # a link stays a link
    if folder == Path.cwd():
        raise UserError(
            f"[data] folder = {str(config.data.folder)!r} is the current folder; choose one for the data alone."
        )
    say = progress or (lambda what, done, total: None)
    say("reading", 0, 1)
    inputs = inputs_of(config)
    kept = _kept_digest(config)
    fingerprint_of = partial(_fingerprint, config, inputs)
    leftovers = folder.with_name(folder.name + PARTIAL)
    if _is_there(folder, fingerprint_of, kept, notice) and not leftovers.exists():
        return False
    kept_models(config)  # or an error
    with locked(folder.with_name(folder.name + LOCK), f"{folder}: is being prepared by another process."):
        if _is_there(folder, fingerprint_of, kept, lambda text: None):  # made while we looked
            shutil.rmtree(leftovers, ignore_errors=True)
            return False
        shards, fingerprint = shards_of(config, inputs), fingerprint_of(kept)
        try:
            with resumed_folder(folder, f"{fingerprint} {len(shards)}") as beside:
                place = TaskFolder(beside)
                manifest = _build(config, shards, place, processes, say)
                digests = {path: found.digest for path, found in inputs.items()}
                manifest |= {"layout": LAYOUT, "fingerprint": fingerprint, "settings": _settings(config)}
                manifest |= {"kept": kept} if kept else {}
                place.leave(manifest["files"])
                (place.data / MANIFEST).write_bytes(sealed(manifest | {"inputs": digests}))
        except DeadWorkerError:
            raise UserError("a worker process died, perhaps for want of memory; try --processes 1.") from None
    return True


def _is_there(
    folder: Path, fingerprint_of: Callable[[str | None], str], kept: str | None, notice: Callable[[str], None]
) -> bool:
    """Whether just this is prepared there, and whole. kept: the digest of the vocabulary that is kept, if any is.

    Keeping what was made of a vocabulary makes no other: the one that is kept may be that of the folder, or of a run.
    """
    manifest = _checked_manifest(folder)
    if manifest is None or manifest["layout"] != LAYOUT:
        return False
    if kept in (_GONE, manifest["files"][VOCABULARY]):
        kept = manifest.get("kept") or kept
    if manifest["fingerprint"] != fingerprint_of(kept):
        return False
    try:
        for name, digest in manifest["files"].items():
            check_digest(folder / name, digest, _AGAIN)
    except DamagedError as error:
        notice(f"{error} Doing so now.")
        return False
    return True


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a folder that this version has prepared."""
    try:
        manifest = read_checksummed(folder / MANIFEST, _AWAY)
    except FileNotFoundError:
        raise UserError(f"{folder}: nothing is prepared there; run 'multidds prepare' with the same recipe.") from None
    except DamagedError:
        if _older(folder) is None:
            raise
        manifest = {}
    if manifest.get("layout") != LAYOUT:
        raise UserError(f"{folder}: was prepared by another version; {_AGAIN}")
    return manifest


def _older(folder: Path) -> dict[str, Any] | None:
    """A manifest without a checksum, if an older version has left one: it says which files are ours."""
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        known = {"layout", "fingerprint", "files"} <= manifest.keys() and "checksum" not in manifest
        return manifest if known and manifest["layout"] < _FIRST_SEALED and manifest["files"] else None
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None


def inputs_of(config: Config) -> dict[str, Input]:
    """Every file that is read, by its path."""
    paths = {
        str(path)
        for split in _splits(config)
        for pair in config.data.pairs
        for path in files_of(config.data, pair, split)
    }
    inputs = {path: scan(Path(path)) for path in sorted(paths)}
    for path, found in inputs.items():
        check_made(Path(path), found.digest)
    return inputs


def _splits(config: Config) -> list[str]:
    return ["train", "dev"] + (["test"] if config.data.test else [])


def _kept_digest(config: Config) -> str | None:
    """Of the vocabulary that the config keeps; None where it keeps none."""
    folder = kept_folder(config)
    if folder is None:
        return None
    return sha256(folder / VOCABULARY) if (folder / VOCABULARY).exists() else _GONE


def _fingerprint(config: Config, inputs: Mapping[str, Input], kept: str | None) -> str:
    """What the result depends on: the settings, the content of every input file, and the versions that made it."""
    import sentencepiece

    digests = {path: found.digest for path, found in inputs.items()}
    parts = [LAYOUT, sentencepiece.__version__, _settings(config), digests, *([kept] if kept else [])]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _settings(config: Config) -> dict[str, Any]:
    """The part of a config that decides what is prepared."""
    settings: dict[str, Any] = json.loads(config.model_dump_json(include={"data", "vocabulary"}))
    del settings["data"]["folder"], settings["data"]["setting"]
    if not settings["vocabulary"]["keep"]:  # as before there was this key
        del settings["vocabulary"]["keep"]
    return settings


def _checked_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a prepared folder; None where there is nothing yet. A folder with anything else is refused."""
    if not folder.exists():
        return None
    if not folder.is_dir():
        raise UserError(f"{folder}: is not a folder; choose another [data] folder.")
    entries = {path.name for path in folder.iterdir()}
    manifest = _older(folder) if MANIFEST in entries else {"files": {}}
    if manifest is None:
        manifest = read_checksummed(folder / MANIFEST, _AWAY)
    ours = {*manifest["files"], *([MANIFEST] if manifest["files"] else [])}
    if strangers := sorted(entries - ours):
        raise UserError(
            f"{folder}: holds {strangers[0]!r}, which 'multidds prepare' did not make; choose another [data] folder."
        )
    return manifest if manifest["files"] else None


def shards_of(config: Config, inputs: Mapping[str, Input]) -> list[Shard]:
    """Of the training and the dev sets, in their order."""
    shards = []
    for split in ("train", "dev"):
        files = [[inputs[str(path)] for path in files_of(config.data, pair, split)] for pair in config.data.pairs]
        lines = [max(file.lines for file in both) for both in files]
        for number, spans in enumerate(cut(lines, lines_per_shard(sum(lines)))):
            placed = (
                Span(config.data.pairs[i], start, stop, tuple(file.place(start) for file in files[i]))
                for i, start, stop in spans
            )
            shards.append(Shard(split, number, tuple(placed)))
    return shards


def _build(config: Config, shards: list[Shard], place: TaskFolder, processes: int, say: Say) -> Facts:
    """Everything but the manifest, whose contents it returns."""
    names, tested = models_of(config), config.data.pairs if config.data.test else ()
    texts = [tested[i : i + _TEXTS] for i in range(0, len(tested), _TEXTS)]
    kept = kept_models(config)
    first: dict[str, Task] = {f"kept {file}": partial(_do, keep_model, file) for file in kept}
    new = [name for name in names if model_file(name) not in kept]
    first |= {f"sentencepiece {file_name(name)}": partial(_do, train_model, name) for name in new}
    first |= {f"test-{i:05}": partial(_do, keep_texts, some) for i, some in enumerate(texts)}
    then: dict[str, Task] = {shard.name: partial(_do, _encode, shard) for shard in shards}
    number, total = count(1), len(first) + len(then)
    with pool_of(processes or os.cpu_count() or 1, partial(_start, config)) as pool:
        facts = finish(pool, place, first, lambda name: say(name, next(number), total))
        sizes = write_vocabularies(config, place.data)
        facts |= finish(pool, place, then, lambda name: say(name, next(number), total))
    files = {name: digest for found in facts.values() for name, digest in found["files"].items()}
    files[VOCABULARY] = sha256(place.data / VOCABULARY)
    tests = [pairs for name in first if name.startswith("test-") for pairs in facts[name]["pairs"]]
    return {
        "direction": config.data.direction,
        "pairs": _counts(config, shards, facts, tests),
        "vocabulary": sizes,
        "limited": {name: size for found in facts.values() for name, size in found.get("limited", {}).items()},
        "shards": _listed(config, shards, facts),
        "files": dict(sorted(files.items())),
    }


# What a process of the pool works for.
_config: Config


def _start(config: Config) -> None:
    global _config
    _config = config
    start_worker()


def _do(work: Callable[[Config, Any, Path], Facts], what: Any, folder: Path) -> Facts:
    return work(_config, what, folder)


def _encode(config: Config, shard: Shard, folder: Path) -> Facts:
    return _encoder(folder).encode(shard)


@lru_cache(maxsize=1)
def _encoder(folder: Path) -> ShardEncoder:
    return ShardEncoder(_config, folder)


def _counts(config: Config, shards: list[Shard], facts: Mapping[str, Facts], tests: list[int]) -> dict[str, Any]:
    """{language pair: {split: what was counted}}. A UserError where nothing is left."""
    found: dict[tuple[str, str], list[Facts]] = {}
    for shard in shards:
        for span, there in zip(shard.spans, facts[shard.name]["spans"], strict=True):
            found.setdefault((span.pair.name, shard.split), []).append(there)
    counts: dict[str, Any] = {}
    for i, pair in enumerate(config.data.pairs):
        counts[pair.name] = {split: counted(found.get((pair.name, split), [])) for split in ("train", "dev")}
        for split, of_split in counts[pair.name].items():
            if of_split["pairs"] == 0:
                path = files_of(config.data, pair, split)[0]
                raise UserError(f"{path}: no usable sentence pair for the {split} set of {pair.name!r}.")
        if tests:
            counts[pair.name]["test"] = {"pairs": tests[i], "dropped": {}}
    return counts


def _listed(config: Config, shards: list[Shard], facts: Mapping[str, Facts]) -> dict[str, list[Facts]]:
    """{split: its shards}: the file, its tokens on both sides, [number of a language pair, sentence pairs] in a row."""
    numbers = {pair.name: i for i, pair in enumerate(config.data.pairs)}
    listed: dict[str, list[Facts]] = {"train": [], "dev": []}
    for shard in shards:
        found = facts[shard.name]
        spans = [
            [numbers[span.pair.name], there["pairs"]] for span, there in zip(shard.spans, found["spans"], strict=True)
        ]
        listed[shard.split].append({"file": shard.file, "tokens": found["tokens"], "spans": spans})
    return listed


class Prepared:
    """A prepared folder, opened for training, translation or evaluation."""

    def __init__(self, config: Config) -> None:
        self.folder = config.data.folder
        self.manifest = read_manifest(self.folder)
        wanted, there = _settings(config), self.manifest["settings"]
        changed = [
            f"{part}.{key}"
            for part in wanted
            for key in {**there[part], **wanted[part]}
            if wanted[part].get(key) != there[part].get(key)
        ]
        if changed:
            raise UserError(
                f"{self.folder}: was prepared with other settings ({', '.join(changed)}); "
                "run 'multidds prepare' with this recipe."
            )
        self.sizes: dict[str, int] = {
            name: self.manifest["pairs"][name]["train"]["pairs"] for name in config.data.names
        }
        self.vocabulary = load_vocabulary(self.folder)
        self._pairs = config.data.pairs
        self._files = ShardFiles(self.folder, self.manifest["files"], _AGAIN)
        self._splits: dict[str, dict[str, Stored]] = {}

    @property
    def fingerprint(self) -> str:
        return str(self.manifest["fingerprint"])

    @cached_property
    def tags(self) -> dict[str, int | None]:
        """{language pair: the source token that asks for its target language}; None where there is only one."""
        if len({pair.target for pair in self._pairs}) == 1:
            return {pair.name: None for pair in self._pairs}
        numbers = {token: i for i, token in enumerate(self.vocabulary["source"])}
        return {pair.name: numbers[tag_of(pair.target)] for pair in self._pairs}

    def stored(self, pair: str, split: str) -> Stored:
        """The sentence pairs of the training or dev set of a language pair. Files are opened and checked when read."""
        if split not in self._splits:
            types = [token_type(len(self.vocabulary[side])) for side in _SIDES]
            names = [pair.name for pair in self._pairs]
            self._splits[split] = stored_pairs(self._files, self.manifest["shards"][split], names, types)
        return self._splits[split][pair]

    def longer_tokens(self, pair: str, split: str) -> int:
        """Of the longer side of every sentence pair, with its tag if it has one, without <s> and </s>."""
        return int(self.manifest["pairs"][pair][split]["longer"])

    def arrays(self, pair: str, split: str, side: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """(tokens, offsets), all in memory: sentence i is tokens[offsets[i] : offsets[i + 1]]."""
        return self.stored(pair, split).array(_SIDES.index(side))

    def test_lines(self, pair: str, side: str) -> list[str]:
        path = self.folder / f"{file_name(pair)}.test.{side}.txt"
        if not path.exists():
            raise UserError(f"{path}: there is no test set for {pair!r}; set [data] test and prepare again.")
        self._check(path)
        return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")

    def _check(self, path: Path) -> None:
        check_digest(path, self.manifest["files"].get(path.name), _AGAIN)
