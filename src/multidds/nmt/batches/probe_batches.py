"""Batches for probes: of one language pair, for the mixture; of all dev sets together, for single sentence pairs.

A probe batch comes in parts of similar lengths: attention would be mostly padding if it were one. Many parts are slow
too; with their number growing like the root a token costs 1.2 times one of training (docs/performance.md).
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
    """A source of probe batches of about `tokens` tokens: sentences drawn with replacement."""
    draws = max(1, round(2 * tokens / (sentences.all_tokens / len(sentences))) + 1)

    def draw(generator: torch.Generator) -> list[Batch]:
        indices = torch.randint(len(sentences), (draws,), generator=generator, device="cpu").tolist()
        total = np.cumsum([max(sentences.sizes(i)) for i in indices])
        items = [(sentences, i) for i in indices[: max(1, int(np.searchsorted(total, tokens, "right")))]]
        return [assemble(part) for part in _parts(items, tokens)]

    return draw


def _parts(items: list[Item], tokens: int) -> list[list[Item]]:
    """The sentences of a probe batch of about `tokens` tokens, similar lengths together."""
    return cut(items, min(len(items), math.ceil(math.sqrt(tokens / 256))))


def mixed_batch(
    data: Mapping[str, Sentences], mixture: Mixture, tokens: int, generator: torch.Generator
) -> list[Batch]:
    """About `tokens` tokens of training text, drawn as the mixture says and with replacement, in parts."""
    names = list(data)
    shares = torch.tensor([mixture[name] for name in names], dtype=torch.float64)
    mean = sum(mixture[name] * data[name].all_tokens / len(data[name]) for name in names)
    items = _items([data[name] for name in names], shares, max(1, round(tokens / mean)), generator)
    return [assemble(part) for part in _parts(items, tokens)]


def _items(sets: Sequence[Sentences], shares: Tensor, count: int, generator: torch.Generator) -> list[Item]:
    places = torch.multinomial(shares, count, replacement=True, generator=generator).tolist()
    numbers = torch.rand(count, generator=generator, dtype=torch.float64).tolist()
    return [(sets[k], int(u * len(sets[k]))) for k, u in zip(places, numbers, strict=True)]


def dev_batches(
    config: Config, dev: Mapping[str, Sentences], contrast: bool
) -> Callable[[torch.Generator], list[DevPart]]:
    """A source of dev batches of all dev sets together, each drawn as its priority says, or all alike.

    In parts; with `contrast`, each with the same targets behind other sources.
    """
    priority = config.mixture.priority
    weights = [priority.get(name, 0.0) if isinstance(priority, dict) else 1.0 for name in dev]
    sets, shares = list(dev.values()), torch.tensor(weights, dtype=torch.float64)
    tokens = config.examples.probe_tokens
    mean = float(np.average([sentences.all_tokens / len(sentences) for sentences in sets], weights=weights))
    count = max(1, round(tokens / mean))

    def draw(generator: torch.Generator) -> list[DevPart]:
        parts = _parts(_items(sets, shares, count, generator), tokens)
        return [(assemble(part), _shuffled(part) if contrast else None) for part in parts]

    return draw


def _shuffled(items: list[Item]) -> Batch:
    """The targets of sentence pairs in their order, each behind another source, of the same dev set if there is one."""
    names = [sentences.name for sentences, _ in items]
    by_set = sorted(range(len(items)), key=lambda k: names[k])
    runs = {name: [k for k in by_set if names[k] == name] for name in dict.fromkeys(names)}
    after = dict(zip(by_set, [*by_set[1:], *by_set[:1]], strict=True))
    for places in runs.values():
        if len(places) > 1:
            after |= dict(zip(places, [*places[1:], *places[:1]], strict=True))
    sides = [sentences.tokens(i) for sentences, i in items]
    return packed([sides[after[k]][0] for k in range(len(items))], [target for _, target in sides])


@dataclass(frozen=True)
class MixedBatch:
    """Sentences of several pairs, in parts of similar lengths."""

    parts: tuple[Batch, ...]
    places: Tensor  # [B]: where each sentence, in the order they were given, is in the parts one after another


class MixedSentences:
    """A source of probe batches of one pair that can also give single sentences."""

    def __init__(self, sentences: Sentences, tokens: int, batch_size: int) -> None:
        """tokens: of a batch of this pair alone. batch_size: sentences of a batch that mixes pairs."""
        self._sentences, self._alone = sentences, probe_batches(sentences, tokens)
        self.batch_size, self.collate_fn = batch_size, collate

    def __call__(self, generator: torch.Generator) -> list[Batch]:
        return self._alone(generator)

    def examples(self, generator: torch.Generator, count: int) -> list[Item]:
        """Drawn with replacement."""
        indices = torch.randint(len(self._sentences), (count,), generator=generator, device="cpu")
        return [(self._sentences, i) for i in indices.tolist()]


def sentences_of(data: Iterable[Sentences], tokens: int) -> int:
    """How many sentences of these pairs, as many of each, have about so many tokens."""
    means = [sentences.all_tokens / len(sentences) for sentences in data]
    return max(2, round(tokens * len(means) / math.fsum(means)))


def collate(items: list[Item]) -> MixedBatch:
    """Cut into parts as `probe_batches` cuts: the number of parts grows like the root of the tokens."""
    lengths = [max(sentences.sizes(i)) for sentences, i in items]
    order = sorted(range(len(items)), key=lambda k: lengths[k])
    count = min(len(items), math.ceil(math.sqrt(sum(lengths) / 256)))
    cuts = [len(items) * j // count for j in range(count + 1)]
    parts = [assemble([items[k] for k in order[a:b]]) for a, b in pairwise(cuts)]
    places = torch.empty(len(items), dtype=torch.int64)
    places[torch.tensor(order)] = torch.arange(len(items))
    return MixedBatch(tuple(parts), places)


def sentence_losses(config: Config) -> Callable[[Any, MixedBatch], Tensor]:
    """(model, batch) -> [B]: the training loss of each sentence, per target token."""
    smoothing, bfloat16 = config.train.label_smoothing, config.train.precision == "bfloat16"

    def losses(model: Any, batch: MixedBatch) -> Tensor:
        device = model.target_embedding.weight.device
        found = []
        for part in (part.to(device) for part in batch.parts):
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bfloat16):
                tokens = model(part, smoothing, each=True)  # [R]
            rows = part.target_rows
            sentence = rows.places // rows.longest
            sums = tokens.new_zeros(rows.sentences).index_add(0, sentence, tokens)
            found.append(sums / torch.bincount(sentence, minlength=rows.sentences))
        return torch.cat(found)[batch.places.to(device)]

    return losses
