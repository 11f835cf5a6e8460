"""From text to a prepared folder: sentencepiece models, vocabularies, shards of tokens, and a manifest of all of it.

Everything is made beside the final folder, which it replaces when it is whole. After an interrupted call the next one
goes on, task by task (`resumable_tasks`). Does not import torch.
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

from multidds._base.errors import DamagedError, UserError
from multidds._base.escaping import file_name
from multidds._base.files import LOCK, PARTIAL, locked, recover, resumed_folder

from ..common.checksummed import check_files, checksummed, read_own_folder, sha256
from ..config.config import Config
from .encode import ShardEncoder, copy_tests, total_counts
from .prepared import AGAIN, AWAY, LAYOUT, MANIFEST, prepared_settings
from .resumable_tasks import DeadWorkerError, Facts, Task, TaskFolder, finish, start_pool, start_worker
from .shard_plan import Shard, shards_of
from .subwords import copy_model, train_model, write_vocabularies
from .text_files import Input, files_of, scan_inputs
from .vocabulary import FILE as VOCABULARY
from .vocabulary import model_digests, model_file, models_of, start_vocabulary

_TESTS_PER_TASK = 64  # test sets

Say = Callable[[str, int, int], None]  # what is done, tasks done, tasks in all


def prepare(
    config: Config,
    processes: int = 0,
    progress: Say | None = None,
    notice: Callable[[str], None] = lambda text: None,
) -> bool:
    """Prepares the data of a config. Returns False if everything was there already and nothing had changed.

    Files that are damaged are made again; tasks that an interrupted call has finished are not.

    config: of the run.
    processes: their number; by default one per core.
    progress: called with (what is done, tasks done, tasks in all).
    notice: called with a message about a damaged file.
    """
    folder = config.data.folder.resolve()  # a link stays a link
    if folder == Path.cwd():
        raise UserError(
            f"[data] folder = {str(config.data.folder)!r} is the current folder; choose one for the data alone."
        )
    say = progress or (lambda what, done, total: None)
    say("reading", 0, 1)
    inputs = scan_inputs(config)
    fingerprint = _fingerprint(config, inputs)
    leftovers = folder.with_name(folder.name + PARTIAL)
    if _is_there(folder, fingerprint, notice) and not leftovers.exists():
        return False
    with locked(folder.with_name(folder.name + LOCK), f"{folder}: is being prepared by another process."):
        recover(folder)
        if _is_there(folder, fingerprint, lambda text: None):  # made in the meantime
            shutil.rmtree(leftovers, ignore_errors=True)
            return False
        shards = shards_of(config, inputs)
        try:
            with resumed_folder(folder, f"{fingerprint} {len(shards)}") as beside:
                place = TaskFolder(beside)
                manifest = _build(config, shards, place, processes or os.cpu_count() or 1, say)
                manifest |= {"layout": LAYOUT, "fingerprint": fingerprint, "settings": prepared_settings(config)}
                manifest |= {"inputs": {path: scanned.digest for path, scanned in inputs.items()}}
                place.delete_except(manifest["files"])
                (place.data / MANIFEST).write_bytes(checksummed(manifest))
        except DeadWorkerError:
            raise UserError("a worker process died, perhaps for want of memory; try --processes 1.") from None
    return True


def _is_there(folder: Path, fingerprint: str, notice: Callable[[str], None]) -> bool:
    """Whether the data of this fingerprint are in the folder, every byte of them."""
    manifest = read_own_folder(folder, MANIFEST, "multidds prepare", AWAY)
    if manifest is None or manifest["layout"] != LAYOUT or manifest["fingerprint"] != fingerprint:
        return False
    try:
        check_files(folder, manifest, AGAIN)
    except DamagedError as error:
        notice(f"{error} Doing so now.")
        return False
    return True


def _fingerprint(config: Config, inputs: Mapping[str, Input]) -> str:
    """Returns a hash of the settings, of every input file and of the versions that the result depends on."""
    import sentencepiece

    digests = {path: scanned.digest for path, scanned in inputs.items()}
    parts = [LAYOUT, sentencepiece.__version__, prepared_settings(config), digests]
    if (start := start_vocabulary(config)) is not None:
        parts.append(sha256(start / VOCABULARY))
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _build(config: Config, shards: list[Shard], place: TaskFolder, processes: int, say: Say) -> Facts:
    """Makes everything but the manifest. Returns the facts of the manifest."""
    start = start_vocabulary(config)
    copied = {} if start is None else model_digests(start)
    first: dict[str, Task] = {}
    for name in models_of(config):
        make_model = copy_model if model_file(name) in copied else train_model
        first[f"sentencepiece {file_name(name)}"] = partial(_do, make_model, name)
    tested = config.data.pairs if config.data.test else ()
    for number, begin in enumerate(range(0, len(tested), _TESTS_PER_TASK)):
        first[f"test-{number:05}"] = partial(_do, copy_tests, tested[begin : begin + _TESTS_PER_TASK])
    then: dict[str, Task] = {shard.name: partial(_do, _encode, shard) for shard in shards}
    done, total = count(1), len(first) + len(then)
    with start_pool(processes, partial(_start, config)) as pool:
        facts = finish(pool, place, first, lambda name: say(name, next(done), total))
        sizes = write_vocabularies(config, place.data)
        facts |= finish(pool, place, then, lambda name: say(name, next(done), total))
    files = {name: digest for task in facts.values() for name, digest in task["files"].items()}
    files[VOCABULARY] = sha256(place.data / VOCABULARY)
    test_sizes = {name: size for task in facts.values() for name, size in task.get("pairs", {}).items()}
    return {
        "direction": config.data.direction,
        "pairs": _counts(config, shards, facts, test_sizes),
        "vocabulary": sizes,
        "limited": {name: size for task in facts.values() for name, size in task.get("limited", {}).items()},
        "shards": _listed(config, shards, facts),
        "files": dict(sorted(files.items())),
    }


_config: Config  # of the tasks of a process of the pool: ten thousand language pairs are sent once, not with every task


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


def _counts(
    config: Config, shards: list[Shard], facts: Mapping[str, Facts], test_sizes: Mapping[str, int]
) -> dict[str, Any]:
    """Returns {language pair: {split: counts}}. Raises a UserError if a split is empty."""
    spans: dict[tuple[str, str], list[Facts]] = {}
    for shard in shards:
        for span, counts in zip(shard.spans, facts[shard.name]["spans"], strict=True):
            spans.setdefault((span.pair.name, shard.split), []).append(counts)
    totals: dict[str, Any] = {}
    for pair in config.data.pairs:
        totals[pair.name] = {split: total_counts(spans.get((pair.name, split), [])) for split in ("train", "dev")}
        for split, counts in totals[pair.name].items():
            if counts["pairs"] == 0:
                path = files_of(config.data, pair, split)[0]
                raise UserError(f"{path}: no usable sentence pair for the {split} set of {pair.name!r}.")
        if pair.name in test_sizes:
            totals[pair.name]["test"] = {"pairs": test_sizes[pair.name], "dropped": {}}
    return totals


def _listed(config: Config, shards: list[Shard], facts: Mapping[str, Facts]) -> dict[str, list[Facts]]:
    """Returns {split: its shards}: file, tokens of both sides, [number of a language pair, sentence pairs] in a row."""
    numbers = {pair.name: number for number, pair in enumerate(config.data.pairs)}
    listed: dict[str, list[Facts]] = {"train": [], "dev": []}
    for shard in shards:
        counts = zip(shard.spans, facts[shard.name]["spans"], strict=True)
        spans = [[numbers[span.pair.name], there["pairs"]] for span, there in counts]
        listed[shard.split].append({"file": shard.file, "tokens": facts[shard.name]["tokens"], "spans": spans})
    return listed
