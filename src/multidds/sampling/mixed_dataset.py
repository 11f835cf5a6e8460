"""One torch dataset over several, in which every index is a position in the sequence of draws (`draws`).

Whoever reads it, and when, finds what `MixtureSampler` draws. When the mixture moves, and how far a loader has read
ahead by then, is for a trainer's callback to say; without one, an index is just an index.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from .._base.carrying import HINT
from .._base.checks import by_name, check_names, check_sizes, check_state, check_whole, is_count, is_state
from ..mixture.mixture import Mixture, check_mixture
from .draws import Draws, Order
from .shared_mixtures import SharedMixtures, shared


class MixedDataset(Dataset[Any]):
    """Several datasets as one, from which examples are drawn as the mixture says.

    datasets: {name: torch dataset, `datasets.Dataset`, or a stream}.
    mixture: how often each of them is drawn.
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
        check_names("MixedDataset", mixture.names, datasets)
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
        self._epoch = shared(1, dtype=torch.int64)
        self._attached = False  # to a callback, which says when the mixture moved and what was consumed
        self._capacity = 8  # mixtures that a lagging reader can find
        self._unit = batch_size  # examples that one worker reads in a row
        self._step: int | None = None  # examples of an optimizer step, over all processes
        self.restart()

    def restart(self) -> None:
        """Back to the first position, with the mixture of this moment."""
        self._begin(Draws(self.mixture, self._seed))

    def _begin(self, draws: Draws) -> None:
        self._consumed = draws  # by training; without a callback: before this epoch
        self._seed = draws.seed
        self._orders = {name: Order(draws.seed, name, size) for name, size in self._sized.items()}
        self._rules, self._known = SharedMixtures(self.mixture.names, self._capacity), 0  # for readers in workers
        self._epoch.zero_()

    def attach(self, step: int, unit: int, rounds_to_remember: int, whole: int = 1) -> None:
        """From a callback, before training: examples per optimizer step; examples that a worker reads in a row; for
        how many steps a reader may lag behind; `whole`: the examples of a batch, where an incomplete last one is
        dropped. An epoch becomes a whole number of steps: those of an ordinary script.
        """
        self._attached, self._step, self._unit = True, step, unit
        self._capacity = rounds_to_remember + 8
        kept = sum(self._sized.values()) // whole * whole
        self._length = max(1, -(-kept // step)) * step
        self.restart()

    @property
    def position(self) -> int:
        """How many examples training has consumed, over all processes."""
        return self._consumed.position

    def consume(self, count: int) -> None:
        """From a callback: training has seen the next `count` examples."""
        self._consumed.skip_to(self.position + count)

    def rule_from(self, position: int) -> None:
        """If the mixture has moved since the last call, it rules from this position on."""
        if self._consumed.rule(self.mixture, position):
            self._known = self._rules.add(position, self.mixture.probabilities)

    @property
    def examples(self) -> dict[str, int]:
        """How many examples of each dataset training has consumed, over all processes."""
        return dict(self._consumed.counts)

    @property
    def passes(self) -> dict[str, float]:
        """How often training has gone through each dataset of known size, over all processes."""
        return {name: self._consumed.counts[name] / size for name, size in self._sized.items()}

    @property
    def places(self) -> dict[str, Any]:
        """Where training is in each stream that can tell it."""
        return {}

    def set_epoch(self, epoch: int) -> None:
        """The loader calls it before it begins an epoch."""

    def state_dict(self) -> dict[str, Any]:
        """The state after what training has consumed, mixtures that are still to take effect included."""
        return {**self._consumed.state_dict(), "sizes": dict(self.sizes)}

    def check_state(self, state: Mapping[str, Any], changed: bool = False) -> None:
        """Refuse a state of other data."""
        check_state("MixedDataset", state, sizes=by_name(lambda size: size is None or is_count(size)))
        if not changed:
            check_sizes("MixedDataset", self.sizes, state["sizes"], HINT)

    def load_state_dict(self, state: Mapping[str, Any], changed: bool = False) -> None:
        """Go on exactly there. changed: datasets may have been added, left out, or have another size; those that are
        still there keep their counts.
        """
        self.check_state(state, changed)
        consumed = self._consumed.fork()
        consumed.load_state_dict(state, self.mixture if changed else None)
        self._begin(consumed)


class MixedExamples(MixedDataset):
    """All datasets have a length and indices."""

    def _begin(self, draws: Draws) -> None:
        super()._begin(draws)
        # Made in the process that reads; a copy of the dataset in another process makes its own.
        self._reader: tuple[Draws, int] | None = None  # and how many of the later mixtures it knows
        self._any_order: AnyOrder | None = None

    def set_epoch(self, epoch: int) -> None:
        start = epoch * self._length
        if not self._attached:  # nobody else says what was consumed, and when the mixture moved
            self._go_to(start)
            self.rule_from(start)
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
        """The examples of a batch, in one call per dataset where the dataset offers that."""
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
        found = {name: iter(_several(self.datasets[name], wanted)) for name, wanted in places.items() if wanted}
        return [next(found[name]) for name in drawn]

    def _drawn_in_order(self) -> Callable[[int], tuple[str, int]]:
        """What stands at a position, where a callback may add mixtures at any time: positions only rise."""
        draws, known = self._reader or (self._consumed.fork(), self._known)
        # All that rule before a position are there before it is asked for.
        self._reader = draws, self._rules.tell(draws, known)

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
        """What stands at a position of the epoch that begins at `start`, where no mixture moves in the middle of it."""
        if self._any_order is None or self._any_order.start != start:
            self._known = self._rules.tell(self._consumed, self._known)  # in a worker that outlives epochs
            self._go_to(start)
            self._any_order = AnyOrder(self._consumed.fork(), self._length)
        return self._any_order.draw_at


class MixedStreams(MixedDataset, IterableDataset[Any]):
    """At least one dataset is a stream. The training is one endless epoch."""

    def _begin(self, draws: Draws) -> None:
        super()._begin(draws)
        self._skipped = 0  # positions that the Trainer will ask for again after a resume, and throw away
        self._places: dict[int, dict[str, Any]] = {}  # {position: places of the streams}, where a step may end

    def set_epoch(self, epoch: int) -> None:
        if epoch > 0:  # a finished training was resumed: the Trainer throws nothing away
            self._skipped = 0

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        examples = self._examples(worker, workers, alone=info is None)
        if self._skipped:
            batches = range(worker, self._skipped // (self._unit or 1), workers)  # this worker's
            example = next(examples)
            for _ in range(len(batches) * (self._unit or 1) + 1):  # nothing is read for what is thrown away
                yield example
        yield from examples

    def _examples(self, worker: int, workers: int, alone: bool) -> Iterator[Any]:
        streams = {name: StreamReader(name, d) for name, d in self.datasets.items() if is_stream(d)}
        draws, known = self._consumed.fork(), self._known
        if alone:
            for name, place in self._places.get(draws.position, {}).items():
                streams[name].load_state_dict(place)
        while True:
            number = draws.position // (self._unit or 1)
            known = self._rules.tell(draws, known)
            name, count = draws.draw()
            if number % workers != worker:
                continue
            part = self.datasets[name]
            example = next(streams[name]) if name in streams else part[self._orders[name][count]]
            if alone and self._step is not None and draws.position % self._step == 0:
                self._places[draws.position] = {n: s.state_dict() for n, s in streams.items() if s.stateful}
            yield example

    def consume(self, count: int) -> None:
        super().consume(count)
        for position in [position for position in self._places if position < self.position]:
            del self._places[position]

    @property
    def places(self) -> dict[str, Any]:
        return self._places.get(self.position, {})

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "places": self.places}

    def load_state_dict(self, state: Mapping[str, Any], changed: bool = False) -> None:
        self.check_state(state, changed)
        check_state("MixedDataset", state, places=by_name(is_state))
        super().load_state_dict(state, changed)
        self._skipped = self.position
        self._places = {self.position: {name: p for name, p in state["places"].items() if name in self.datasets}}


class StreamReader:
    """The examples of a stream, pass after pass, with its place where it can tell it."""

    def __init__(self, name: str, stream: Any) -> None:
        self.stateful = is_stateful(stream)
        own = self.stateful or hasattr(stream, "set_epoch")
        self._stream = copy.deepcopy(stream) if own else stream  # others may read the same object
        self._name, self._pass = name, 0
        self._iterator: Iterator[Any] | None = None

    def __next__(self) -> Any:
        for _ in range(2):  # the rest of this pass; if there is none, the next pass
            if self._iterator is None:
                if hasattr(self._stream, "set_epoch"):
                    self._stream.set_epoch(self._pass)
                self._iterator = iter(self._stream)
            for example in self._iterator:
                return example
            self._iterator, self._pass = None, self._pass + 1
        raise ValueError(f"MixedDataset: there are no examples in {self._name!r}.")

    def state_dict(self) -> dict[str, Any]:
        begun = self.stateful and self._iterator is not None
        return {"pass": self._pass, "own": self._stream.state_dict() if begun else None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._iterator, self._pass = None, int(state["pass"])
        if state["own"] is not None:
            self._stream.load_state_dict(state["own"])


class AnyOrder:
    """The draws of one epoch, asked for in any order. Every few of them a place is kept from which to look on."""

    _COUNTS = 1 << 18  # that are kept, of all datasets at all places: some 20 megabytes

    def __init__(self, draws: Draws, length: int) -> None:
        self.start = draws.position
        self._apart = max(64, -(-length * len(draws.counts) // self._COUNTS))  # positions from place to place
        self._places = [draws]
        self._reader = draws.fork()

    def draw_at(self, position: int) -> tuple[str, int]:
        """The dataset of this position, and how often it was drawn before."""
        if not 0 <= position - self._reader.position < self._apart:
            self._reader = self._near(position)
        self._reader.skip_to(position)
        return self._reader.draw()

    def _near(self, position: int) -> Draws:
        number = (position - self.start) // self._apart
        while len(self._places) <= number:
            place = self._places[-1].fork()
            place.skip_to(place.position + self._apart)
            self._places.append(place)
        return self._places[number].fork()


def is_stream(dataset: object) -> bool:
    return isinstance(dataset, IterableDataset)


def is_stateful(stream: object) -> bool:
    return hasattr(stream, "state_dict") and hasattr(stream, "load_state_dict")


def _several(dataset: Any, places: list[int]) -> list[Any]:
    if hasattr(dataset, "__getitems__"):
        return list(dataset.__getitems__(places))
    return [dataset[place] for place in places]
