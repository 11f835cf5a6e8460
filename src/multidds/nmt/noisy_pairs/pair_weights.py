"""The last weight of every sentence pair, and its summary for records.

A weight is the chance of a drawn sentence pair to be trained on.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ..batches.sentences import Sentences
from ..runs.records import ExampleFacts, Scored

EDGES = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0)  # between the bins of weights
SHOWN = 8  # sentence pairs of the highest and of the lowest weights, in a record

Origin = tuple[str, int]  # a sentence pair: its language pair, its number there


class PairWeights:
    """The last weight of every sentence pair; the same on every process."""

    def __init__(self, data: Mapping[str, Sentences], vocabulary: Mapping[str, Sequence[str]]) -> None:
        self._data, self._vocabulary = data, vocabulary
        self._weights = {name: np.full(len(sentences), -1, np.float32) for name, sentences in data.items()}  # -1: none

    def set(self, origins: Iterable[Origin], weights: Iterable[float]) -> None:
        for (name, i), weight in zip(origins, weights, strict=True):
            self._weights[name][i] = weight

    def record(self, step: int, skipped: str | None) -> Scored:
        """Returns the distribution of the weights, and the sentence pairs at its ends.

        skipped: the reason if the last update changed nothing.
        """
        seen = {name: w[w >= 0] for name, w in self._weights.items()}
        bins = {name: np.digitize(w, EDGES) for name, w in seen.items()}
        ranked = self._ranked()
        return Scored(
            step=step,
            edges=list(EDGES),
            histogram={name: np.bincount(b, minlength=len(EDGES) + 1).tolist() for name, b in bins.items()},
            weight={name: float(w.mean()) for name, w in seen.items() if len(w)},
            highest=[self._facts(*origin) for origin in reversed(ranked[-SHOWN:])],
            lowest=[self._facts(*origin) for origin in ranked[:SHOWN]],
            skipped=skipped,
        )

    def _ranked(self) -> list[Origin]:
        """Returns the sentence pairs of the lowest and highest weights, the lowest first."""
        found = []
        for name, weights in self._weights.items():
            seen = np.flatnonzero(weights >= 0)
            order = seen[np.argsort(weights[seen], kind="stable")]
            ends = order if len(order) <= 2 * SHOWN else np.concatenate([order[:SHOWN], order[-SHOWN:]])
            found += [(float(weights[i]), name, int(i)) for i in ends]
        return [(name, i) for _, name, i in sorted(found)]

    def _facts(self, name: str, i: int) -> ExampleFacts:
        source, target = self._data[name].text(i, self._vocabulary)
        weight = float(self._weights[name][i])
        return ExampleFacts(dataset=name, number=i, weight=weight, source=source, target=target)

    def state_dict(self) -> dict[str, Tensor]:
        return {f"weights.{name}": torch.from_numpy(weights.copy()) for name, weights in self._weights.items()}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        self._weights = {name: tensors[f"weights.{name}"].numpy().copy() for name in self._weights}
