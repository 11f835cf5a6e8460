"""From text to a prepared folder: sentencepiece models, vocabularies, arrays, and a manifest of all of it.

Everything is written to a folder beside the final one, which it replaces when it is whole: an interrupted call
leaves nothing half-written. The manifest has a digest of every file, which is checked when the file is first read.
encoding.py makes the arrays. Does not import torch.
"""

import contextlib
import gc
import io
import json
import multiprocessing
import os
import random
import re
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from hashlib import sha256 as hashed
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from .catalogues.folder import check_made
from .config import Config, Data
from .corpora import files_of, read_pairs
from .encoding import Part, encode_part, joined, parts_of, token_type
from .errors import DamagedError, UserError
from .files import LOCK, locked, whole_folder
from .names import file_name
from .sealed import check_digest, read_sealed, sealed, sha256
from .vocabulary import (
    SPECIALS,
    load_model,
    load_vocabulary,
    model_file,
    model_of,
    models_of,
    pieces_of,
    tag_of,
    write_vocabulary,
)

LAYOUT = 3  # of the prepared folder; grows when it changes


_FIRST_SEALED = 3
MANIFEST = "manifest.json"
_AGAIN = "run 'multidds prepare' again."
_AWAY = "move the folder away, or choose another [data] folder, and run 'multidds prepare' again."


def prepare(
    config: Config,
    processes: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
    notice: Callable[[str], None] = lambda text: None,
) -> bool:
    """Prepare the data of a config. Returns False where everything was there already and nothing had changed.

    What is damaged is made again; `notice` is told.
    """
    folder = config.data.folder.resolve()  # a link stays a link
    if folder == Path.cwd():
        raise UserError(
            f"[data] folder = {str(config.data.folder)!r} is the current folder; choose one for the data alone."
        )
    say = progress or (lambda what, done, total: None)
    say("reading", 0, 1)
    fingerprint, inputs = _fingerprint(config)
    if _is_there(folder, fingerprint, notice):
        return False
    with locked(folder.with_name(folder.name + LOCK), f"{folder}: is being prepared by another process."):
        if _is_there(folder, fingerprint, lambda text: None):  # made while we looked
            return False
        with whole_folder(folder) as partial:
            manifest = _build(config, partial, processes, say)
            manifest |= {"layout": LAYOUT, "fingerprint": fingerprint, "settings": _settings(config), "inputs": inputs}
            manifest["files"] = {path.name: sha256(path) for path in sorted(partial.iterdir())}
            (partial / MANIFEST).write_bytes(sealed(manifest))
    return True


def _is_there(folder: Path, fingerprint: str, notice: Callable[[str], None]) -> bool:
    """Whether just this is prepared there, and whole."""
    manifest = _checked_manifest(folder)
    if manifest is None or (manifest["layout"], manifest["fingerprint"]) != (LAYOUT, fingerprint):
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
        manifest = read_sealed(folder / MANIFEST, _AWAY)
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


def _fingerprint(config: Config) -> tuple[str, dict[str, str]]:
    """What the result depends on: the settings, the content of every input file, and the versions that made it."""
    import sentencepiece

    splits = ["train", "dev"] + (["test"] if config.data.test else [])
    paths = {str(path) for pair in config.data.pairs for split in splits for path in files_of(config.data, pair, split)}
    inputs = {path: sha256(Path(path)) for path in sorted(paths)}
    for path, digest in inputs.items():
        check_made(Path(path), digest)
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
    manifest = _older(folder) if MANIFEST in entries else {"files": {}}
    if manifest is None:
        manifest = read_sealed(folder / MANIFEST, _AWAY)
    ours = {*manifest["files"], *([MANIFEST] if manifest["files"] else [])}
    if strangers := sorted(entries - ours):
        raise UserError(
            f"{folder}: holds {strangers[0]!r}, which 'multidds prepare' did not make; choose another [data] folder."
        )
    return manifest if manifest["files"] else None


def _build(config: Config, folder: Path, processes: int, say: Callable[[str, int, int], None]) -> dict[str, Any]:
    workers = processes or os.cpu_count() or 1
    names = models_of(config)
    splits = ["train", "dev"] + (["test"] if config.data.test else [])
    parts = parts_of(config, splits, workers)
    total, done = len(names) + len(parts), 0
    # "spawn" starts clean processes: no locks of a progress bar are inherited.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=spawn, initializer=_start_worker) as pool, _cancelling(pool):
        training = {pool.submit(_train_model, config, name, folder): name for name in names}
        for future in _finished(training):
            future.result()
            done += 1
            say(f"sentencepiece {training[future]}", done, total)
        vocabularies = _vocabularies(config, folder)
        encoding = {pool.submit(encode_part, config, part, folder): part for part in parts}
        counted: dict[Part, dict[str, Any]] = {}
        for future in _finished(encoding):
            part = encoding[future]
            counted[part] = future.result()
            done += 1
            say(f"{part.pair.name} {part.split}", done, total)
    counts = {
        pair.name: {split: joined(pair, split, counted, folder) for split in splits} for pair in config.data.pairs
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


def _train_model(config: Config, name: str, folder: Path) -> None:
    settings = config.vocabulary
    joint = settings.kind == "joint"
    sentences = _joint_sample(config) if joint else _sentences(config.data, name)
    first = next(sentences, None)
    if first is None:
        files = [str(path) for pair in config.data.pairs for path in files_of(config.data, pair, "train")]
        raise UserError(f"{', '.join(files[:2])}{', ...' if len(files) > 2 else ''}: no training text of {name!r}.")
    import sentencepiece

    model = io.BytesIO()  # sentencepiece itself would not notice a full disk
    mistakes: list[UserError] = []  # in the text; sentencepiece would wrap them in its own words
    sentencepiece.set_random_generator_seed(1)
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_noting(chain([first], sentences), mistakes),
            model_writer=model,
            vocab_size=settings.size,
            character_coverage=settings.coverage,
            input_sentence_size=settings.sample,
            shuffle_input_sentence=True,
            num_threads=1,
            minloglevel=2,
        )
    except (RuntimeError, ValueError) as error:
        if mistakes:
            raise mistakes[0] from None
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
    (folder / model_file(name)).write_bytes(model.getvalue())


def _noting(sentences: Iterable[str], mistakes: list[UserError]) -> Iterator[str]:
    try:
        yield from sentences
    except UserError as mistake:
        mistakes.append(mistake)
        raise


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
            model = load_model(folder, name, {model_file(name): sha256(folder / model_file(name))})
            pieces |= dict.fromkeys(pieces_of(model))
        tokens[side] = [*reserved, *(piece for piece in pieces if piece not in reserved)]
    write_vocabulary(folder, tokens, models_of(config))
    return {side: len(listed) for side, listed in tokens.items()}


class Prepared:
    """A prepared folder, opened for training, translation or evaluation."""

    def __init__(self, config: Config) -> None:
        self.folder = config.data.folder
        self.manifest = read_manifest(self.folder)
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
        """(tokens, offsets): sentence i is tokens[offsets[i] : offsets[i + 1]]. Checked, then memory-mapped."""
        stem = self.folder / f"{file_name(pair)}.{split}.{side}"
        for ending in (".offsets.npy", ".bin"):
            self._check(Path(f"{stem}{ending}"))
        try:
            offsets = np.load(f"{stem}.offsets.npy", mmap_mode="r", allow_pickle=False)
            tokens = np.memmap(f"{stem}.bin", dtype=token_type(len(self.vocabulary[side])), mode="r")
        except (OSError, ValueError) as error:
            raise UserError(f"{stem}: cannot be read ({error}); run 'multidds prepare' again.") from None
        if len(tokens) != int(offsets[-1]):
            raise UserError(f"{stem}.bin: has {len(tokens)} tokens, expected {int(offsets[-1])}; prepare again.")
        return tokens, offsets

    def test_lines(self, pair: str, side: str) -> list[str]:
        path = self.folder / f"{file_name(pair)}.test.{side}.txt"
        if not path.exists():
            raise UserError(f"{path}: there is no test set for {pair!r}; set [data] test and prepare again.")
        self._check(path)
        return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")

    def _check(self, path: Path) -> None:
        check_digest(path, self.manifest["files"].get(path.name), _AGAIN)
