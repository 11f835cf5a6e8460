"""Token-sized batches of language pairs: what a step sees, what a probe sees, what a validation sees.

Training batches are cut from a pool of draws sorted by length. A pool is made for a given number of steps, which never
reaches past the next update of the mixture, so every batch is drawn with the mixture of its moment.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from multidds import Mixture, MixtureSampler

from .config import Config
from .prepare import BEGIN, END, Prepared, tag_of

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Batch:
    """Padded sentences. Everything that depends on the data is made on the CPU, so a step never has to wait for it."""

    source: Tensor  # [B, S]
    source_mask: Tensor | None  # [B, S], True where real; None where nothing is padded
    target_in: Tensor  # [B, T]: <s> and the sentence
    target_out: Tensor  # [R]: the sentence and </s>, the real tokens only
    rows: Tensor  # [R]: where those are in the flattened [B * T]
    pairs: tuple[str, ...]  # the language pairs in it
    sentences: int
    tokens: int  # R

    def to(self, device: torch.device) -> "Batch":
        if device.type == "cpu":
            return self
        moved = {
            name: None if tensor is None else tensor.pin_memory().to(device, non_blocking=True)
            for name, tensor in (
                ("source", self.source),
                ("source_mask", self.source_mask),
                ("target_in", self.target_in),
                ("target_out", self.target_out),
                ("rows", self.rows),
            )
        }
        return Batch(**moved, pairs=self.pairs, sentences=self.sentences, tokens=self.tokens)  # type: ignore[arg-type]


class Sentences:
    """One split of one language pair, memory-mapped."""

    def __init__(self, config: Config, prepared: Prepared, pair: str, split: str) -> None:
        self.name = pair
        self.source, self.source_offsets = prepared.arrays(pair, split, "source")
        self.target, self.target_offsets = prepared.arrays(pair, split, "target")
        target = next(p.target for p in config.data.pairs if p.name == pair)
        self.tag = prepared.vocabulary["source"].index(tag_of(target)) if len(config.data.targets) > 1 else None
        extra = 1 + (self.tag is not None)
        self.source_lengths = np.diff(self.source_offsets).astype(np.int32) + extra  # with tag and </s>
        self.target_lengths = np.diff(self.target_offsets).astype(np.int32) + 1
        self.lengths = np.maximum(self.source_lengths, self.target_lengths)  # the size of a sentence pair, in tokens

    def __len__(self) -> int:
        return len(self.lengths)


Item = tuple[Sentences, int]


def assemble(items: list[Item]) -> Batch:
    width = max(int(s.source_lengths[i]) for s, i in items)
    height = max(int(s.target_lengths[i]) for s, i in items)
    source = np.full((len(items), width), END, dtype=np.int64)
    target = np.full((len(items), height + 1), END, dtype=np.int64)  # <s>, the sentence, </s>
    target[:, 0] = BEGIN
    source_lengths, target_lengths = np.empty(len(items), np.int64), np.empty(len(items), np.int64)
    for row, (sentences, i) in enumerate(items):
        tokens = sentences.source[sentences.source_offsets[i] : sentences.source_offsets[i + 1]]
        start = 0
        if sentences.tag is not None:
            source[row, 0] = sentences.tag
            start = 1
        source[row, start : start + len(tokens)] = tokens
        source_lengths[row] = start + len(tokens) + 1
        tokens = sentences.target[sentences.target_offsets[i] : sentences.target_offsets[i + 1]]
        target[row, 1 : 1 + len(tokens)] = tokens
        target_lengths[row] = len(tokens) + 1
    source_mask = np.arange(width) < source_lengths[:, None]
    target_mask = np.arange(height) < target_lengths[:, None]
    rows = np.flatnonzero(target_mask)
    return Batch(
        source=torch.from_numpy(source),
        source_mask=None if source_mask.all() else torch.from_numpy(source_mask),
        target_in=torch.from_numpy(np.ascontiguousarray(target[:, :-1])),
        target_out=torch.from_numpy(target[:, 1:].reshape(-1)[rows]),
        rows=torch.from_numpy(rows),
        pairs=tuple(dict.fromkeys(sentences.name for sentences, _ in items)),
        sentences=len(items),
        tokens=len(rows),
    )


def evaluation_batches(sentences: Sentences, tokens: int) -> Iterator[Batch]:
    """Every sentence once, similar lengths together, at most `tokens` padded tokens per batch."""
    items: list[Item] = []
    longest = 0
    for i in np.lexsort((sentences.source_lengths, sentences.target_lengths)):
        longest = max(longest, int(sentences.lengths[i]))
        if items and longest * (len(items) + 1) > tokens:
            yield assemble(items)
            items, longest = [], int(sentences.lengths[i])
        items.append((sentences, int(i)))
    yield assemble(items)


def probe_batches(sentences: Sentences, tokens: int) -> Callable[[torch.Generator], Batch]:
    """A source of probe batches of about `tokens` tokens: sentences drawn with replacement."""
    draws = max(1, round(2 * tokens / float(sentences.lengths.mean())) + 1)

    def draw(generator: torch.Generator) -> Batch:
        indices = torch.randint(len(sentences), (draws,), generator=generator).numpy()
        total = np.cumsum(sentences.lengths[indices])
        return assemble([(sentences, int(i)) for i in indices[: max(1, int(np.searchsorted(total, tokens, "right")))]])

    return draw


class Stream:
    """The training batches of one run: an endless sequence of steps, each a list of batches.

    All ranks draw the same pool; of the batches of a step rank r of W takes every W-th. So N processes see what
    one process sees that accumulates N times as many batches.
    """

    def __init__(
        self,
        data: Mapping[str, Sentences],
        mixture: Mixture,
        *,
        tokens: int,
        accumulate: int,
        pool: int,
        mixing: str,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if accumulate % world_size:
            raise ValueError(f"Stream: {accumulate} batches per step cannot be shared by {world_size} processes.")
        self._data, self._tokens, self._accumulate, self._pool = dict(data), tokens, accumulate, pool
        self._seed, self._rank, self._world_size = seed, rank, world_size
        sizes = {name: len(sentences) for name, sentences in data.items()}
        one = {"rank": 0, "world_size": 1}  # the ranks share batches, not draws
        if mixing == "example":
            self._samplers = {"": MixtureSampler(sizes, mixture, seed=seed, **one)}
        else:  # a dataset per batch, and an order of its own for each dataset
            self._samplers = {"": MixtureSampler(dict.fromkeys(sizes, 1), mixture, seed=seed, **one)} | {
                name: MixtureSampler({name: size}, Mixture.uniform([name]), seed=seed, **one)
                for name, size in sizes.items()
            }
        self._by_example = mixing == "example"
        self._starts = np.cumsum([0, *sizes.values()])
        self._names = list(sizes)
        self._steps: list[list[list[Item]]] = []  # of the pool: [step][batch][sentence]
        self._taken = 0
        self._before = self._sampler_states()

    def next(self, steps_left: int) -> tuple[list[Batch], int, int]:
        """(batches of this rank, sentences and target tokens of all ranks) of the next step.

        `steps_left`: how many steps, this one included, may still be drawn with the mixture of this moment.
        """
        if self._taken == len(self._steps):
            self._fill(min(self._pool, steps_left))
        step = self._steps[self._taken]
        self._taken += 1
        sentences = sum(len(items) for items in step)
        tokens = sum(int(s.target_lengths[i]) for items in step for s, i in items)
        return [assemble(items) for items in step[self._rank :: self._world_size]], sentences, tokens

    @property
    def passes(self) -> dict[str, float]:
        """How often each dataset has been gone through by the steps taken so far."""
        counts = dict.fromkeys(self._names, 0) | self._counted(self._before)
        for step in self._steps[: self._taken]:
            for items in step:
                for sentences, _ in items:
                    counts[sentences.name] += 1
        return {name: count / len(self._data[name]) for name, count in counts.items()}

    def state_dict(self) -> dict[str, Any]:
        """The samplers as they were before the pool, its length in steps, and the steps taken from it."""
        return {"before": self._before, "steps": len(self._steps), "taken": self._taken}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, sampler in self._samplers.items():
            sampler.load_state_dict(state["before"][name])
        self._steps, self._taken, self._before = [], 0, self._sampler_states()
        if state["steps"]:
            self._fill(int(state["steps"]))  # the same draws: no update comes inside a pool
            self._taken = int(state["taken"])

    def _sampler_states(self) -> dict[str, Any]:
        return {name: sampler.state_dict() for name, sampler in self._samplers.items()}

    def _counted(self, states: Mapping[str, Any]) -> dict[str, int]:
        if self._by_example:
            return dict(states[""]["counts"])
        return {name: states[name]["counts"][name] for name in self._names}

    def _fill(self, steps: int) -> None:
        self._before = self._sampler_states()
        count = steps * self._accumulate
        per_batch = self._tokens / self._accumulate
        position = self._before[""]["position"]
        batches = self._mixed(count, per_batch) if self._by_example else self._unmixed(count, per_batch)
        order = np.random.default_rng([self._seed, position]).permutation(count)
        shuffled = [batches[i] for i in order]
        self._steps = [shuffled[i * self._accumulate : (i + 1) * self._accumulate] for i in range(steps)]
        self._taken = 0

    def _mixed(self, count: int, per_batch: float) -> list[list[Item]]:
        return _cut(self._drawn(self._samplers[""], count * per_batch, count), count)

    def _unmixed(self, count: int, per_batch: float) -> list[list[Item]]:
        chooser = iter(self._samplers[""])
        chosen = [self._names[next(chooser)] for _ in range(count)]
        batches: dict[str, Iterator[list[Item]]] = {}
        for name in dict.fromkeys(chosen):
            share = chosen.count(name)
            items = [
                (self._data[name], i) for _, i in self._drawn(self._samplers[name], share * per_batch, share, name)
            ]
            batches[name] = iter(_cut(items, share))
        return [next(batches[name]) for name in chosen]

    def _drawn(self, sampler: MixtureSampler, tokens: float, least: int, name: str | None = None) -> list[Item]:
        """Sentences until there are so many tokens, and at least one per batch."""
        items: list[Item] = []
        total = 0
        for index in sampler:
            if name is None:
                which = int(np.searchsorted(self._starts, index, "right")) - 1
                sentences, i = self._data[self._names[which]], int(index - self._starts[which])
            else:
                sentences, i = self._data[name], index
            items.append((sentences, i))
            total += int(sentences.lengths[i])
            if total >= tokens and len(items) >= least:
                break
        return items


def _cut(items: list[Item], count: int) -> list[list[Item]]:
    """Sorted by length, cut into `count` batches of about as many tokens each; none is empty."""
    targets = np.array([s.target_lengths[i] for s, i in items])
    sources = np.array([s.source_lengths[i] for s, i in items])
    order = np.lexsort((sources, targets))
    sizes = np.maximum(sources, targets)[order]
    middles = np.cumsum(sizes) - sizes / 2
    which = np.minimum((middles * count / sizes.sum()).astype(np.int64), count - 1)
    if len(np.unique(which)) < count:  # a sentence longer than a batch's share: by number instead
        parts: Iterable[Array] = np.array_split(order, count)
    else:
        parts = np.split(order, np.flatnonzero(np.diff(which)) + 1)
    return [[items[i] for i in part] for part in parts]
