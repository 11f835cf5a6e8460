"""Batches of sentence pairs as packed tokens, without padding, and how sentences are cut into batches."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from ..prepare.vocabulary import BEGIN, END
from .sentences import Item, Sentences


@dataclass(frozen=True)
class Rows:
    """The places of packed tokens (sentences one after another, no padding) in a padded [B, L], and back."""

    sentences: int  # B
    longest: int  # L
    positions: Tensor  # [N]: of each token in its sentence
    places: Tensor  # [N]: of each token in the flattened [B * L]
    tokens: Tensor  # [B * L]: the token that stands there; at padding any
    padding: Tensor  # [B * L - N]: the places without a token

    @staticmethod
    def of(lengths: Sequence[int]) -> "Rows":
        counts = np.asarray(lengths)
        longest = int(counts.max())
        real = np.arange(longest) < counts[:, None]  # [B, L]
        places = np.flatnonzero(real)
        tokens = np.zeros(real.size, np.int64)
        tokens[places] = np.arange(len(places))
        arrays = (places % longest, places, tokens, np.flatnonzero(~real))
        return Rows(len(counts), longest, *(torch.from_numpy(array) for array in arrays))

    def moved(self, move: Callable[[Tensor], Tensor]) -> "Rows":
        tensors = (self.positions, self.places, self.tokens, self.padding)
        return Rows(self.sentences, self.longest, *map(move, tensors))


@dataclass(frozen=True)
class Batch:
    """Packed sentences. All that depends on the data is made on the CPU: no step has to wait for an accelerator."""

    source: Tensor  # [P]: tag, sentence, </s>
    target_in: Tensor  # [R]: <s> and the sentence
    target_out: Tensor  # [R]: the sentence and </s>
    source_rows: Rows
    target_rows: Rows
    pairs: tuple[str, ...]  # the language pairs in it
    origins: tuple[tuple[str, int], ...] = ()  # [B]: the language pair of each sentence, and its number there

    @property
    def sentences(self) -> int:
        return self.source_rows.sentences

    @property
    def tokens(self) -> int:
        """The number of target tokens."""
        return len(self.target_out)

    @property
    def padded(self) -> int:
        """The tokens of the longer side if it were padded: the size of a batch."""
        return self.sentences * max(self.source_rows.longest, self.target_rows.longest)

    def to(self, device: torch.device) -> "Batch":
        if device.type == "cpu":
            return self

        def move(tensor: Tensor) -> Tensor:
            return tensor.pin_memory().to(device, non_blocking=True)

        source, target_in, target_out = map(move, (self.source, self.target_in, self.target_out))
        rows = self.source_rows.moved(move), self.target_rows.moved(move)
        return Batch(source, target_in, target_out, *rows, self.pairs, self.origins)


def packed(sources: list[np.ndarray], targets: list[np.ndarray], origins: tuple[tuple[str, int], ...] = ()) -> Batch:
    """Packs sentences, given as token numbers without <s> and </s>, into a batch."""
    source_rows, target_rows = (Rows.of([len(tokens) + 1 for tokens in side]) for side in (sources, targets))
    source = [part for tokens in sources for part in (tokens, [END])]
    target = [part for tokens in targets for part in ([BEGIN], tokens, [END])]
    both = np.concatenate(target)
    starts = np.cumsum([0] + [len(tokens) + 2 for tokens in targets])
    return Batch(
        source=torch.from_numpy(np.concatenate(source).astype(np.int64)),
        target_in=torch.from_numpy(np.delete(both, starts[1:] - 1).astype(np.int64)),
        target_out=torch.from_numpy(np.delete(both, starts[:-1]).astype(np.int64)),
        source_rows=source_rows,
        target_rows=target_rows,
        pairs=tuple(dict.fromkeys(name for name, _ in origins)),
        origins=origins,
    )


def assemble(items: list[Item]) -> Batch:
    """Reads and packs sentence pairs."""
    sources, targets = zip(*(sentences.tokens(i) for sentences, i in items), strict=True)
    return packed(list(sources), list(targets), tuple((sentences.name, i) for sentences, i in items))


def evaluation_batches(sentences: Sentences, tokens: int) -> Iterator[Batch]:
    """Yields every sentence once, similar lengths together, at most `tokens` padded tokens per batch."""
    return map(assemble, evaluation_items(sentences, tokens))


def evaluation_items(sentences: Sentences, tokens: int) -> Iterator[list[Item]]:
    """Yields the sentences of those batches."""
    items: list[Item] = []
    longest = 0
    for i in np.lexsort((sentences.source_lengths + sentences.target_lengths, sentences.lengths)):
        longest = max(longest, int(sentences.lengths[i]))
        if items and longest * (len(items) + 1) > tokens:
            yield items
            items, longest = [], int(sentences.lengths[i])
        items.append((sentences, int(i)))
    yield items


def cut(items: list[Item], count: int) -> list[list[Item]]:
    """Sorts sentences by length and cuts them into `count` batches, such that the largest has few padded tokens."""
    sources, targets = np.array([s.sizes(i) for s, i in items], np.int32).T
    longer = np.maximum(sources, targets)
    order = np.lexsort((sources + targets, longer))  # by the longer side: half the padding of sorting by one of them
    lengths = longer[order]

    def edges(limit: int) -> list[int]:
        """Returns the beginnings of batches of at most `limit` padded tokens."""
        begins, i = [0], 0
        while i < len(lengths):
            ahead = lengths[i : i + limit // int(lengths[i]) + 1]
            i += max(1, int(np.searchsorted(ahead * np.arange(1, len(ahead) + 1), limit, "right")))
            begins.append(i)
        return begins

    low, high = int(lengths.sum()) // count, int(lengths[-1]) * len(lengths)
    while low < high:  # the smallest limit that gives at most `count` batches
        middle = (low + high) // 2
        if len(edges(middle)) - 1 <= count:
            high = middle
        else:
            low = middle + 1
    cuts = edges(low)
    while len(cuts) - 1 < count:  # rarely: halve the largest until there are enough
        areas = [int(lengths[b - 1]) * (b - a) if b - a > 1 else 0 for a, b in pairwise(cuts)]
        widest = int(np.argmax(areas))
        cuts.insert(widest + 1, (cuts[widest] + cuts[widest + 1] + 1) // 2)
    return [[items[k] for k in order[a:b]] for a, b in pairwise(cuts)]
