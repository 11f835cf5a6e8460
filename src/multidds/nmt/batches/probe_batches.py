"""Batches for probes: of one language pair, of several by the mixture, of all dev sets, or of single sentences.

A probe batch comes in parts of similar lengths: as one tensor, attention would be mostly padding. Many parts are slow
too; with their number growing like the root, a token costs 1.2 times one of training (docs/performance.md).
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from multidds import Mixture

from ..config.config import Config
from .batch import Batch, assemble, cut, packed
from .sentences import Item, Sentences

DevPart = tuple[Batch, Batch | None]  # of a dev batch, and its targets behind other sources


def probe_batches(sentences: Sentences, tokens: int) -> Callable[[torch.Generator], list[Batch]]:
    """Returns a source of probe batches of about `tokens` tokens: sentences drawn with replacement."""
    draws = max(1, round(2 * tokens / _mean_tokens(sentences)) + 1)

    def draw(generator: torch.Generator) -> list[Batch]:
        indices = torch.randint(len(sentences), (draws,), generator=generator, device="cpu").tolist()
        total = np.cumsum([max(sentences.sizes(i)) for i in indices])
        items = [(sentences, i) for i in indices[: max(1, int(np.searchsorted(total, tokens, "right")))]]
        return [assemble(part) for part in _parts(items, tokens)]

    return draw


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


# ---------------------------------------------------------------------------------------------- single sentences


@dataclass(frozen=True)
class MixedBatch:
    """Sentences of several pairs, in parts of similar lengths."""

    parts: tuple[Batch, ...]
    places: Tensor  # [B]: of each sentence, in the order they were given, in the parts one after another


class MixedSentences:
    """A source of probe batches of one pair that also gives single sentences, for updates of very many pairs.

    sentences: of the pair.
    tokens: of a batch of this pair alone.
    batch_size: sentences of a batch that mixes pairs.
    """

    def __init__(self, sentences: Sentences, tokens: int, batch_size: int) -> None:
        self._sentences, self._alone = sentences, probe_batches(sentences, tokens)
        self.batch_size, self.collate_fn = batch_size, collate

    def __call__(self, generator: torch.Generator) -> list[Batch]:
        return self._alone(generator)

    def examples(self, generator: torch.Generator, count: int) -> list[Item]:
        """Draws sentences with replacement."""
        indices = torch.randint(len(self._sentences), (count,), generator=generator, device="cpu")
        return [(self._sentences, i) for i in indices.tolist()]


def sentences_of(data: Iterable[Sentences], tokens: int) -> int:
    """Returns how many sentences, equally many of each pair, have about `tokens` tokens."""
    means = [_mean_tokens(sentences) for sentences in data]
    return max(2, round(tokens * len(means) / math.fsum(means)))


def collate(items: list[Item]) -> MixedBatch:
    """Packs sentences, cut into parts of about equally many."""
    lengths = [max(sentences.sizes(i)) for sentences, i in items]
    order = sorted(range(len(items)), key=lambda k: lengths[k])
    count = _part_count(items, sum(lengths))
    cuts = [len(items) * j // count for j in range(count + 1)]
    parts = [assemble([items[k] for k in order[a:b]]) for a, b in pairwise(cuts)]
    places = torch.empty(len(items), dtype=torch.int64)
    places[torch.tensor(order)] = torch.arange(len(items))
    return MixedBatch(tuple(parts), places)


def sentence_losses(config: Config) -> Callable[[Any, MixedBatch], Tensor]:
    """Returns a function (model, batch) -> [B]: the training loss of each sentence, per target token."""
    smoothing, bfloat16 = config.train.label_smoothing, config.train.precision == "bfloat16"

    def losses(model: Any, batch: MixedBatch) -> Tensor:
        device = model.target_embedding.weight.device
        losses_of_parts = []
        for part in (part.to(device) for part in batch.parts):
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bfloat16):
                tokens = model(part, smoothing, each=True)  # [R]
            rows = part.target_rows
            sentence = rows.places // rows.longest
            sums = tokens.new_zeros(rows.sentences).index_add(0, sentence, tokens)
            losses_of_parts.append(sums / torch.bincount(sentence, minlength=rows.sentences))
        return torch.cat(losses_of_parts)[batch.places.to(device)]

    return losses
