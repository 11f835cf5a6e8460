"""Numbers that describe sentence pairs, for the scorer of examples: what may show that a target is not its source's.

How well the tokens of both sides go together (`lexicon`), words that both share, and lengths that do not fit. They
never change in a training, and nothing here is told which pairs are wrong.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ..batches.batch import Batch
from ..batches.sentences import Sentences
from .lexicon import Lexicon

NUMBERS = (
    "target fits source", "source fits target", "target words in the source", "source words in the target",
    "same text", "distance from the usual ratio",
)  # fmt: skip
_WORDS = re.compile(r"\w+|[^\w\s]")
_SAMPLE = 10_000
_KEPT = 500_000  # sentence pairs whose numbers are kept: 180 MB


class PairFeatures:
    """What can be known of the sentence pairs of a training before it begins. The same on every process."""

    def __init__(self, data: Mapping[str, Sentences], vocabulary: Mapping[str, Sequence[str]]) -> None:
        self._data, self._vocabulary = data, vocabulary
        self._usual_ratio = {name: _usual_ratio(sentences) for name, sentences in data.items()}
        self._lexicon = Lexicon(data)
        self._known: dict[tuple[str, int], tuple[float, ...]] = {}  # once computed

    def rows(self, origins: Iterable[tuple[str, int]]) -> Tensor:
        """The numbers of NUMBERS for sentence pairs, each by its language pair and its number there. # [B, F]"""
        if len(self._known) > _KEPT:
            self._known = {}
        found = []
        for origin in origins:
            if origin not in self._known:
                self._known[origin] = self._numbers(*origin)
            found.append(self._known[origin])
        return torch.tensor(found, dtype=torch.float64)

    def _numbers(self, name: str, i: int) -> tuple[float, ...]:
        source, target = self._data[name].sizes(i)
        distance = abs(float(np.log(target / source)) - self._usual_ratio[name])
        there, back = self._shares(name, i)
        return (*self._lexicon.fit(name, i), there, back, float(there == back == 1), distance)

    def _shares(self, name: str, i: int) -> tuple[float, float]:
        """The share of target words and marks that stand in the source too, and the other way round."""
        source, target = (_WORDS.findall(side.lower()) for side in self._data[name].text(i, self._vocabulary))
        return _share(target, set(source)), _share(source, set(target))


def sentence_of(batch: Batch) -> Tensor:
    """Which sentence each target token belongs to. # [R]"""
    return batch.target_rows.places // batch.target_rows.longest


def per_sentence(batch: Batch, values: Tensor) -> Tensor:
    """The mean over the target tokens [R] of each sentence. # [B]"""
    sentences = sentence_of(batch).to(values.device)
    sums = values.new_zeros(batch.sentences, dtype=torch.float64).index_add_(0, sentences, values.double())
    return sums / torch.bincount(sentences, minlength=batch.sentences)


def _usual_ratio(sentences: Sentences) -> float:
    """The mean logarithm of target by source length, over at most so many sentence pairs of all parts of a dataset."""
    places = np.linspace(0, len(sentences) - 1, min(len(sentences), _SAMPLE)).astype(int).tolist()
    sizes = np.array([sentences.sizes(i) for i in places], np.float64)
    return float(np.log(sizes[:, 1] / sizes[:, 0]).mean())


def _share(words: list[str], others: set[str]) -> float:
    return sum(word in others for word in words) / len(words) if words else 0.0
