"""Batches for probes: of one language pair, of several by the mixture, or of all dev sets.

A probe batch comes in parts of similar lengths: as one tensor, attention would be mostly padding. Many parts are slow
too; with their number growing like the root, a token costs 1.2 times one of training (docs/performance.md).
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from multidds import Mixture
from multidds.sampling import Part, part_indices

from ..config.config import Config
from .batch import Batch, assemble, cut, packed
from .sentences import Item, Sentences

DevPart = tuple[Batch, Batch | None]  # of a dev batch, and its targets behind other sources


class ProbeSentences:
    """A source of probe batches of about `tokens` tokens; the parts of a round share no sentence."""

    def __init__(self, sentences: Sentences, tokens: int) -> None:
        mean = _mean_tokens(sentences)
        self.batch_size = max(1, round(tokens / mean))
        self._sentences, self._tokens = sentences, tokens
        self._draws = max(1, round(2 * tokens / mean) + 1)

    @property
    def size(self) -> int:
        """The number of sentences."""
        return len(self._sentences)

    def __call__(self, generator: torch.Generator) -> list[Batch]:
        """Returns a batch of sentences drawn with replacement."""
        return self._batch(torch.randint(self.size, (self._draws,), generator=generator, device="cpu").tolist())

    def of_part(self, key: int, part: Part) -> list[Batch]:
        """Returns a batch; parts of a round share no sentence. key: seeds the order of the round."""
        return self._batch(part_indices(self.size, key, part, self._draws))

    def _batch(self, indices: list[int]) -> list[Batch]:
        sentences = self._sentences
        total = np.cumsum([max(sentences.sizes(i)) for i in indices])
        items = [(sentences, i) for i in indices[: max(1, int(np.searchsorted(total, self._tokens, "right")))]]
        return [assemble(part) for part in _parts(items, self._tokens)]


def _mean_tokens(sentences: Sentences) -> float:
    return sentences.all_tokens / len(sentences)


def _parts(items: list[Item], tokens: int) -> list[list[Item]]:
    """Returns the sentences of a probe batch of about `tokens` tokens, similar lengths together."""
    return cut(items, _part_count(items, tokens))


def _part_count(items: list[Item], tokens: int) -> int:
    return min(len(items), math.ceil(math.sqrt(tokens / 256)))


# ---------------------------------------------------------------------------------------------- by shares


def mixed_batch(
    data: Mapping[str, Sentences], mixture: Mixture, tokens: int, generator: torch.Generator
) -> list[Batch]:
    """Draws about `tokens` tokens of training text by the mixture, with replacement, in parts."""
    shares = torch.tensor([mixture[name] for name in data], dtype=torch.float64)
    mean = sum(mixture[name] * _mean_tokens(sentences) for name, sentences in data.items())
    items = _drawn(list(data.values()), shares, max(1, round(tokens / mean)), generator)
    return [assemble(part) for part in _parts(items, tokens)]


def dev_batches(
    config: Config, dev: Mapping[str, Sentences], contrast: bool
) -> Callable[[torch.Generator], list[DevPart]]:
    """Returns a source of batches of all dev sets, in parts.

    config: its priority, if it has weights, gives the shares of the dev sets; they are equal if not.
    dev: the dev sets.
    contrast: whether each part comes with the same targets behind other sources.
    """
    priority = config.mixture.priority
    weights = [priority.get(name, 0.0) if isinstance(priority, dict) else 1.0 for name in dev]
    sets, shares = list(dev.values()), torch.tensor(weights, dtype=torch.float64)
    tokens = config.examples.probe_tokens
    mean = float(np.average([_mean_tokens(sentences) for sentences in sets], weights=weights))
    count = max(1, round(tokens / mean))

    def draw(generator: torch.Generator) -> list[DevPart]:
        parts = _parts(_drawn(sets, shares, count, generator), tokens)
        return [(assemble(part), _shuffled(part) if contrast else None) for part in parts]

    return draw


def _drawn(sets: Sequence[Sentences], shares: Tensor, count: int, generator: torch.Generator) -> list[Item]:
    places = torch.multinomial(shares, count, replacement=True, generator=generator).tolist()
    numbers = torch.rand(count, generator=generator, dtype=torch.float64).tolist()
    return [(sets[k], int(u * len(sets[k]))) for k, u in zip(places, numbers, strict=True)]


def _shuffled(items: list[Item]) -> Batch:
    """Packs the targets in their order, each behind another source, of the same dev set if it has one."""
    names = [sentences.name for sentences, _ in items]
    by_set = sorted(range(len(items)), key=lambda k: names[k])
    source_of = dict(zip(by_set, [*by_set[1:], *by_set[:1]], strict=True))
    for name in dict.fromkeys(names):
        places = [k for k in by_set if names[k] == name]
        if len(places) > 1:
            source_of |= dict(zip(places, [*places[1:], *places[:1]], strict=True))
    sides = [sentences.tokens(i) for sentences, i in items]
    return packed([sides[source_of[k]][0] for k in range(len(items))], [target for _, target in sides])
