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
from functools import lru_cache, partial
from itertools import count
from pathlib import Path
from typing import Any

from ..common.checksummed import check_digest, checksummed, read_checksummed, sha256
from ..common.errors import DamagedError, UserError
from ..common.escaping import file_name
from ..common.files import LOCK, PARTIAL, locked, resumed_folder
from ..config.config import Config
from .catalogues.folder import check_made
from .encode import ShardEncoder, counted, keep_texts
from .prepared import AGAIN, AWAY, LAYOUT, MANIFEST, prepared_settings
from .resumable_tasks import DeadWorkerError, Facts, Task, TaskFolder, finish, pool_of, start_worker
from .shard_plan import Shard, shards_of
from .subwords import copy_model, train_model, write_vocabularies
from .text_files import Input, files_of, scan_inputs
from .vocabulary import FILE as VOCABULARY
from .vocabulary import model_digests, model_file, models_of, start_vocabulary

_TEXTS = 64  # test sets in one task

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
    inputs = scan_inputs(config)
    for path, found in inputs.items():
        check_made(Path(path), found.digest)
    fingerprint = _fingerprint(config, inputs)
    leftovers = folder.with_name(folder.name + PARTIAL)
    if _is_there(folder, fingerprint, notice) and not leftovers.exists():
        return False
    with locked(folder.with_name(folder.name + LOCK), f"{folder}: is being prepared by another process."):
        if _is_there(folder, fingerprint, lambda text: None):  # made while we looked
            shutil.rmtree(leftovers, ignore_errors=True)
            return False
        shards = shards_of(config, inputs)
        try:
            with resumed_folder(folder, f"{fingerprint} {len(shards)}") as beside:
                place = TaskFolder(beside)
                manifest = _build(config, shards, place, processes, say)
                digests = {path: found.digest for path, found in inputs.items()}
                manifest |= {"layout": LAYOUT, "fingerprint": fingerprint, "settings": prepared_settings(config)}
                place.delete_except(manifest["files"])
                (place.data / MANIFEST).write_bytes(checksummed(manifest | {"inputs": digests}))
        except DeadWorkerError:
            raise UserError("a worker process died, perhaps for want of memory; try --processes 1.") from None
    return True


def _is_there(folder: Path, fingerprint: str, notice: Callable[[str], None]) -> bool:
    """Whether just this is prepared there, and whole."""
    manifest = _checked_manifest(folder)
    if manifest is None or manifest["layout"] != LAYOUT or manifest["fingerprint"] != fingerprint:
        return False
    try:
        for name, digest in manifest["files"].items():
            check_digest(folder / name, digest, AGAIN)
    except DamagedError as error:
        notice(f"{error} Doing so now.")
        return False
    return True


def _fingerprint(config: Config, inputs: Mapping[str, Input]) -> str:
    """What the result depends on: the settings, the content of every input file, and the versions that made it."""
    import sentencepiece

    digests = {path: found.digest for path, found in inputs.items()}
    parts = [LAYOUT, sentencepiece.__version__, prepared_settings(config), digests]
    if (start := start_vocabulary(config)) is not None:
        parts.append(sha256(start / VOCABULARY))
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _checked_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a prepared folder; None where there is nothing yet. A folder with anything else is refused."""
    if not folder.exists():
        return None
    if not folder.is_dir():
        raise UserError(f"{folder}: is not a folder; choose another [data] folder.")
    entries = {path.name for path in folder.iterdir()}
    manifest = read_checksummed(folder / MANIFEST, AWAY) if MANIFEST in entries else {"files": {}}
    ours = {*manifest["files"], *([MANIFEST] if manifest["files"] else [])}
    if strangers := sorted(entries - ours):
        raise UserError(
            f"{folder}: holds {strangers[0]!r}, which 'multidds prepare' did not make; choose another [data] folder."
        )
    return manifest if manifest["files"] else None


def _build(config: Config, shards: list[Shard], place: TaskFolder, processes: int, say: Say) -> Facts:
    """Everything but the manifest, whose contents it returns."""
    names, tested = models_of(config), config.data.pairs if config.data.test else ()
    texts = [tested[i : i + _TEXTS] for i in range(0, len(tested), _TEXTS)]
    start = start_vocabulary(config)
    there = {} if start is None else model_digests(start)
    first: dict[str, Task] = {
        f"sentencepiece {file_name(name)}": partial(_do, copy_model if model_file(name) in there else train_model, name)
        for name in names
    }
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
