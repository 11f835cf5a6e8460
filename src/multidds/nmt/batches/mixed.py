"""Probe batches that mix language pairs, and the loss of each of their sentences: for updates of very many pairs."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ..config.config import Config
from .batch import Batch, assemble
from .probe_batches import probe_batches
from .sentences import Item, Sentences


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
