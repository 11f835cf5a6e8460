"""Association of source and target tokens in the training pairs: how well a target fits its source.

    p(t | s) = (pairs with s and t + a p(t)) / (pairs with s + a),        of other pairs than the one that is judged
    fit      = mean over the tokens t of the target of log max_s p(t | s) / p(t), and the same with the sides exchanged

A token counts much if it is much more likely beside one of the source's tokens than anywhere. Wrong pairs are counted
too, but their tokens stand together at random. No dev sets and no labels of wrong pairs are used.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..batches.sentences import Sentences

_MOST = 2**26  # pairs of tokens that are counted, about: half a minute at most
_AT_ONCE = 2**22  # of them: 32 MB
_SHRINKAGE = 3.0  # a, in sentence pairs: a source token that was hardly seen counts little
_LENGTH_SAMPLE = 20  # sentence pairs of a dataset, to estimate its number of pairs of tokens

Tokens = np.ndarray[Any, np.dtype[np.int64]]


class Lexicon:
    """Counts over a sample of the training pairs of all datasets, the same in every process."""

    def __init__(self, data: Mapping[str, Sentences], most: int = _MOST) -> None:
        self._data = data
        self._counted = _sample(data, most)  # {dataset: numbers of sentence pairs, ascending}
        self._pairs = sum(map(len, self._counted.values()))
        met, sources, targets = _Counts(), _Counts(), _Counts()
        for name, places in self._counted.items():
            for i in places.tolist():
                source, target = self._sides(name, i)
                met.add(_met(source, target))
                sources.add(source)
                targets.add(target)
        self._met, self._sources, self._targets = met.found(), sources.found(), targets.found()

    def fit(self, name: str, i: int) -> tuple[float, float]:
        """Returns the fit of the target of a sentence pair to its source, and of the source to the target."""
        source, target = self._sides(name, i)
        if not (len(source) and len(target)):
            return 0.0, 0.0
        places = self._counted[name]
        at = int(np.searchsorted(places, i))
        own = int(at < len(places) and places[at] == i)  # the pair itself does not count
        together = _times(self._met, _met(source, target)).reshape(len(source), len(target)) - own
        sources, targets = _times(self._sources, source) - own, _times(self._targets, target) - own
        others = max(self._pairs - own, 1)
        return _gain(together, sources, targets, others), _gain(together.T, targets, sources, others)

    def _sides(self, name: str, i: int) -> tuple[Tokens, Tokens]:
        """Returns the different tokens of both sides of a sentence pair."""
        source, target = self._data[name].tokens(i)
        return np.unique(source).astype(np.int64), np.unique(target).astype(np.int64)


def _sample(data: Mapping[str, Sentences], most: int) -> dict[str, Tokens]:
    """Returns sentence pairs of every dataset, evenly: all, or as many as have about `most` pairs of tokens."""
    expected = {}
    for name, sentences in data.items():
        tried = np.linspace(0, len(sentences) - 1, min(len(sentences), _LENGTH_SAMPLE)).astype(int).tolist()
        expected[name] = len(sentences) * np.mean([np.prod(sentences.sizes(i)) for i in tried])
    share = min(1.0, most / sum(expected.values()))
    counts = {name: max(1, int(share * len(sentences))) for name, sentences in data.items()}
    return {name: np.linspace(0, len(sentences) - 1, counts[name]).astype(np.int64) for name, sentences in data.items()}


def _met(source: Tokens, target: Tokens) -> Tokens:
    """Returns every token of one side with every token of the other, each as one number. # [S * T]"""
    return ((source[:, None] << 32) | target[None, :]).ravel()


class _Counts:
    """Counts of numbers, which may be added many more times than there are different ones."""

    def __init__(self) -> None:
        self._waiting: list[Tokens] = []
        self._many = 0
        self._found = np.empty(0, np.int64), np.empty(0, np.int64)

    def add(self, numbers: Tokens) -> None:
        self._waiting.append(numbers)
        self._many += len(numbers)
        if self._many >= _AT_ONCE:
            self.found()

    def found(self) -> tuple[Tokens, Tokens]:
        """Returns the different numbers, ascending, and how often each was added."""
        numbers, times = np.unique(np.concatenate([*self._waiting, self._found[0][:0]]), return_counts=True)
        both, places = np.unique(np.concatenate([self._found[0], numbers]), return_inverse=True)
        weights = np.concatenate([self._found[1], times])
        self._found = both, np.bincount(places, weights, len(both)).astype(np.int64)
        self._waiting, self._many = [], 0
        return self._found


def _times(counts: tuple[Tokens, Tokens], wanted: Tokens) -> Tokens:
    """Returns the count of each wanted number."""
    numbers, times = counts
    places = np.minimum(np.searchsorted(numbers, wanted), len(numbers) - 1)
    return np.where(numbers[places] == wanted, times[places], 0)


def _gain(together: Tokens, given: Tokens, wanted: Tokens, pairs: int) -> float:
    """Returns the mean of log max p(t | s) / p(t) over the wanted tokens. together: [given, wanted] counts of pairs."""
    usual = (wanted + 0.5) / (pairs + 1)
    beside = (together + _SHRINKAGE * usual) / (given + _SHRINKAGE)[:, None]
    return float(np.log(beside.max(axis=0) / usual).mean())
