"""Features of sentence pairs that may show that a target does not belong to its source.

The association of the tokens of both sides (`lexicon`), words that both sides share, and unusual ratios of lengths.
They never change in a training, and nothing here uses labels of wrong pairs.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ..batches.batch import Batch
from ..batches.sentences import Sentences
from .lexicon import Lexicon

FEATURES = (
    "target fits source",
    "source fits target",
    "target words in the source",
    "source words in the target",
    "same text",
    "distance from the usual ratio",
)
_WORDS = re.compile(r"\w+|[^\w\s]")
_SAMPLE = 10_000  # sentence pairs of a dataset, for its usual ratio of lengths
_MOST_ROWS = 500_000  # kept in memory: 180 MB


class PairFeatures:
    """The features of the sentence pairs of a training; the same on every process."""

    def __init__(self, data: Mapping[str, Sentences], vocabulary: Mapping[str, Sequence[str]]) -> None:
        self._data, self._vocabulary = data, vocabulary
        self._usual_ratio = {name: _usual_ratio(sentences) for name, sentences in data.items()}
        self._lexicon = Lexicon(data)
        self._rows: dict[tuple[str, int], tuple[float, ...]] = {}  # those computed so far

    def rows(self, origins: Iterable[tuple[str, int]]) -> Tensor:
        """Returns the FEATURES of sentence pairs, each given by its language pair and its number there. # [B, F]"""
        if len(self._rows) > _MOST_ROWS:
            self._rows = {}
        rows = []
        for origin in origins:
            if origin not in self._rows:
                self._rows[origin] = self._row(*origin)
            rows.append(self._rows[origin])
        return torch.tensor(rows, dtype=torch.float64)

    def _row(self, name: str, i: int) -> tuple[float, ...]:
        source, target = self._data[name].sizes(i)
        distance = abs(float(np.log(target / source)) - self._usual_ratio[name])
        there, back = self._shares(name, i)
        return (*self._lexicon.fit(name, i), there, back, float(there == back == 1), distance)

    def _shares(self, name: str, i: int) -> tuple[float, float]:
        """Returns the share of target words and marks that stand in the source too, and the other way round."""
        source, target = (_WORDS.findall(side.lower()) for side in self._data[name].text(i, self._vocabulary))
        return _share(target, set(source)), _share(source, set(target))


def per_sentence(batch: Batch, values: Tensor) -> Tensor:  # [R] -> [B]
    """Returns the mean of values of target tokens over each sentence."""
    sentences = (batch.target_rows.places // batch.target_rows.longest).to(values.device)
    sums = values.new_zeros(batch.sentences, dtype=torch.float64).index_add_(0, sentences, values.double())
    return sums / torch.bincount(sentences, minlength=batch.sentences)


def _usual_ratio(sentences: Sentences) -> float:
    """Returns the mean of log(target length / source length) over a sample from all parts of a dataset."""
    places = np.linspace(0, len(sentences) - 1, min(len(sentences), _SAMPLE)).astype(int).tolist()
    sizes = np.array([sentences.sizes(i) for i in places], np.float64)
    return float(np.log(sizes[:, 1] / sizes[:, 0]).mean())


def _share(words: list[str], others: set[str]) -> float:
    return sum(word in others for word in words) / len(words) if words else 0.0
