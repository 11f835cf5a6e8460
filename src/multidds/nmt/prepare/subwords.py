"""What is learned from training text before it can be encoded: sentencepiece models, the vocabularies of both sides.

Text is read as a stream; what is kept of it is sentencepiece's sample. Does not import torch.
"""

import hashlib
import io
import random
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from ..common.checksummed import check_digest, sha256
from ..common.errors import UserError
from ..config.config import Config, Data, Pair
from .text_files import files_of, read_columns
from .vocabulary import (
    SPECIALS,
    load_model,
    load_vocabulary,
    model_digests,
    model_file,
    model_of,
    models_of,
    pieces_of,
    start_vocabulary,
    tag_of,
    write_vocabulary,
)


def train_model(config: Config, name: str, folder: Path) -> dict[str, Any]:
    """A sentencepiece model, by its name in `models_of`, of the training text; returns its digest.

    Where the text does not have as many pieces as are asked for, a model of those that it has; "limited" says how many.
    How many a text has depends on the version of sentencepiece.
    """
    sentences = _sentences(config, name)
    if next(sentences, None) is None:
        files = [str(path) for pair in config.data.pairs for path in files_of(config.data, pair, "train")]
        raise UserError(f"{', '.join(files[:2])}{', ...' if len(files) > 2 else ''}: no training text of {name!r}.")
    size, model = config.vocabulary.size, None
    while model is None:
        try:
            model = _learned(config, name, size)
        except _TooFewPiecesError as error:
            size = error.pieces
    (folder / model_file(name)).write_bytes(model)
    facts: dict[str, Any] = {"files": {model_file(name): hashlib.sha256(model).hexdigest()}}
    return facts if size == config.vocabulary.size else facts | {"limited": {name: size}}


class _TooFewPiecesError(Exception):
    """The text has only so many pieces."""

    def __init__(self, pieces: int) -> None:
        super().__init__(pieces)
        self.pieces = pieces


def _sentences(config: Config, name: str) -> Iterator[str]:
    """What a model is learned from. From more than it may take, sentencepiece would choose at random, and otherwise in
    every process.
    """
    joint = config.vocabulary.kind == "joint"
    return islice(_joint_sample(config) if joint else _sample(config, name), config.vocabulary.sample)


def _learned(config: Config, name: str, size: int) -> bytes:
    import sentencepiece

    settings = config.vocabulary
    model = io.BytesIO()  # sentencepiece itself would not notice a full disk
    mistakes: list[UserError] = []  # in the text; sentencepiece would wrap them in its own words
    sentencepiece.set_random_generator_seed(1)
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_noting(_sentences(config, name), mistakes),
            model_writer=model,
            vocab_size=size,
            character_coverage=settings.coverage,
            input_sentence_size=settings.sample,
            shuffle_input_sentence=True,
            num_threads=1,
            minloglevel=2,
        )
    except (RuntimeError, ValueError) as error:
        if mistakes:
            raise mistakes[0] from None
        if (limit := re.search(r"too high.*<= (\d+)", str(error), re.DOTALL)) and int(limit[1]) < size:
            raise _TooFewPiecesError(int(limit[1])) from None
        what = "all languages" if settings.kind == "joint" else repr(name)
        if "required_chars" in str(error) or "smaller than" in str(error):
            raise UserError(
                f"[vocabulary] size = {settings.size} is too small for the characters of {what}; "
                "raise it or lower coverage."
            ) from None
        raise UserError(f"sentencepiece cannot learn from the training text of {what}: {error}") from None
    return model.getvalue()


def copy_model(config: Config, name: str, folder: Path) -> dict[str, Any]:
    """Copies a sentencepiece model of the run in `[train] start_from`; returns its digest."""
    start, file = start_vocabulary(config), model_file(name)
    assert start is not None
    digest = model_digests(start)[file]
    check_digest(start / file, digest, "restore it from a copy, or start from another run.")
    shutil.copyfile(start / file, folder / file)
    return {"files": {file: digest}}


def _noting(sentences: Iterable[str], mistakes: list[UserError]) -> Iterator[str]:
    try:
        yield from sentences
    except UserError as mistake:
        mistakes.append(mistake)
        raise


def _sample(config: Config, language: str) -> Iterator[str]:
    """Every training sentence of a language; of more than the vocabulary's sample, so many."""
    pairs = _pairs_of(config.data)[language]
    size = sum(map(len, _blocks(config.data, language, pairs)))
    if size <= config.vocabulary.sample:
        return chain.from_iterable(_blocks(config.data, language, pairs))
    return _chosen(config.data, language, pairs, size, config.vocabulary.sample)


def _pairs_of(data: Data) -> dict[str, list[Pair]]:
    """{language: the pairs that have it on a side}."""
    found: dict[str, list[Pair]] = {}
    for pair in data.pairs:
        for language in (pair.source, pair.target):
            found.setdefault(language, []).append(pair)
    return found


def _blocks(data: Data, language: str, pairs: Iterable[Pair]) -> Iterator[list[str]]:
    """The training sentences of a language from the pairs that have it, many at a time."""
    for pair in pairs:
        for sources, targets in read_columns(data, pair, "train"):
            yield list(filter(None, sources if language == pair.source else targets))


def _joint_sample(config: Config) -> Iterator[str]:
    """A sample of all languages with sizes^(1/temperature): small ones count for more than their size."""
    languages = list(dict.fromkeys([*config.data.sources, *config.data.targets]))
    pairs, sizes = _pairs_of(config.data), _sizes(config.data)
    weights = {language: sizes[language] ** (1 / config.vocabulary.temperature) for language in languages}
    budget, total = min(config.vocabulary.sample, sum(sizes.values())), sum(weights.values()) or 1.0
    for language in languages:
        wanted = round(budget * weights[language] / total)
        yield from _chosen(config.data, language, pairs[language], sizes[language], min(wanted, sizes[language]))


def _chosen(data: Data, language: str, pairs: Iterable[Pair], size: int, wanted: int) -> Iterator[str]:
    """So many of the training sentences of a language: always the same, in their order."""
    places = np.array(random.Random(language).sample(range(size), wanted), np.int64)
    return _at(np.sort(places), _blocks(data, language, pairs))


def _sizes(data: Data) -> Counter[str]:
    """How many training sentences each language has."""
    sizes: Counter[str] = Counter()
    for pair in data.pairs:
        for sources, targets in read_columns(data, pair, "train"):
            sizes[pair.source] += sum(map(bool, sources))
            sizes[pair.target] += sum(map(bool, targets))
    return sizes


def _at(places: "np.ndarray[Any, np.dtype[np.int64]]", blocks: Iterable[list[str]]) -> Iterator[str]:
    """The sentences at these places, in ascending order, of blocks in a row."""
    before, taken = 0, 0
    for block in blocks:
        end = int(np.searchsorted(places, before + len(block)))
        yield from (block[place - before] for place in places[taken:end].tolist())
        before, taken = before + len(block), end


def write_vocabularies(config: Config, folder: Path) -> dict[str, int]:
    """Specials, language tags, then the pieces of all models of a side, by string identity; how many a side has.

    The tokens of the run in `[train] start_from` keep their numbers, and new ones follow: embeddings only grow.
    """
    data = config.data
    sides = {"source": data.sources, "target": data.targets}
    if config.vocabulary.kind == "joint" or data.direction == "many-to-many":
        both = tuple(dict.fromkeys([*data.sources, *data.targets]))
        sides = {"source": both, "target": both}
    tags = [tag_of(language) for language in data.targets] if len(data.targets) > 1 else []
    start = start_vocabulary(config)
    before = {} if start is None else load_vocabulary(start)
    tokens: dict[str, list[str]] = {}
    for side, languages in sides.items():
        reserved = [*SPECIALS, *(tags if side == "source" or sides["source"] == sides["target"] else [])]
        pieces: dict[str, None] = {}
        for name in dict.fromkeys(model_of(config, language) for language in languages):
            model = load_model(folder, name, {model_file(name): sha256(folder / model_file(name))})
            pieces |= dict.fromkeys(pieces_of(model))
        tokens[side] = list(dict.fromkeys([*before.get(side, ()), *reserved, *pieces]))
    write_vocabulary(folder, tokens, [model_file(name) for name in models_of(config)])
    return {side: len(listed) for side, listed in tokens.items()}
