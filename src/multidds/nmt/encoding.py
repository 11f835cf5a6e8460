"""Lines of text to memory-mapped token arrays, in parts that processes share. prepare.py starts them.

Training and dev sets are filtered and become arrays; test sets stay text. Does not import torch.
"""

import shutil
from collections import Counter
from dataclasses import dataclass
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .config import Config, Data, Pair
from .corpora import count_lines, files_of, read_pairs
from .errors import UserError
from .names import file_name
from .vocabulary import UNKNOWN, load_model, load_vocabulary, model_of, pieces_of, tag_of

if TYPE_CHECKING:
    import sentencepiece

CHUNK = 1000  # lines encoded at once
SMALLEST_PART = 500_000  # bytes

Numbers = np.ndarray[Any, np.dtype[Any]]


@dataclass
class Encoder:
    """Text of one language to the token numbers of one side."""

    model: "sentencepiece.SentencePieceProcessor"
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


@dataclass(frozen=True)
class Part:
    """Lines start + 1 to stop of one split of a language pair."""

    pair: Pair
    split: str
    start: int = 0
    stop: int | None = None

    def stem(self, folder: Path) -> str:
        return str(folder / f"{file_name(self.pair.name)}.{self.split}") + (f".from-{self.start}" if self.start else "")


def parts_of(config: Config, splits: list[str], workers: int) -> list[Part]:
    """Long training files in several, so that no process waits for the one with the longest; the large ones first."""
    whole = [Part(pair, split) for pair in config.data.pairs for split in splits if split != "train"]
    files = {pair: files_of(config.data, pair, "train") for pair in config.data.pairs}
    sizes = {pair: sum(path.stat().st_size for path in paths) for pair, paths in files.items()}
    smallest = max(SMALLEST_PART, sum(sizes.values()) // (4 * workers))
    parts: list[tuple[float, Part]] = []
    for pair, size in sizes.items():
        count = max(1, round(size / smallest)) if workers > 1 else 1
        lines = max(map(count_lines, files[pair])) if count > 1 else 0
        bounds = [lines * i // count for i in range(count)]
        ends = [*bounds[1:], None]
        parts += [(size / count, Part(pair, "train", *both)) for both in zip(bounds, ends, strict=True)]
    return [part for _, part in sorted(parts, key=lambda item: -item[0])] + whole


def encode_part(config: Config, part: Part, folder: Path) -> dict[str, Any]:
    """Lines of a language pair to arrays (train, dev), or as they are (test); returns what was counted."""
    pair = part.pair
    if part.split == "test":
        return _keep_text(config, pair, folder)
    encoders = [_encoder(config, folder, lang, side) for lang, side in _sides(pair)]
    dtypes = [token_type(len(_vocabulary(folder)[side])) for _, side in _sides(pair)]
    lengths: tuple[list[Numbers], list[Numbers]] = ([], [])
    dropped: Counter[str] = Counter()
    stem = part.stem(folder)
    with open(f"{stem}.source.bin", "wb") as source_file, open(f"{stem}.target.bin", "wb") as target_file:
        rows = read_pairs(config.data, pair, part.split, part.start, part.stop)
        while chunk := list(islice(rows, CHUNK)):
            texts = [[source.strip() for _, source, _ in chunk], [target.strip() for _, _, target in chunk]]
            if not (all(texts[0]) and all(texts[1])):
                good = [both for both in zip(*texts, strict=True) if all(both)]
                dropped["empty side"] += len(chunk) - len(good)
                texts = [[source for source, _ in good], [target for _, target in good]]
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


def joined(pair: Pair, split: str, counted: dict[Part, dict[str, Any]], folder: Path) -> dict[str, Any]:
    """The parts of a split put together in their order."""
    parts = sorted((part for part in counted if (part.pair, part.split) == (pair, split)), key=lambda part: part.start)
    if split == "test":
        return counted[parts[0]]
    lengths = []
    stems = [part.stem(folder) for part in parts]
    for _, side in _sides(pair):
        columns = [Path(f"{stem}.{side}.lengths.npy") for stem in stems]
        lengths.append(np.concatenate([np.load(path, allow_pickle=False) for path in columns]))
        np.save(f"{stems[0]}.{side}.offsets.npy", np.concatenate([[0], np.cumsum(lengths[-1])]).astype(np.int64))
        with open(f"{stems[0]}.{side}.bin", "ab") as whole:
            for stem in stems[1:]:
                with open(f"{stem}.{side}.bin", "rb") as piece:
                    shutil.copyfileobj(piece, whole, 1 << 20)
                Path(f"{stem}.{side}.bin").unlink()
        for path in columns:
            path.unlink()
    return {
        "pairs": len(lengths[0]),
        "dropped": dict(sum((Counter(counted[part]["dropped"]) for part in parts), Counter())),
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
    """Of the folder that a worker process encodes for: read once, not for every part."""
    return load_vocabulary(folder)


_encoders: dict[tuple[str, str], Encoder] = {}  # of a worker process, which serves one config


def _encoder(config: Config, folder: Path, language: str, side: str) -> Encoder:
    key = model_of(config, language), side
    if key not in _encoders:
        _encoders[key] = Encoder.load(config, folder, language, side)
    return _encoders[key]


def token_type(tokens: int) -> str:
    """Of the arrays of a side that has so many tokens."""
    return "uint16" if tokens <= 2**16 else "uint32"


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
