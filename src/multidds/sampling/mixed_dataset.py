"""`MixedDataset`: one torch dataset over several, in which every index is a position in the sequence of draws.

Reading is deterministic: index i gives the i-th draw of `MixtureSampler` in any process. A trainer's callback passes on
when a new mixture takes effect and what training has consumed; without one, an index is just an index.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset

from .._base.checks import check_names, check_whole
from .._base.state import check_keys, check_sizes, check_version
from ..mixture.mixture import Mixture, check_mixture
from .draws import Draws, Order
from .shared_mixtures import SharedMixtures, shared_zeros


class MixedDataset(Dataset[Any]):
    """Several datasets as one, from which examples are drawn with the probabilities of a mixture.

    datasets: {name: torch dataset, `datasets.Dataset`, or a stream}.
    mixture: probability of each dataset.
    seed: for the draws.
    batch_size: examples per batch. Only needed for streams with several workers and without a callback, so that the
        batches are those that a single reader would make.

    Its length is the sum of the sizes, so an epoch is as long as without a mixture. The next epoch continues in the
    same endless sequence, if the loader announces epochs (`set_epoch`). The order in which an epoch is read does not
    matter, except to a `BalanceCallback`, which makes sure that indices are read in ascending order.

    If any of the datasets is a stream, the whole is a stream (`IterableDataset`), and training needs `max_steps`. A
    stream that ends starts over. Several workers read different shards of each stream, in the proportions of the
    mixture.
    """

    def __new__(
        cls, datasets: Mapping[str, Any], mixture: Mixture, seed: int = 0, batch_size: int | None = None
    ) -> "MixedDataset":
        from .mixed_streams import MixedStreams  # which is a MixedDataset itself

        streams = isinstance(datasets, Mapping) and any(map(is_stream, datasets.values()))
        kind = MixedStreams if streams else MixedExamples
        return super().__new__(kind if cls is MixedDataset else cls)

    def __getnewargs__(self) -> tuple[Any, ...]:
        return self.datasets, self.mixture  # copies for workers are made by __new__, too

    def __init__(
        self, datasets: Mapping[str, Any], mixture: Mixture, seed: int = 0, batch_size: int | None = None
    ) -> None:
        check_mixture("MixedDataset", mixture)
        if not isinstance(datasets, Mapping):
            raise TypeError(f"MixedDataset: datasets must be {{name: dataset}}, got {type(datasets).__name__}.")
        check_names("MixedDataset: names of the mixture", mixture.names, datasets)
        for name, dataset in datasets.items():
            indexed = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
            if not (is_stream(dataset) or (indexed and not isinstance(dataset, Mapping))):  # such as a DatasetDict
                raise TypeError(
                    f"MixedDataset: {name!r} must be a dataset with a length and indices, or an IterableDataset, "
                    f"got {type(dataset).__name__}."
                )
        self.mixture, self.datasets = mixture, dict(datasets)
        self.sizes = {name: None if is_stream(d) else len(d) for name, d in datasets.items()}
        sized = {name: size for name, size in self.sizes.items() if size is not None}
        check_whole("MixedDataset", **{f"the size of {name!r}": size for name, size in sized.items()})
        if batch_size is not None:
            check_whole("MixedDataset", batch_size=batch_size)
        self._sized, self._seed = sized, seed
        self._length = sum(sized.values())  # of an epoch
        self._epoch = shared_zeros(1, dtype=torch.int64)
        self._attached = False  # to a callback
        self._capacity = 8  # mixtures that a lagging reader can find
        self._unit = batch_size  # examples that one worker reads in a row
        self._step: int | None = None  # examples of an optimizer step, over all processes
        self.restart()

    def restart(self) -> None:
        """Goes back to the first position, with the mixture of this moment."""
        self._begin(Draws(self.mixture, self._seed))

    def _begin(self, draws: Draws) -> None:
        self._consumed = draws  # by training; without a callback: before this epoch
        self._seed = draws.seed
        self._orders = {name: Order(draws.seed, name, size) for name, size in self._sized.items()}
        # For readers in workers, and how many of them the draws use.
        self._later_mixtures, self._used = SharedMixtures(self.mixture.names, self._capacity), 0
        self._epoch.zero_()

    def attach(self, step: int, unit: int, rounds_to_remember: int, whole: int = 1) -> None:
        """Prepares for a callback, before training. An epoch becomes a whole number of steps.

        step: examples per optimizer step, over all processes.
        unit: examples that a worker reads in a row.
        rounds_to_remember: steps by which a reader may lag behind.
        whole: examples of a batch, if an incomplete last one is dropped.
        """
        self._attached, self._step, self._unit = True, step, unit
        self._capacity = rounds_to_remember + 8
        kept = sum(self._sized.values()) // whole * whole
        self._length = max(1, -(-kept // step)) * step
        self.restart()

    @property
    def position(self) -> int:
        """Examples that training has consumed, over all processes; without a callback, those before this epoch."""
        return self._consumed.position

    def consume(self, count: int) -> None:
        """Counts the next `count` examples as seen by training. For callbacks."""
        self._consumed.skip_to(self.position + count)

    def mixture_changed(self, effective_from: int) -> None:
        """Lets the mixture, if it has moved, take effect from the position `effective_from` on. For callbacks."""
        if self._consumed.use(self.mixture, effective_from):
            self._used = self._later_mixtures.add(effective_from, self.mixture.probabilities)

    @property
    def examples(self) -> dict[str, int]:
        """{name: examples that training has consumed, over all processes}; an error if no callback counts them."""
        if not self._attached:
            raise RuntimeError(
                "MixedDataset: without a BalanceCallback, examples and passes are not known: any process may read any "
                "index. Expected passes over a dataset are its probability * examples of the training / its size."
            )
        return dict(self._consumed.counts)

    @property
    def passes(self) -> dict[str, float]:
        """{name: passes of training over the dataset so far, over all processes}, for datasets of known size."""
        examples = self.examples
        return {name: examples[name] / size for name, size in self._sized.items()}

    @property
    def places(self) -> dict[str, Any]:
        """{name: state of the stream where training is}, for streams that have states."""
        return {}

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch; the loader calls it."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the state after what training has consumed, with mixtures that are still to take effect."""
        return {**self._consumed.state_dict(), "sizes": dict(self.sizes)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues exactly where the other dataset was."""
        check_version("MixedDataset", state)
        check_keys("MixedDataset", state, "sizes")
        check_sizes("MixedDataset", self.sizes, state["sizes"])
        consumed = self._consumed.fork()
        consumed.load_state_dict(state)
        self._begin(consumed)


class MixedExamples(MixedDataset):
    """A `MixedDataset` whose datasets all have a length and indices."""

    def _begin(self, draws: Draws) -> None:
        super()._begin(draws)
        # Made in the process that reads; a copy of the dataset in another process makes its own.
        self._reader: tuple[Draws, int] | None = None  # and how many of the later mixtures it uses
        self._any_order: AnyOrder | None = None

    def set_epoch(self, epoch: int) -> None:
        start = epoch * self._length
        if not self._attached:  # nothing else counts what was consumed, or notices that the mixture moved
            self._go_to(start)
            self.mixture_changed(start)
        elif start > self.position:
            raise ValueError(
                f"MixedDataset: epoch {epoch} begins at position {start}, but training has only consumed "
                f"{self.position} examples. Epochs cannot be left early (should_epoch_stop), and a BalanceCallback "
                "must be added to the Trainer that it was made for."
            )
        self._epoch.fill_(epoch)
        self._reader = self._any_order = None

    def _go_to(self, start: int) -> None:
        if start < self.position:  # another training
            self._consumed = Draws(self.mixture, self._seed)
        self._consumed.skip_to(start)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Returns the examples of a batch, by one call per dataset if the dataset offers that."""
        start = int(self._epoch.item()) * self._length
        draw_at = self._drawn_in_order() if self._attached else self._drawn_in_any_order(start)
        drawn: list[str] = []
        places: dict[str, list[int]] = {name: [] for name in self.datasets}
        for index in map(int, indices):
            if not 0 <= index < self._length:
                raise IndexError(f"MixedDataset: index {index} is not between 0 and {self._length - 1}.")
            name, count = draw_at(start + index)
            drawn.append(name)
            places[name].append(self._orders[name][count])
        examples = {name: iter(_several(self.datasets[name], wanted)) for name, wanted in places.items() if wanted}
        return [next(examples[name]) for name in drawn]

    def _drawn_in_order(self) -> Callable[[int], tuple[str, int]]:
        """Returns position -> draw, for rising positions, while a callback may add mixtures at any time."""
        draws, used = self._reader or (self._consumed.fork(), self._used)
        # All that take effect before a position are there before it is asked for.
        self._reader = draws, self._later_mixtures.bring_up_to_date(draws, used)

        def draw_at(position: int) -> tuple[str, int]:
            if position < draws.position:
                raise ValueError(
                    f"MixedDataset: position {position} was asked for after {draws.position - 1}, but with a "
                    "BalanceCallback positions are read in order. Set train_sampling_strategy='sequential' in "
                    "TrainingArguments, and read the dataset nowhere else."
                )
            draws.skip_to(position)
            return draws.draw()

        return draw_at

    def _drawn_in_any_order(self, start: int) -> Callable[[int], tuple[str, int]]:
        """Returns position -> draw, for the epoch that begins at `start`, within which no mixture changes."""
        if self._any_order is None or self._any_order.start != start:
            # In a worker that outlives epochs, mixtures came after its copy was made.
            self._used = self._later_mixtures.bring_up_to_date(self._consumed, self._used)
            self._go_to(start)
            self._any_order = AnyOrder(self._consumed.fork(), self._length)
        return self._any_order.draw_at


class AnyOrder:
    """The draws of one epoch, readable in any order: at regular distances a position is kept to start from.

    draws: the start of the epoch.
    length: positions of the epoch.
    most_counts: numbers that are kept, one per dataset and kept position; 2**18 are some 20 megabytes.
    """

    def __init__(self, draws: Draws, length: int, most_counts: int = 1 << 18) -> None:
        self.start = draws.position
        self.distance = max(64, -(-length * len(draws.counts) // most_counts))  # between kept positions
        self._kept = [draws]
        self._reader = draws.fork()

    def draw_at(self, position: int) -> tuple[str, int]:
        """Returns the dataset at this position, and how many times it was drawn before."""
        if not 0 <= position - self._reader.position < self.distance:
            self._reader = self._kept_before(position).fork()
        self._reader.skip_to(position)
        return self._reader.draw()

    def _kept_before(self, position: int) -> Draws:
        number = (position - self.start) // self.distance
        while len(self._kept) <= number:
            following = self._kept[-1].fork()
            following.skip_to(following.position + self.distance)
            self._kept.append(following)
        return self._kept[number]


def is_stream(dataset: object) -> bool:
    return isinstance(dataset, IterableDataset)


def _several(dataset: Any, places: list[int]) -> list[Any]:
    if hasattr(dataset, "__getitems__"):
        return list(dataset.__getitems__(places))
    return [dataset[place] for place in places]
