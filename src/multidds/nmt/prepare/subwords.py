"""Sentencepiece models, learned from training text, and the vocabularies of both sides.

Text is read as a stream; sentencepiece keeps a sample of it. Does not import torch.
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

from multidds._base.errors import UserError

from ..common.checksummed import check_digest, sha256
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


class _TooFewPiecesError(Exception):
    """A text with fewer pieces than are asked for. Its argument is how many it has."""


def train_model(config: Config, name: str, folder: Path) -> dict[str, Any]:
    """Learns the sentencepiece model of a name in `models_of` from the training text. Returns its digest.

    If the text has fewer pieces than are asked for, the model has as many as there are, and "limited" is their number.
    It depends on the version of sentencepiece.
    """
    if next(_sentences(config, name), None) is None:
        files = [str(path) for pair in config.data.pairs for path in files_of(config.data, pair, "train")]
        raise UserError(f"{', '.join(files[:2])}{', ...' if len(files) > 2 else ''}: no training text of {name!r}.")
    size, model = config.vocabulary.size, None
    while model is None:
        try:
            model = _learned(config, name, size)
        except _TooFewPiecesError as error:
            size = error.args[0]
    (folder / model_file(name)).write_bytes(model)
    facts: dict[str, Any] = {"files": {model_file(name): hashlib.sha256(model).hexdigest()}}
    return facts if size == config.vocabulary.size else facts | {"limited": {name: size}}


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


def _noting(sentences: Iterable[str], mistakes: list[UserError]) -> Iterator[str]:
    try:
        yield from sentences
    except UserError as mistake:
        mistakes.append(mistake)
        raise


def copy_model(config: Config, name: str, folder: Path) -> dict[str, Any]:
    """Copies a sentencepiece model of the run in `[train] start_from`. Returns its digest."""
    start, file = start_vocabulary(config), model_file(name)
    assert start is not None
    digest = model_digests(start)[file]
    check_digest(start / file, digest, "restore it from a copy, or start from another run.")
    shutil.copyfile(start / file, folder / file)
    return {"files": {file: digest}}


# ---------------------------------------------------------------------------------------------- the sample


def _sentences(config: Config, name: str) -> Iterator[str]:
    """Yields the sentences for a model, no more than its sample: of more, sentencepiece would choose at random."""
    if config.vocabulary.kind == "joint":
        return islice(_joint_sample(config), config.vocabulary.sample)
    pairs = _pairs_of(config.data)[name]
    size = sum(map(len, _blocks(config.data, name, pairs)))
    if size <= config.vocabulary.sample:
        return chain.from_iterable(_blocks(config.data, name, pairs))
    return _chosen(config.data, name, pairs, size, config.vocabulary.sample)


def _joint_sample(config: Config) -> Iterator[str]:
    """Yields a sample of all languages with sizes^(1/temperature): small ones count for more than their size."""
    languages = list(dict.fromkeys([*config.data.sources, *config.data.targets]))
    pairs = _pairs_of(config.data)
    sizes: Counter[str] = Counter()
    for pair in config.data.pairs:
        for sources, targets in read_columns(config.data, pair, "train"):
            sizes[pair.source] += sum(map(bool, sources))
            sizes[pair.target] += sum(map(bool, targets))
    weights = {language: sizes[language] ** (1 / config.vocabulary.temperature) for language in languages}
    budget, total = min(config.vocabulary.sample, sum(sizes.values())), sum(weights.values()) or 1.0
    for language in languages:
        wanted = min(round(budget * weights[language] / total), sizes[language])
        yield from _chosen(config.data, language, pairs[language], sizes[language], wanted)


def _pairs_of(data: Data) -> dict[str, list[Pair]]:
    """Returns {language: the pairs that have it on a side}."""
    by_language: dict[str, list[Pair]] = {}
    for pair in data.pairs:
        for language in (pair.source, pair.target):
            by_language.setdefault(language, []).append(pair)
    return by_language


def _blocks(data: Data, language: str, pairs: Iterable[Pair]) -> Iterator[list[str]]:
    """Yields the training sentences of a language in some pairs, many at a time."""
    for pair in pairs:
        for sources, targets in read_columns(data, pair, "train"):
            yield list(filter(None, sources if language == pair.source else targets))


def _chosen(data: Data, language: str, pairs: Iterable[Pair], size: int, wanted: int) -> Iterator[str]:
    """Yields `wanted` of the `size` training sentences of a language: always the same, in their order."""
    places = np.sort(np.array(random.Random(language).sample(range(size), wanted), np.int64))
    before, taken = 0, 0
    for block in _blocks(data, language, pairs):
        end = int(np.searchsorted(places, before + len(block)))
        yield from (block[place - before] for place in places[taken:end].tolist())
        before, taken = before + len(block), end


# ---------------------------------------------------------------------------------------------- vocabularies


def write_vocabularies(config: Config, folder: Path) -> dict[str, int]:
    """Writes the tokens of both sides: specials, language tags, then the pieces of all models. Returns their numbers.

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
