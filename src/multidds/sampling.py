"""Draws batches or examples as the mixture of this moment says, counts them, and resumes exactly.

There is one global sequence of draws, a function of seed, position and the mixture at that position;
rank r of W takes every W-th draw. Algorithm 1 draws per example (`MixtureSampler`); section 2 of the
paper draws per batch (`interleave`).
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import Any

import torch
from torch.utils.data import Sampler

from .checks import check_names, check_whole
from .mixture import Mixture, check_mixture
from .randomness import Permutation, derive, point
from .sources import open_source, refuse_sharing

_REMEMBERED = 256  # mixtures that `MixtureSampler.state_dict(consumed=...)` can go back over


class Interleaved:
    """The endless stream that `interleave` returns: an iterator over (name, batch)."""

    def __init__(
        self,
        loaders: Mapping[str, Any],
        mixture: Mixture,
        seed: int,
        count: Callable[[Any], int],
        rank: int | None,
        world_size: int | None,
    ) -> None:
        check_mixture("interleave", mixture)
        check_names("interleave", mixture.names, loaders)
        self.mixture = mixture
        self._rank, self._world_size = _place_among_ranks("interleave", rank, world_size)
        self._count = count
        self._loaders = dict(loaders)
        refuse_sharing("interleave", self._loaders.values())
        self._start(seed)

    def _start(self, seed: int) -> None:
        self._seed, self._key = seed, derive(seed, "draws")
        self._position = 0
        self._batches = dict.fromkeys(self._loaders, 0)  # over all ranks
        self._examples = dict.fromkeys(self._loaders, 0)  # of this rank
        self._sources = {
            name: open_source("interleave", "loader", name, loader, seed) for name, loader in self._loaders.items()
        }

    def __iter__(self) -> "Interleaved":
        return self

    def __next__(self) -> tuple[str, Any]:
        for rank in range(self._world_size):
            drawn = self.mixture.at(point(self._key, self._position + rank))
            if rank == self._rank:
                name, number = drawn, self._batches[drawn]
            self._batches[drawn] += 1
        self._position += self._world_size
        batch = self._sources[name].draw((number,))
        self._examples[name] += self._count(batch)
        return name, batch

    @property
    def examples(self) -> dict[str, int]:
        """How many examples of each dataset this process has been given."""
        return dict(self._examples)

    @property
    def passes(self) -> dict[str, float]:
        """How often this process has gone through each of its loaders."""
        return {name: source.passes for name, source in self._sources.items()}

    def state_dict(self) -> dict[str, Any]:
        return {
            "seed": self._seed,
            "position": self._position,
            "batches": dict(self._batches),
            "examples": dict(self._examples),
            "sources": {name: source.state_dict() for name, source in self._sources.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_names("interleave: state", self.mixture.names, state["batches"])
        self._start(state["seed"])
        self._position = int(state["position"])
        self._batches.update(state["batches"])
        self._examples.update(state["examples"])
        for name, source in self._sources.items():
            source.load_state_dict(state["sources"][name])


def interleave(
    loaders: Mapping[str, Any],
    mixture: Mixture,
    seed: int = 0,
    count: Callable[[Any], int] | None = None,
    rank: int | None = None,
    world_size: int | None = None,
) -> Interleaved:
    """An endless stream of (name, batch): one dataset per batch, drawn with the mixture of this moment.

    `loaders`: {name: DataLoader, list of batches, function generator -> batch, or stateful iterable}.
    `count`: batch -> number of examples, by default the first dimension of its first tensor.
    Under torch.distributed rank r takes every W-th draw. Functions then give every batch of the global
    sequence to one rank; loaders are each rank's own, so shard them (DistributedSampler) and save every rank's state.
    """
    return Interleaved(loaders, mixture, seed, count or _first_dimension, rank, world_size)


class MixtureSampler(Sampler[Any]):
    """Endless indices into `ConcatDataset([...])` in the order of `sizes`; lists of them with a batch size.

    Use it as the `sampler` of a DataLoader, or as its `batch_sampler` with a batch size. Within a pass no
    example repeats; every pass has a new order, computed per index, so nothing of dataset size is stored.

    A draw uses the mixture of that moment. A DataLoader with workers asks for num_workers * prefetch_factor
    batches ahead, so there a new mixture takes effect after exactly that many batches, and
    `state_dict(consumed=b)` gives the state after the b batches that training has really seen. Keep one iterator of
    such a loader for the whole run: what an abandoned one had read ahead is drawn and lost.
    """

    def __init__(
        self,
        sizes: Mapping[str, int],
        mixture: Mixture,
        batch_size: int | None = None,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        check_mixture("MixtureSampler", mixture)
        check_names("MixtureSampler", mixture.names, sizes)
        check_whole("MixtureSampler", **{f"the size of {name!r}": size for name, size in sizes.items()})
        if batch_size is not None:
            check_whole("MixtureSampler", batch_size=batch_size)
        self.mixture = mixture
        self._sizes = {name: int(size) for name, size in sizes.items()}
        self._offsets = dict(zip(sizes, accumulate(sizes.values(), initial=0), strict=False))
        self._batch_size = batch_size
        self._rank, self._world_size = _place_among_ranks("MixtureSampler", rank, world_size)
        self._start(seed, position=0, batches=0, counts=dict.fromkeys(sizes, 0), recorded=[])

    def _start(
        self, seed: int, position: int, batches: int, counts: dict[str, int], recorded: list[tuple[int, Mixture]]
    ) -> None:
        self._seed, self._key = seed, derive(seed, "draws")
        self._position = position  # draws so far, over all ranks
        self._first = (position, batches)  # where this object began: it cannot go back before
        self._counts = counts  # {name: examples drawn so far, over all ranks}
        self._orders = Orders(seed, self._sizes)
        # Up to a position, draws follow a recorded mixture: after a resume, those that had been drawn
        # ahead under older mixtures. Behind the last of them the live mixture decides.
        self._recorded = deque(recorded)
        self._used: deque[tuple[int, dict[str, float]]] = deque(maxlen=_REMEMBERED)  # (from position, probabilities)
        self._seen: tuple[Mixture, int] | None = None  # what `_used` ends with: an object and its version

    def __iter__(self) -> Iterator[Any]:
        while True:
            if self._batch_size is None:
                yield from self._draw(1)
            else:
                yield self._draw(self._batch_size)

    def _draw(self, rounds: int) -> list[int]:
        """One draw for every rank, `rounds` times; the indices of this rank."""
        indices = []
        for _ in range(rounds):
            mixture = self._mixture_here()
            for rank in range(self._world_size):
                name = mixture.at(point(self._key, self._position + rank))
                if rank == self._rank:
                    indices.append(self._offsets[name] + self._orders.place(name, self._counts[name]))
                self._counts[name] += 1
            self._position += self._world_size
        return indices

    def _mixture_here(self) -> Mixture:
        while self._recorded and self._recorded[0][0] <= self._position:
            self._recorded.popleft()
        mixture = self._recorded[0][1] if self._recorded else self.mixture
        seen = (mixture, mixture.version)
        if seen != self._seen:
            self._seen = seen
            self._used.append((self._position, mixture.probabilities))
        return mixture

    @property
    def examples(self) -> dict[str, int]:
        """How many examples of each dataset were drawn, over all ranks (also those read ahead)."""
        return dict(self._counts)

    @property
    def passes(self) -> dict[str, float]:
        """How often each dataset was gone through, over all ranks."""
        return {name: count / self._sizes[name] for name, count in self._counts.items()}

    def state_dict(self, consumed: int | None = None) -> dict[str, Any]:
        """The state after all draws so far, or after the first `consumed` batches of this rank.

        Batches (without a batch size: indices) are counted from the start of training, over resumes.
        """
        per_batch = (self._batch_size or 1) * self._world_size
        first_position, first_batches = self._first
        if consumed is None:
            consumed = first_batches + (self._position - first_position) // per_batch
        position = first_position + (consumed - first_batches) * per_batch
        if not first_position <= position <= self._position:
            raise ValueError(
                f"MixtureSampler: consumed must be between {first_batches} and "
                f"{first_batches + (self._position - first_position) // per_batch}, but it is {consumed}."
            )
        counts, recorded, end = dict(self._counts), list(self._recorded), self._position
        for begin, probabilities in reversed(self._used):
            if end <= position:
                break
            mixture = Mixture(probabilities)
            recorded.insert(0, (end, mixture))
            for t in range(max(begin, position), end):
                counts[mixture.at(point(self._key, t))] -= 1
            end = max(begin, position)
        if end > position:
            raise ValueError(f"MixtureSampler: more than {_REMEMBERED} mixtures were used since batch {consumed}.")
        return {
            "seed": self._seed,
            "position": position,
            "batches": consumed,
            "sizes": dict(self._sizes),
            "counts": counts,
            "recorded": [[until, mixture.probabilities] for until, mixture in recorded],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_names("MixtureSampler: state", self._sizes, state["sizes"])
        for name, size in self._sizes.items():
            if state["sizes"][name] != size:
                raise ValueError(
                    f"MixtureSampler: the state is of {state['sizes'][name]} examples of {name!r}, not {size}."
                )
        recorded = [(int(until), Mixture(probabilities)) for until, probabilities in state["recorded"]]
        self._start(state["seed"], int(state["position"]), int(state["batches"]), dict(state["counts"]), recorded)


class Orders:
    """Which example of a dataset a draw takes: a new order in every pass, a function of (seed, name, pass)."""

    def __init__(self, seed: int, sizes: Mapping[str, int]) -> None:
        self._seed, self._sizes = seed, sizes
        self._passes: dict[str, tuple[int, Permutation]] = {}  # {name: (pass, its order)}

    def place(self, name: str, count: int) -> int:
        """The place in its dataset of the example that is drawn from it after `count` others."""
        number, place = divmod(count, self._sizes[name])
        if self._passes.get(name, (-1, None))[0] != number:
            self._passes[name] = (number, Permutation(derive(self._seed, "order", name, number), self._sizes[name]))
        return self._passes[name][1][place]


def _place_among_ranks(where: str, rank: int | None, world_size: int | None) -> tuple[int, int]:
    if (rank is None) != (world_size is None):
        raise ValueError(f"{where}: give both rank and world_size, or neither.")
    if rank is None or world_size is None:
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return 0, 1
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    if not 0 <= rank < world_size:
        raise ValueError(f"{where}: rank must be between 0 and world_size - 1, but it is {rank} of {world_size}.")
    return rank, world_size


def _first_dimension(batch: Any) -> int:
    """The number of examples of a batch: the length of the first tensor found in it."""
    pending = [batch]
    while pending:
        item = pending.pop(0)
        if isinstance(item, torch.Tensor):
            return item.shape[0] if item.dim() else 1
        if isinstance(item, Mapping):
            pending[:0] = list(item.values())
        elif isinstance(item, (list, tuple)):
            pending[:0] = list(item)
    raise TypeError(f"interleave: no tensor in a batch of type {type(batch).__name__}; give count=, batch -> examples.")
