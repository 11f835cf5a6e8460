"""Batches for probes: of one language pair, for the mixture; of all dev sets together, for single sentence pairs.

A probe batch comes in parts of similar lengths: attention would be mostly padding if it were one. Many parts are slow
too; with their number growing like the root a token costs 1.2 times one of training (docs/performance.md).
"""

import math
from collections.abc import Callable, Mapping, Sequence

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
