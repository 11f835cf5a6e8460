"""`MixtureSampler`: indices of examples for a DataLoader, drawn from a mixture.

There is one global sequence of draws; rank r of W takes every W-th of it.
"""

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

from torch.utils.data import Sampler

from .._base.checks import check_names, check_whole
from .._base.ranks import checked_rank
from .._base.state import check_keys, check_sizes, check_version
from ..mixture.mixture import Mixture, check_mixture
from .draws import Draws, Order

_MOST_WAITING = 256  # mixtures since the last state; above it, states of the older half are given up


class MixtureSampler(Sampler[Any]):
    """Endless indices into `ConcatDataset([...])` in the order of `sizes`; with a batch size, lists of indices.

    Use it as the `sampler` of a DataLoader, or with a batch size as its `batch_sampler`. No example repeats within a
    pass. Every pass has a new order, computed per index, so nothing as large as a dataset is stored.

    A draw uses the mixture of that moment. A DataLoader with workers reads num_workers * prefetch_factor batches ahead,
    so a new mixture takes effect after exactly that many batches, and `state_dict(consumed=b)` gives the state after
    the b batches that training has really seen. Keep one iterator of such a loader for the whole run: what an abandoned
    iterator had read ahead is drawn and lost.

    sizes: {name: number of examples}, in the order of the ConcatDataset.
    mixture: probability of each dataset; it may change at any time.
    batch_size: indices per batch; None: single indices.
    seed: for the draws and for the order within each pass.
    rank: of this process among those that share the sequence of draws; by default that of torch.distributed.
    world_size: number of those processes; by default that of torch.distributed. Rank 0 of 1 gets all draws, for a
        loader that divides batches among processes itself, as one prepared by Accelerate does.
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
        self._rank, self._world_size = checked_rank("MixtureSampler", rank, world_size)
        self._per_batch = (batch_size or 1) * self._world_size  # draws, over all ranks
        self._start(Draws(mixture, seed), 0)

    def _start(self, draws: Draws, batches: int) -> None:
        self._draws = draws
        self._orders = {name: Order(draws.seed, name, size) for name, size in self._sizes.items()}
        # The earliest position of which a state can be asked for, and the batches of this rank before it.
        self._consumed, self._batches = draws.fork(), batches

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield self._indices(1)[0] if self._batch_size is None else self._indices(self._batch_size)

    def _indices(self, rounds: int) -> list[int]:
        """Draws `rounds` times for every rank, and returns the indices of this one."""
        if self._draws.use(self.mixture):
            self._consumed.use(self.mixture, self._draws.position)
            if self._consumed.waiting > _MOST_WAITING:
                self._give_up_before((self._batches + self.drawn) // 2)
        drawn = self._draws.draw_for(self._rank, self._world_size, rounds)
        return [self._offsets[name] + self._orders[name][count] for name, count in drawn]

    @property
    def examples(self) -> dict[str, int]:
        """{name: number of examples drawn, over all ranks, including those read ahead}."""
        return dict(self._draws.counts)

    @property
    def passes(self) -> dict[str, float]:
        """{name: passes over the dataset so far, over all ranks}."""
        return {name: count / self._sizes[name] for name, count in self._draws.counts.items()}

    @property
    def drawn(self) -> int:
        """Batches of this rank since the start of training, across resumes, including those read ahead."""
        return self._batches + (self._draws.position - self._consumed.position) // self._per_batch

    def _give_up_before(self, batches: int) -> None:
        """Makes states of fewer batches unavailable."""
        if batches > self._batches:
            self._consumed.skip_to(self._consumed.position + (batches - self._batches) * self._per_batch)
            self._batches = batches

    def after(self, batches: int) -> Draws:
        """Returns the position after the first `batches` batches of this rank, counted as in `state_dict`.

        Afterwards, only positions from one batch earlier on can be asked for.
        """
        if not self._batches <= batches <= self.drawn:
            raise ValueError(
                f"MixtureSampler: consumed must be between {self._batches} and {self.drawn}, but it is {batches}."
            )
        self._give_up_before(batches - 1)  # a trainer may later count its last batch as not finished
        position = self._consumed.fork()
        position.skip_to(position.position + (batches - self._batches) * self._per_batch)
        return position

    def state_dict(self, consumed: int | None = None) -> dict[str, Any]:
        """Returns the state after all draws so far, or after the first `consumed` batches of this rank.

        consumed: batches (without a batch size: indices) since the start of training, across resumes. It may be as low
            as one less than that of the last state.
        """
        batches = self.drawn if consumed is None else consumed
        position = self.after(batches)
        if position.position < self._draws.position:  # after what was drawn ahead, the mixture of the moment decides
            position.use(self.mixture, self._draws.position, anyway=True)
        return {**position.state_dict(), "batches": batches, "sizes": dict(self._sizes)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues exactly where the other sampler was."""
        check_version("MixtureSampler", state)
        check_keys("MixtureSampler", state, "sizes", "batches")
        check_sizes("MixtureSampler", self._sizes, state["sizes"])
        draws = self._draws.fork()
        draws.load_state_dict(state)
        self._start(draws, state["batches"])
