"""From text to memory-mapped token arrays: sentencepiece models, vocabularies, arrays, and a manifest of all of it.

Everything is written to a folder beside the final one, which it replaces when it is whole: an interrupted call
leaves nothing half-written. Does not import torch.
"""

import contextlib
import gc
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cache
from hashlib import sha256 as hashed
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from .config import Config, Data, Pair
from .corpora import count_lines, files_of, read_pairs, sha256
from .errors import UserError
from .files import whole_folder
from .names import file_name
from .vocabulary import (
    SPECIALS,
    UNKNOWN,
    load_model,
    load_vocabulary,
    model_file,
    model_of,
    models_of,
    pieces_of,
    tag_of,
)

LAYOUT = 2  # of the prepared folder; grows when it changes
_CHUNK = 1000  # lines encoded at once
_PART = 500_000  # bytes of a job, at least


Numbers = np.ndarray[Any, np.dtype[Any]]


def prepare(config: Config, processes: int = 0, progress: Callable[[str, int, int], None] | None = None) -> bool:
    """Prepare the data of a config. Returns False where everything was there already and nothing had changed."""
    folder = config.data.folder.resolve()  # a link stays a link
    if folder == Path.cwd():
        raise UserError(
            f"[data] folder = {str(config.data.folder)!r} is the current folder; choose one for the data alone."
        )
    say = progress or (lambda what, done, total: None)
    say("reading", 0, 1)
    fingerprint, inputs = _fingerprint(config)
    manifest = _checked_manifest(folder)
    if manifest is not None and manifest["fingerprint"] == fingerprint and _complete(folder, manifest):
        return False
    with whole_folder(folder) as partial:
        manifest = _build(config, partial, processes, say)
        manifest |= {"layout": LAYOUT, "fingerprint": fingerprint, "settings": _settings(config), "inputs": inputs}
        manifest["files"] = {
            path.name: {"size": path.stat().st_size, "sha256": sha256(path)} for path in sorted(partial.iterdir())
        }
        (partial / "manifest.json").write_text(json.dumps(manifest, indent=1, ensure_ascii=False), encoding="utf-8")
    return True


def _fingerprint(config: Config) -> tuple[str, dict[str, str]]:
    """What the result depends on: the settings, the content of every input file, and the versions that made it."""
    splits = ["train", "dev"] + (["test"] if config.data.test else [])
    paths = {str(path) for pair in config.data.pairs for split in splits for path in files_of(config.data, pair, split)}
    inputs = {path: sha256(Path(path)) for path in sorted(paths)}
    parts = [LAYOUT, sentencepiece.__version__, _settings(config), inputs]
    return hashed(json.dumps(parts, sort_keys=True).encode()).hexdigest(), inputs


def _settings(config: Config) -> dict[str, Any]:
    """The part of a config that decides what is prepared."""
    settings: dict[str, Any] = json.loads(config.model_dump_json(include={"data", "vocabulary"}))
    del settings["data"]["folder"], settings["data"]["setting"]
    return settings


def _checked_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a prepared folder; None where there is nothing yet. A folder with anything else is refused."""
    if not folder.exists():
        return None
    if not folder.is_dir():
        raise UserError(f"{folder}: is not a folder; choose another [data] folder.")
    entries = {path.name for path in folder.iterdir()}
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        ours = set(manifest["files"]) if {"layout", "fingerprint"} <= manifest.keys() else set()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        manifest, ours = None, set()
    if strangers := sorted(entries - ours - ({"manifest.json"} if ours else set())):
        raise UserError(
            f"{folder}: holds {strangers[0]!r}, which 'multidds prepare' did not make; choose another [data] folder."
        )
    return dict(manifest) if ours else None


def _complete(folder: Path, manifest: dict[str, Any]) -> bool:
    paths = [(folder / name, facts["size"]) for name, facts in manifest["files"].items()]
    return all(path.exists() and path.stat().st_size == size for path, size in paths)


def _build(config: Config, folder: Path, processes: int, say: Callable[[str, int, int], None]) -> dict[str, Any]:
    workers = processes or os.cpu_count() or 1
    names = models_of(config)
    splits = ["train", "dev"] + (["test"] if config.data.test else [])
    jobs = _jobs(config, splits, workers)
    total, done = len(names) + len(jobs), 0
    # "spawn" starts clean processes: no locks of a progress bar are inherited.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=spawn, initializer=_start_worker) as pool, _cancelling(pool):
        training = {pool.submit(_train_model, config, name, folder): name for name in names}
        for future in _finished(training):
            future.result()
            done += 1
            say(f"sentencepiece {training[future]}", done, total)
        vocabularies = _vocabularies(config, folder)
        encoding = {pool.submit(_encode, config, job, folder): job for job in jobs}
        counted: dict[Job, dict[str, Any]] = {}
        for future in _finished(encoding):
            job = encoding[future]
            counted[job] = future.result()
            done += 1
            say(f"{job.pair.name} {job.split}", done, total)
    counts = {
        pair.name: {split: _joined(pair, split, counted, folder) for split in splits} for pair in config.data.pairs
    }
    for pair in config.data.pairs:
        for split in ("train", "dev"):
            if counts[pair.name][split]["pairs"] == 0:
                path = files_of(config.data, pair, split)[0]
                raise UserError(f"{path}: no usable sentence pair for the {split} set of {pair.name!r}.")
    return {"direction": config.data.direction, "pairs": counts, "vocabulary": vocabularies}


@contextlib.contextmanager
def _cancelling(pool: ProcessPoolExecutor) -> Iterator[None]:
    """After an error or Ctrl-C start nothing more."""
    try:
        yield
    except BrokenProcessPool:
        raise UserError("a worker process died, perhaps for want of memory; try --processes 1.") from None
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise


def _start_worker() -> None:
    """Ctrl-C is for the parent, which then cancels. Encoding makes millions of lists, and no cycles to look for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()


def _finished(futures: Iterable[Future[Any]]) -> Iterator[Future[Any]]:
    return as_completed(list(futures))


# ------------------------------------------------------------------------------------------ sentencepiece


def _train_model(config: Config, name: str, folder: Path) -> None:
    settings = config.vocabulary
    joint = settings.kind == "joint"
    sentences = _joint_sample(config) if joint else _sentences(config.data, name)
    first = next(sentences, None)
    if first is None:
        files = [str(path) for pair in config.data.pairs for path in files_of(config.data, pair, "train")]
        raise UserError(f"{', '.join(files[:2])}{', ...' if len(files) > 2 else ''}: no training text of {name!r}.")
    prefix = str(folder / model_file(name)).removesuffix(".model")
    sentencepiece.set_random_generator_seed(1)
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=chain([first], sentences),
            model_prefix=prefix,
            vocab_size=settings.size,
            character_coverage=settings.coverage,
            input_sentence_size=settings.sample,
            shuffle_input_sentence=True,
            num_threads=1,
            minloglevel=2,
        )
    except (RuntimeError, ValueError) as error:
        what = "all languages" if joint else repr(name)
        if limit := re.search(r"too high.*<= (\d+)", str(error), re.DOTALL):
            raise UserError(
                f"[vocabulary] size = {settings.size} is larger than the training text of {what} allows; "
                f"at most {limit[1]} there."
            ) from None
        if "required_chars" in str(error) or "smaller than" in str(error):
            raise UserError(
                f"[vocabulary] size = {settings.size} is too small for the characters of {what}; "
                "raise it or lower coverage."
            ) from None
        raise UserError(f"sentencepiece cannot learn from the training text of {what}: {error}") from None
    Path(f"{prefix}.vocab").unlink()


def _sentences(data: Data, language: str) -> Iterator[str]:
    """Every training sentence of a language, from all pairs that have it on a side."""
    for pair in data.pairs:
        if language in (pair.source, pair.target):
            for _, source, target in read_pairs(data, pair, "train"):
                if text := (source if language == pair.source else target).strip():
                    yield text


def _joint_sample(config: Config) -> Iterator[str]:
    """A sample of all languages with sizes^(1/temperature): small ones count for more than their size."""
    languages = list(dict.fromkeys([*config.data.sources, *config.data.targets]))
    sizes = {language: sum(1 for _ in _sentences(config.data, language)) for language in languages}
    weights = {language: size ** (1 / config.vocabulary.temperature) for language, size in sizes.items()}
    budget = min(config.vocabulary.sample, sum(sizes.values()))
    for language in languages:
        wanted = round(budget * weights[language] / sum(weights.values()))
        chosen = set(random.Random(language).sample(range(sizes[language]), min(wanted, sizes[language])))
        yield from (text for i, text in enumerate(_sentences(config.data, language)) if i in chosen)


# ------------------------------------------------------------------------------------------ vocabularies


def _vocabularies(config: Config, folder: Path) -> dict[str, int]:
    """Specials, language tags, then the pieces of all models of a side, by string identity."""
    data = config.data
    sides = {"source": data.sources, "target": data.targets}
    if config.vocabulary.kind == "joint" or data.direction == "many-to-many":
        both = tuple(dict.fromkeys([*data.sources, *data.targets]))
        sides = {"source": both, "target": both}
    tags = [tag_of(language) for language in data.targets] if len(data.targets) > 1 else []
    tokens: dict[str, list[str]] = {}
    for side, languages in sides.items():
        reserved = [*SPECIALS, *(tags if side == "source" or sides["source"] == sides["target"] else [])]
        pieces: dict[str, None] = {}
        for name in dict.fromkeys(model_of(config, language) for language in languages):
            model = load_model(folder, name)
            pieces |= dict.fromkeys(pieces_of(model))
        tokens[side] = [*reserved, *(piece for piece in pieces if piece not in reserved)]
    (folder / "vocabulary.json").write_text(json.dumps(tokens, ensure_ascii=False), encoding="utf-8")
    return {side: len(listed) for side, listed in tokens.items()}


@dataclass
class Encoder:
    """Text of one language to the token numbers of one side."""

    model: sentencepiece.SentencePieceProcessor
    numbers: Numbers  # [piece of the model] -> token of the side

    @classmethod
    def load(cls, config: Config, folder: Path, language: str, side: str) -> "Encoder":
        model = load_model(folder, model_of(config, language))
        index = {token: i for i, token in enumerate(load_vocabulary(folder)[side])}
        tags = {tag_of(target) for target in config.data.targets}  # a piece that looks like a tag is not one
        pieces = pieces_of(model)
        return cls(model, np.array([UNKNOWN if p in tags else index[p] for p in pieces], dtype=np.int32))

    def encode(self, texts: list[str]) -> list[Numbers]:
        tokens, lengths = self.encode_flat([text.strip() for text in texts])
        return np.split(tokens, np.cumsum(lengths)[:-1]) if texts else []

    def encode_flat(self, texts: list[str]) -> tuple[Numbers, Numbers]:
        """(the tokens of all texts in a row, tokens of each): making an array per text is slow."""
        # One thread: the other cores have processes of their own.
        ids = self.model.encode(texts, out_type=int, num_threads=1)
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        return self.numbers[np.fromiter(chain.from_iterable(ids), np.int32, int(lengths.sum()))], lengths


# ------------------------------------------------------------------------------------------ arrays


@dataclass(frozen=True)
class Job:
    """Lines start + 1 to stop of one split of a language pair."""

    pair: Pair
    split: str
    start: int = 0
    stop: int | None = None

    def stem(self, folder: Path) -> str:
        return str(folder / f"{file_name(self.pair.name)}.{self.split}") + (f".from-{self.start}" if self.start else "")


def _jobs(config: Config, splits: list[str], workers: int) -> list[Job]:
    """Long training files in parts, so that no process waits for the one with the longest; large jobs first."""
    jobs = [Job(pair, split) for pair in config.data.pairs for split in splits if split != "train"]
    files = {pair: files_of(config.data, pair, "train") for pair in config.data.pairs}
    sizes = {pair: sum(path.stat().st_size for path in paths) for pair, paths in files.items()}
    part = max(_PART, sum(sizes.values()) // (4 * workers))
    parts: list[tuple[float, Job]] = []
    for pair, size in sizes.items():
        count = max(1, round(size / part)) if workers > 1 else 1
        lines = max(map(count_lines, files[pair])) if count > 1 else 0
        bounds = [lines * i // count for i in range(count)]
        ends = [*bounds[1:], None]
        parts += [(size / count, Job(pair, "train", *both)) for both in zip(bounds, ends, strict=True)]
    return [job for _, job in sorted(parts, key=lambda item: -item[0])] + jobs


def _encode(config: Config, job: Job, folder: Path) -> dict[str, Any]:
    """Lines of a language pair to arrays (train, dev), or as they are (test); returns what was counted."""
    pair = job.pair
    if job.split == "test":
        return _keep_text(config, pair, folder)
    encoders = [_encoder(config, folder, lang, side) for lang, side in _sides(pair)]
    dtypes = [_dtype(folder, side) for _, side in _sides(pair)]
    lengths: tuple[list[Numbers], list[Numbers]] = ([], [])
    dropped: Counter[str] = Counter()
    stem = job.stem(folder)
    with open(f"{stem}.source.bin", "wb") as source_file, open(f"{stem}.target.bin", "wb") as target_file:
        rows = read_pairs(config.data, pair, job.split, job.start, job.stop)
        while chunk := list(islice(rows, _CHUNK)):
            texts = [[row[1].strip() for row in chunk], [row[2].strip() for row in chunk]]
            if not (all(texts[0]) and all(texts[1])):
                good = [both for both in zip(*texts, strict=True) if all(both)]
                dropped["empty side"] += len(chunk) - len(good)
                texts = [[both[i] for both in good] for i in range(2)]
            sides = [encoder.encode_flat(column) for encoder, column in zip(encoders, texts, strict=True)]
            kept = _kept(config.data, sides[0][1], sides[1][1], dropped)
            for file, (tokens, sizes), dtype, column in zip(
                (source_file, target_file), sides, dtypes, lengths, strict=True
            ):
                file.write((tokens if kept.all() else tokens[np.repeat(kept, sizes)]).astype(dtype).tobytes())
                column.append(sizes[kept])
    for (_, side), columns in zip(_sides(pair), lengths, strict=True):
        np.save(f"{stem}.{side}.lengths.npy", np.concatenate([*columns, np.zeros(0, dtype=np.int64)]))
    return {"dropped": dict(dropped)}


def _joined(pair: Pair, split: str, counted: dict[Job, dict[str, Any]], folder: Path) -> dict[str, Any]:
    """The parts of a split put together in their order."""
    jobs = sorted((job for job in counted if (job.pair, job.split) == (pair, split)), key=lambda job: job.start)
    if split == "test":
        return counted[jobs[0]]
    lengths = []
    stems = [job.stem(folder) for job in jobs]
    for _, side in _sides(pair):
        columns = [Path(f"{stem}.{side}.lengths.npy") for stem in stems]
        lengths.append(np.concatenate([np.load(path, allow_pickle=False) for path in columns]))
        np.save(f"{stems[0]}.{side}.offsets.npy", np.concatenate([[0], np.cumsum(lengths[-1])]).astype(np.int64))
        with open(f"{stems[0]}.{side}.bin", "ab") as whole:
            for stem in stems[1:]:
                with open(f"{stem}.{side}.bin", "rb") as part:
                    shutil.copyfileobj(part, whole, 1 << 20)
                Path(f"{stem}.{side}.bin").unlink()
        for path in columns:
            path.unlink()
    return {
        "pairs": len(lengths[0]),
        "dropped": dict(sum((Counter(counted[job]["dropped"]) for job in jobs), Counter())),
        "source tokens": int(lengths[0].sum()),
        "target tokens": int(lengths[1].sum()),
        "longest": [int(column.max(initial=0)) for column in lengths],
    }


def _keep_text(config: Config, pair: Pair, folder: Path) -> dict[str, Any]:
    """Test sets are scored against the raw references, so nothing is dropped and nothing is changed."""
    count = 0
    stem = folder / f"{file_name(pair.name)}.test"
    with (
        open(f"{stem}.source.txt", "w", encoding="utf-8", newline="\n") as source_file,
        open(f"{stem}.target.txt", "w", encoding="utf-8", newline="\n") as target_file,
    ):
        for _, source, target in read_pairs(config.data, pair, "test"):
            source_file.write(source.replace("\r", " ") + "\n")
            target_file.write(target.replace("\r", " ") + "\n")
            count += 1
    if count == 0:
        raise UserError(f"{files_of(config.data, pair, 'test')[0]}: the test set of {pair.name!r} is empty.")
    return {"pairs": count, "dropped": {}}


def _sides(pair: Pair) -> tuple[tuple[str, str], tuple[str, str]]:
    return (pair.source, "source"), (pair.target, "target")


@cache
def _vocabulary(folder: Path) -> dict[str, list[str]]:
    """Of the folder that a worker process encodes for: read once, not for every job."""
    return load_vocabulary(folder)


_encoders: dict[tuple[str, str], Encoder] = {}  # of a worker process, which serves one config


def _encoder(config: Config, folder: Path, language: str, side: str) -> Encoder:
    key = model_of(config, language), side
    if key not in _encoders:
        _encoders[key] = Encoder.load(config, folder, language, side)
    return _encoders[key]


def _dtype(folder: Path, side: str) -> str:
    return "uint16" if len(_vocabulary(folder)[side]) <= 2**16 else "uint32"


def _kept(data: Data, source: Numbers, target: Numbers, dropped: Counter[str]) -> Numbers:
    """Which of the pairs with these lengths are good; the others are counted under the first reason that fits."""
    shorter, longer = np.minimum(source, target), np.maximum(source, target)
    kept = np.ones(len(source), dtype=bool)
    reasons = {"empty side": shorter == 0, "too long": longer > data.max_length}
    if data.max_ratio:
        reasons["length ratio"] = longer > data.max_ratio * shorter
    for reason, bad in reasons.items():
        dropped[reason] += int((kept & bad).sum())
        kept &= ~bad
    return kept


# ------------------------------------------------------------------------------------------ reading back


class Prepared:
    """A prepared folder, opened for training, translation or evaluation."""

    def __init__(self, config: Config) -> None:
        self.folder = config.data.folder
        try:
            self.manifest = json.loads((self.folder / "manifest.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UserError(
                f"{self.folder}: nothing is prepared there; run 'multidds prepare' with the same recipe."
            ) from None
        except ValueError:
            raise UserError(f"{self.folder}: its manifest is damaged; run 'multidds prepare' again.") from None
        if self.manifest.get("layout") != LAYOUT:
            raise UserError(f"{self.folder}: was prepared by another version; run 'multidds prepare' again.")
        wanted, there = _settings(config), self.manifest["settings"]
        changed = [
            f"{part}.{key}" for part in wanted for key in wanted[part] if wanted[part][key] != there[part].get(key)
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

    @property
    def fingerprint(self) -> str:
        return str(self.manifest["fingerprint"])

    def arrays(self, pair: str, split: str, side: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """(tokens, offsets): sentence i is tokens[offsets[i] : offsets[i + 1]]. Memory-mapped."""
        stem = self.folder / f"{file_name(pair)}.{split}.{side}"
        try:
            offsets = np.load(f"{stem}.offsets.npy", mmap_mode="r", allow_pickle=False)
            dtype = "uint16" if len(self.vocabulary[side]) <= 2**16 else "uint32"
            tokens = np.memmap(f"{stem}.bin", dtype=dtype, mode="r")
        except (OSError, ValueError) as error:
            raise UserError(f"{stem}: cannot be read ({error}); run 'multidds prepare' again.") from None
        if len(tokens) != int(offsets[-1]):
            raise UserError(f"{stem}.bin: has {len(tokens)} tokens, expected {int(offsets[-1])}; prepare again.")
        return tokens, offsets

    def test_lines(self, pair: str, side: str) -> list[str]:
        path = self.folder / f"{file_name(pair)}.test.{side}.txt"
        if not path.exists():
            raise UserError(f"{path}: there is no test set for {pair!r}; set [data] test and prepare again.")
        return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
