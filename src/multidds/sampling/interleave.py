"""Batches or examples as the mixture of this moment says, counted, and resumed exactly.

There is one global sequence of draws (`draws`); rank r of W takes every W-th of it. Algorithm 1 draws per example
(`MixtureSampler`); section 2 of the paper draws per batch (`interleave`).
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from traceback import walk_stack
from typing import Any

import torch
from torch.utils.data import Sampler

from .._base.carrying import HINT
from .._base.checks import by_name, check_names, check_sizes, check_state, check_whole, is_count, is_state
from .._base.ranks import place_among_ranks
from ..mixture.mixture import Mixture, check_mixture
from .draws import Draws, Order
from .sources import Source, open_source, refuse_sharing

_KEPT = 256  # mixtures since the last state that was asked for; with more, states of the older half are given up


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
        self._rank, self._world_size = place_among_ranks("interleave", rank, world_size)
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
        self._draws.rule(self.mixture)
        ((name, number),) = self._draws.draw_for(self._rank, self._world_size)
        batch = self._sources[name].draw((number,))
        self._examples[name] += self._count(batch)
        return name, batch

    @property
    def examples(self) -> dict[str, int]:
        """How many examples of each dataset this process has received."""
        return dict(self._examples)

    @property
    def passes(self) -> dict[str, float]:
        """How many times this process has passed through each of its loaders."""
        return {name: source.passes for name, source in self._sources.items()}

    def state_dict(self) -> dict[str, Any]:
        return {
            **self._draws.state_dict(),
            "examples": dict(self._examples),
            "sources": {name: source.state_dict() for name, source in self._sources.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any], changed: bool = False) -> None:
        """Go on exactly there. changed: loaders may have been added, which begin, or left out."""
        check_state("interleave", state, examples=by_name(is_count), sources=by_name(is_state))
        names = self.mixture.names
        for part in () if changed else ("examples", "sources"):
            check_names("interleave: state", names, state[part], HINT)
        draws = self._draws.fork()
        draws.load_state_dict(state, self.mixture if changed else None)
        sources = self._opened(draws.seed)
        for name, source in sources.items():
            if name in state["sources"]:
                source.load_state_dict(state["sources"][name])
        self._draws, self._sources = draws, sources
        self._examples = {name: state["examples"].get(name, 0) for name in names}


def interleave(
    loaders: Mapping[str, Any],
    mixture: Mixture,
    seed: int = 0,
    count: Callable[[Any], int] | None = None,
    rank: int | None = None,
    world_size: int | None = None,
) -> Interleaved:
    """An endless stream of (name, batch): one dataset per batch, drawn from the current mixture.

    loaders: {name: DataLoader, list of batches, function generator -> batch, or stateful iterable}.
    mixture: how often each of them is drawn; it may change at any time.
    seed: for the draws, and for whatever is random in the loaders.
    count: batch -> number of examples, by default the first dimension of its first tensor.
    rank, world_size: this process among those that share the sequence of draws; by default those of torch.distributed.

    Under torch.distributed, rank r takes every W-th draw. A function then gives each batch of the global sequence to
    one rank. Loaders belong to their rank, so shard them (DistributedSampler) and save every rank's state.
    """
    return Interleaved(loaders, mixture, seed, count or _first_dimension, rank, world_size)


class MixtureSampler(Sampler[Any]):
    """Endless indices into `ConcatDataset([...])` in the order of `sizes`; with a batch size, lists of indices.

    Use it as the `sampler` of a DataLoader, or with a batch size as its `batch_sampler`. No example repeats within a
    pass. Every pass has a new order, computed per index, so nothing as large as a dataset is stored.

    A draw uses the mixture of that moment. A DataLoader with workers reads num_workers * prefetch_factor batches ahead,
    so a new mixture takes effect after exactly that many batches, and `state_dict(consumed=b)` gives the state after
    the b batches that training has really seen. Keep one iterator of such a loader for the whole run: what an abandoned
    iterator had read ahead is drawn and lost.

    sizes: {name: examples of a dataset}, in the order of the ConcatDataset.
    mixture: how often each dataset is drawn; it may change at any time.
    batch_size: indices per batch; None: single indices.
    seed: for the draws and for the order within each pass.
    rank, world_size: this process among those that share the sequence of draws; by default those of torch.distributed.
        0 and 1 give all draws, for a loader that divides batches among processes itself (Accelerate's, prepared).
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
        self._rank, self._world_size = place_among_ranks("MixtureSampler", rank, world_size)
        self._found_its_place = world_size is None
        self._per_batch = (batch_size or 1) * self._world_size  # draws, over all ranks
        self._start(Draws(mixture, seed), 0)

    def _start(self, draws: Draws, batches: int) -> None:
        self._draws = draws
        self._orders = {name: Order(draws.seed, name, size) for name, size in self._sizes.items()}
        self._consumed, self._batches = draws.fork(), batches  # a place that follows behind; states begin there

    def __iter__(self) -> Iterator[Any]:
        if self._found_its_place and _read_by("accelerate.data_loader"):
            raise ValueError(
                "MixtureSampler: its loader was prepared by Accelerate, which shares the batches out among processes a "
                "second time, and reads one ahead, so that a saved state would be one too far. Do not prepare the "
                "loader: accelerator.prepare(model, optimizer) is enough; move batches to the device in the loss."
            )
        return self._endless()

    def _endless(self) -> Iterator[Any]:
        while True:
            yield self._indices(1)[0] if self._batch_size is None else self._indices(self._batch_size)

    def _indices(self, rounds: int) -> list[int]:
        """One draw for every rank, `rounds` times; the indices of this rank."""
        if self._draws.rule(self.mixture):
            self._consumed.rule(self.mixture, self._draws.position)
            if self._consumed.waiting > _KEPT:
                self._catch_up((self._batches + self.drawn) // 2)
        drawn = self._draws.draw_for(self._rank, self._world_size, rounds)
        return [self._offsets[name] + self._orders[name][count] for name, count in drawn]

    @property
    def examples(self) -> dict[str, int]:
        """How many examples of each dataset were drawn, over all ranks, including those read ahead."""
        return dict(self._draws.counts)

    @property
    def passes(self) -> dict[str, float]:
        """How many times each dataset was passed through, over all ranks."""
        return {name: count / self._sizes[name] for name, count in self._draws.counts.items()}

    @property
    def drawn(self) -> int:
        """Batches of this rank since the start of training, across resumes, including those read ahead."""
        return self._batches + (self._draws.position - self._consumed.position) // self._per_batch

    def _catch_up(self, batches: int) -> None:
        """States before so many batches will not be asked for any more."""
        if batches > self._batches:
            self._consumed.skip_to(self._consumed.position + (batches - self._batches) * self._per_batch)
            self._batches = batches

    def after(self, batches: int) -> Draws:
        """The position in the sequence after the first `batches` batches of this rank, counted as in `state_dict`.

        Afterwards, only positions from one batch earlier on can be asked for.
        """
        if not self._batches <= batches <= self.drawn:
            raise ValueError(
                f"MixtureSampler: consumed must be between {self._batches} and {self.drawn}, but it is {batches}."
            )
        self._catch_up(batches - 1)  # of the last one, a trainer may find that it was not finished
        place = self._consumed.fork()
        place.skip_to(place.position + (batches - self._batches) * self._per_batch)
        return place

    def state_dict(self, consumed: int | None = None) -> dict[str, Any]:
        """The state after all draws so far, or after the first `consumed` batches of this rank.

        Batches (without a batch size: indices) are counted from the start of training, across resumes. `consumed` may
        be as low as one less than that of the last state.
        """
        batches = self.drawn if consumed is None else consumed
        place = self.after(batches)
        if place.position < self._draws.position:  # behind what was drawn ahead, the mixture of the moment decides
            place.rule(self.mixture, self._draws.position, anyway=True)
        return {**place.state_dict(), "batches": batches, "sizes": dict(self._sizes)}

    def load_state_dict(self, state: Mapping[str, Any], changed: bool = False) -> None:
        """Go on exactly there. changed: datasets may have been added, left out, or have another size; those that are
        still there keep their counts.
        """
        check_state("MixtureSampler", state, sizes=by_name(is_count), batches=is_count)
        if not changed:
            check_sizes("MixtureSampler", self._sizes, state["sizes"], HINT)
        draws = self._draws.fork()
        draws.load_state_dict(state, self.mixture if changed else None)
        self._start(draws, int(state["batches"]))


def _read_by(module: str) -> bool:
    """Whether code of this module asks, if only through a loader: nothing else tells a sampler who reads it."""
    return any(frame.f_globals.get("__name__") == module for frame, _ in walk_stack(None))


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
