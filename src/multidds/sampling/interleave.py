"""Streams of batches, each of one dataset, drawn from a mixture that may change at any time.

Section 2 of the paper draws per batch (`interleave`); Algorithm 1 draws per example (`MixtureSampler`).
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from .._base.checks import check_names
from .._base.ranks import checked_rank
from .._base.state import check_keys, check_version
from ..mixture.mixture import Mixture, check_mixture
from .draws import Draws
from .sources import Source, open_source, refuse_sharing


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
        self._rank, self._world_size = checked_rank("interleave", rank, world_size)
        self._count = count
        self._loaders = dict(loaders)
        refuse_sharing("interleave", self._loaders.values())
        self._draws = Draws(mixture, seed)  # of batches, over all ranks
        self._examples = dict.fromkeys(self._loaders, 0)  # of this rank
        self._sources = self._opened(seed)

    def _opened(self, seed: int) -> dict[str, Source]:
        return {name: open_source("interleave", "loader", name, given, seed) for name, given in self._loaders.items()}

    def __iter__(self) -> "Interleaved":
        return self

    def __next__(self) -> tuple[str, Any]:
        self._draws.use(self.mixture)
        ((name, number),) = self._draws.draw_for(self._rank, self._world_size)
        batch = self._sources[name].draw((number,))
        self._examples[name] += self._count(batch)
        return name, batch

    @property
    def examples(self) -> dict[str, int]:
        """{name: number of examples that this process has received}."""
        return dict(self._examples)

    @property
    def passes(self) -> dict[str, float]:
        """{name: passes of this process over its loader so far}."""
        return {name: source.passes for name, source in self._sources.items()}

    def state_dict(self) -> dict[str, Any]:
        return {
            **self._draws.state_dict(),
            "examples": dict(self._examples),
            "sources": {name: source.state_dict() for name, source in self._sources.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues exactly where the other stream was."""
        check_version("interleave", state)
        check_keys("interleave", state, "examples", "sources")
        check_names("interleave: state", self.mixture.names, state["sources"])
        draws = self._draws.fork()
        draws.load_state_dict(state)
        sources = self._opened(draws.seed)
        for name, source in sources.items():
            source.load_state_dict(state["sources"][name])
        self._draws, self._sources, self._examples = draws, sources, dict(state["examples"])


def interleave(
    loaders: Mapping[str, Any],
    mixture: Mixture,
    seed: int = 0,
    count: Callable[[Any], int] | None = None,
    rank: int | None = None,
    world_size: int | None = None,
) -> Interleaved:
    """Returns an endless stream of (name, batch): one dataset per batch, drawn from the current mixture.

    loaders: {name: DataLoader, list of batches, function generator -> batch, or stateful iterable}.
    mixture: probability of each loader; it may change at any time.
    seed: for the draws, and for whatever is random in the loaders.
    count: batch -> number of examples, by default the first dimension of its first tensor.
    rank: of this process among those that share the sequence of draws; by default that of torch.distributed.
    world_size: number of those processes; by default that of torch.distributed.

    Under torch.distributed, rank r takes every W-th draw. A function then gives each batch of the global sequence to
    one rank. Loaders belong to their rank, so shard them (DistributedSampler) and save every rank's state.
    """
    return Interleaved(loaders, mixture, seed, count or _first_dimension, rank, world_size)


def _first_dimension(batch: Any) -> int:
    """Counts the examples of a batch: the length of the first tensor found in it."""
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
