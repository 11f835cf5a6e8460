"""Lines of text to the token numbers of a shard.

Sentence pairs of training and dev sets are filtered and become tokens; test sets stay text. Does not import torch.
"""

import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from multidds._base.errors import UserError
from multidds._base.escaping import file_name

from ..common.checksummed import sha256
from ..config.config import Config, Data, Pair
from .shard_files import Numbers, ShardWriter, token_type
from .shard_plan import Shard, Span
from .text_files import files_of, read_columns, read_pairs
from .vocabulary import UNKNOWN, load_model, load_vocabulary, model_digests, model_of, pieces_of, tag_of

if TYPE_CHECKING:
    import sentencepiece

_MODELS = 16  # sentencepiece models that a process keeps: those of a few languages, not of ten thousand
_COUNTS = ("pairs", "source tokens", "target tokens", "longer")


@dataclass
class Encoder:
    """Text of one language to the token numbers of one side."""

    model: "sentencepiece.SentencePieceProcessor"
    numbers: Numbers  # [piece of the model] -> token of the side

    @classmethod
    def load(cls, config: Config, folder: Path, language: str, side: str) -> "Encoder":
        """Loads the encoder of a language for "source" or "target" from a prepared folder."""
        model = load_model(folder, model_of(config, language))
        return cls.of(config, model, _numbered(load_vocabulary(folder)[side]))

    @classmethod
    def of(cls, config: Config, model: "sentencepiece.SentencePieceProcessor", tokens: Mapping[str, int]) -> "Encoder":
        tags = {tag_of(target) for target in config.data.targets}  # a piece that looks like a tag is not one
        numbers = [UNKNOWN if piece in tags else tokens[piece] for piece in pieces_of(model)]
        return cls(model, np.array(numbers, dtype=token_type(len(tokens))))

    def encode(self, texts: list[str]) -> list[Numbers]:
        """Returns the tokens of each text."""
        tokens, lengths = self.encode_flat([text.strip() for text in texts])
        return np.split(tokens, np.cumsum(lengths)[:-1]) if texts else []

    def encode_flat(self, texts: list[str]) -> tuple[Numbers, Numbers]:
        """Returns (the tokens of all texts in a row, tokens of each): making an array per text is slow."""
        # One thread: the other cores have processes of their own.
        ids = self.model.encode(texts, out_type=int, num_threads=1)
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        # The fastest way from lists of numbers to one array.
        flat = struct.pack(f"={int(lengths.sum())}I", *chain.from_iterable(ids))
        return self.numbers[np.frombuffer(flat, np.uint32)], lengths


class ShardEncoder:
    """The encoder of a process: it reads vocabularies once, and keeps the models of a few languages.

    config: of the run.
    folder: with the vocabulary and the models, where shards are written.
    """

    def __init__(self, config: Config, folder: Path) -> None:
        self._config, self._folder = config, folder
        self._tokens = {side: _numbered(tokens) for side, tokens in load_vocabulary(folder).items()}
        self._digests = model_digests(folder)
        self._tags = int(len(config.data.targets) > 1)
        self._encoder = lru_cache(maxsize=_MODELS)(self._load)

    def encode(self, shard: Shard) -> dict[str, Any]:
        """Writes a shard. Returns its digest, its tokens, and the counts of every span."""
        types = [token_type(len(self._tokens[side])) for side in ("source", "target")]
        with ShardWriter(self._folder / shard.file, types) as writer:
            spans = [self._encode_span(span, shard.split, writer) for span in shard.spans]
        return {"files": {shard.file: writer.digest}, "tokens": writer.tokens, "spans": spans}

    def _encode_span(self, span: Span, split: str, writer: ShardWriter) -> dict[str, Any]:
        pair, data = span.pair, self._config.data
        sides = ((pair.source, "source"), (pair.target, "target"))
        encoders = [self._encoder(model_of(self._config, language), side) for language, side in sides]
        counts: Counter[str] = Counter()
        dropped: Counter[str] = Counter()
        longest = np.zeros(2, np.int64)
        for columns in read_columns(data, pair, split, span.start, span.stop, span.places):
            texts = _without_empty(columns, dropped)
            encoded = [encoder.encode_flat(column) for encoder, column in zip(encoders, texts, strict=True)]
            lengths = np.stack([sizes for _, sizes in encoded], axis=1)  # [pairs, 2]
            kept = _kept(data, lengths, dropped)
            source, target = (tokens[np.repeat(kept, sizes)] for tokens, sizes in encoded)
            lengths = lengths[kept]
            writer.add(source, target, lengths)
            longer = int(np.maximum(lengths[:, 0] + self._tags, lengths[:, 1]).sum())
            counts.update(dict(zip(_COUNTS, (len(lengths), len(source), len(target), longer), strict=True)))
            longest = np.maximum(longest, lengths.max(axis=0, initial=0))
        return {**counts, "dropped": dict(+dropped), "longest": longest.tolist()}

    def _load(self, name: str, side: str) -> Encoder:
        return Encoder.of(self._config, load_model(self._folder, name, self._digests), self._tokens[side])


def total_counts(spans: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the sums over all spans of a split of a language pair.

    "longer" are the tokens of the longer side of every sentence pair, with a tag if there are several targets.
    """
    total: dict[str, Any] = {"pairs": 0, "dropped": Counter[str](), **dict.fromkeys(_COUNTS[1:], 0), "longest": [0, 0]}
    for span in spans:
        for key in _COUNTS:
            total[key] += span.get(key, 0)
        total["dropped"].update(span["dropped"])
        total["longest"] = [max(both) for both in zip(total["longest"], span["longest"], strict=True)]
    return {**total, "dropped": dict(total["dropped"])}


def copy_tests(config: Config, pairs: Sequence[Pair], folder: Path) -> dict[str, Any]:
    """Copies test sets, unfiltered: translations are scored against the raw text. Returns digests and sizes."""
    facts: dict[str, Any] = {"files": {}, "pairs": {}}
    for pair in pairs:
        texts = list(read_pairs(config.data, pair, "test"))
        if not texts:
            raise UserError(f"{files_of(config.data, pair, 'test')[0]}: the test set of {pair.name!r} is empty.")
        for column, side in enumerate(("source", "target")):
            path = folder / f"{file_name(pair.name)}.test.{side}.txt"
            path.write_bytes("".join(both[column].replace("\r", " ") + "\n" for both in texts).encode())
            facts["files"][path.name] = sha256(path)
        facts["pairs"][pair.name] = len(texts)
    return facts


def _numbered(tokens: Sequence[str]) -> dict[str, int]:
    return {token: number for number, token in enumerate(tokens)}


def _without_empty(columns: Sequence[list[str]], dropped: Counter[str]) -> Sequence[list[str]]:
    if all(columns[0]) and all(columns[1]):
        return columns
    good = [both for both in zip(*columns, strict=True) if all(both)]
    dropped["empty side"] += len(columns[0]) - len(good)
    return [source for source, _ in good], [target for _, target in good]


def _kept(data: Data, lengths: Numbers, dropped: Counter[str]) -> Numbers:
    """Returns which sentence pairs of these lengths are kept; the others are counted under their first reason."""
    shorter, longer = np.minimum(lengths[:, 0], lengths[:, 1]), np.maximum(lengths[:, 0], lengths[:, 1])
    kept = np.ones(len(lengths), dtype=bool)
    reasons = {"empty side": shorter == 0, "too long": longer > data.max_length}
    if data.max_ratio:
        reasons["length ratio"] = longer > data.max_ratio * shorter
    for reason, bad in reasons.items():
        dropped[reason] += int((kept & bad).sum())
        kept &= ~bad
    return kept
