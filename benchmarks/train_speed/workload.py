"""The input of the contestants of train_speed.py: the sizes, and batches of made-up or prepared sentences."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from multidds import Mixture
from multidds.nmt.batches.batch import Batch, assemble, cut
from multidds.nmt.batches.sentences import Sentences
from multidds.nmt.batches.stream import Stream
from multidds.nmt.config.config import load_config
from multidds.nmt.prepare import Prepared

SIZES = {
    "tiny": {"encoder_layers": 1, "decoder_layers": 1, "width": 32, "inner": 64, "heads": 2},
    "small": {"encoder_layers": 3, "decoder_layers": 3, "width": 256, "inner": 512, "heads": 4},
    "paper": {"encoder_layers": 6, "decoder_layers": 6, "width": 512, "inner": 1024, "heads": 4},
}
TOKENS = {"tiny": 256, "small": 4096, "paper": 4800}
DROPOUT = 0.3
SMOOTHING = 0.1
CLIP = 25.0
_WORDS = 8000
_LONGEST = 150
_POOL = 50  # batches
_UNKNOWN = 0  # <unk>, which is the peers' padding here


@dataclass(frozen=True)
class Workload:
    settings: dict[str, int]  # of the model
    words: int  # of either vocabulary
    longest: int  # positions
    batches: list[Batch]


def made_up(size: str, tokens: int, count: int) -> Workload:
    return Workload(SIZES[size], _WORDS, _LONGEST + 2, _made_up_batches(count, tokens))


def prepared(size: str, tokens: int, count: int, recipe: Path) -> Workload:
    """Batches as training makes them, of the sentences that a recipe has prepared."""
    config = load_config(recipe)
    ready = Prepared(config)
    data = {name: Sentences(ready, name, "train") for name in config.data.names}
    mixture = Mixture.proportional({name: len(sentences) for name, sentences in data.items()})
    stream = Stream(data, mixture, tokens=tokens, accumulate=1, pool=_POOL, mixing="example", seed=0)
    words = max(len(vocabulary) for vocabulary in ready.vocabulary.values())
    taken = [stream.next(_POOL)[0][0] for _ in range(count)]
    for batch in taken:
        for tensor in (batch.source, batch.target_in, batch.target_out):
            tensor[tensor == _UNKNOWN] = words - 1
    return Workload(SIZES[size], words, config.data.max_length + 2, taken)


class _MadeUp:
    """Sentences of random tokens with lengths like TED's: lognormal, mean 25."""

    name, tag = "made-up", None

    def __init__(self, count: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        lengths = np.clip(np.exp(rng.normal(math.log(25) - 0.6**2 / 2, 0.6, count)), 1, _LONGEST)
        other = np.clip(lengths * np.exp(rng.normal(0, 0.15, count)), 1, _LONGEST)
        self.source_lengths, self.target_lengths = (np.round(x).astype(np.int32) + 1 for x in (lengths, other))
        self.source_offsets, self.target_offsets = (
            np.concatenate([[0], np.cumsum(x - 1)]) for x in (self.source_lengths, self.target_lengths)
        )
        # Zipf's law, as far as the embeddings' gradients can see it.
        self.source, self.target = (
            np.minimum(rng.zipf(1.2, offsets[-1]) + 4, _WORDS - 1)
            for offsets in (self.source_offsets, self.target_offsets)
        )

    def sizes(self, i: int) -> tuple[int, int]:
        return int(self.source_lengths[i]), int(self.target_lengths[i])

    def tokens(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        source, target = (
            tokens[offsets[i] : offsets[i + 1]]
            for tokens, offsets in ((self.source, self.source_offsets), (self.target, self.target_offsets))
        )
        return source, target


def _made_up_batches(count: int, tokens: int) -> list[Batch]:
    """As in training: a pool of draws, sorted, cut and shuffled. From a smaller pool there would be more padding."""
    sentences = _MadeUp(2 * _POOL * tokens // 25)
    longer = np.maximum(sentences.source_lengths, sentences.target_lengths)
    enough = int(np.searchsorted(np.cumsum(longer), _POOL * tokens))
    pool = cut([(sentences, i) for i in range(enough)], _POOL)
    return [assemble(pool[i]) for i in np.random.default_rng([0, 0]).permutation(len(pool))[:count]]


def arithmetic(work: Workload, batch: Batch) -> float:
    """Multiplications and additions of a step's matrix products: three times those of the forward pass."""
    s = work.settings
    width, feed = s["width"], 2 * s["width"] * s["inner"]
    source, target = (
        torch.bincount(rows.places // rows.longest, minlength=rows.sentences).double()
        for rows in (batch.source_rows, batch.target_rows)
    )
    # A causal product is counted in full: nobody saves the other half at these lengths.
    attention = s["encoder_layers"] * source @ source + s["decoder_layers"] * (target @ target + target @ source)
    rows = s["encoder_layers"] * source.sum() * (4 * width**2 + feed)
    rows += s["decoder_layers"] * (target.sum() * (6 * width**2 + feed) + source.sum() * 2 * width**2)
    return float(3 * 2 * (rows + 2 * width * attention + target.sum() * width * work.words))
