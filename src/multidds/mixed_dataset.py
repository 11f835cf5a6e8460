"""One torch dataset over several, in which every index is a position in the global sequence of draws.

Which example stands at a position is a function of seed, position and the mixtures that rule from given positions
on: the sequence of `MixtureSampler`, whoever reads it and when. Workers see new mixtures through shared memory. When
the mixture moves, and how far a loader has read ahead by then, is for a trainer's callback to say.
"""

import copy
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from .checks import check_names, check_whole
from .mixture import Mixture, check_mixture
from .randomness import derive, point
from .sampling import Orders


class MixedDataset(Dataset[Any]):
    """{name: dataset} as one dataset that is drawn from as the mixture says, example by example.

    Its length is the sum of the sizes, so an epoch is what it is without a mixture; behind its last index the next
    epoch goes on in the same endless sequence. Indices must be read in rising order, with gaps where other workers or
    processes read: the Trainer does so with `train_sampling_strategy="sequential"`, which `BalanceCallback` sets.

    If any of the datasets is a stream, the whole is a stream, and training needs `max_steps`. A stream that ends
    starts over. Several workers read different shards of each stream, in proportions that stay those of the mixture.
    `batch_size`: only for streams with several workers and without a callback, which would know it.
    """

    def __new__(cls, datasets: Any = None, *args: Any, **kwargs: Any) -> "MixedDataset":
        if cls is MixedDataset:
            streaming = isinstance(datasets, Mapping) and any(map(is_stream, datasets.values()))
            cls = _MixedStreams if streaming else _MixedExamples
        return super().__new__(cls)

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
        self._epoch = _shared(1, dtype=torch.int64)
        self._followed = False  # by a callback, which says when the mixture moved and what was consumed
        self._capacity = 8  # mixtures that a lagging reader can find
        self._unit = batch_size  # examples that one worker reads in a row
        self._step: int | None = None  # examples of an optimizer step, over all processes
        self.restart()

    def restart(self) -> None:
        """Back to the first position, with the mixture of this moment."""
        self._begin(self._seed, 0, dict.fromkeys(self.sizes, 0), [(0, self.mixture.probabilities)])

    def _begin(
        self, seed: int, position: int, counts: dict[str, int], history: Sequence[tuple[int, Mapping[str, float]]]
    ) -> None:
        self._seed, self._orders = seed, Orders(seed, self._sized)
        self._history = _History(self.mixture.names, self._capacity + len(history))
        for start, probabilities in history:
            self._history.add(start, probabilities)
        self._version = self.mixture.version
        self._consumed = _Draws(derive(seed, "draws"), self._history, position, counts)
        self._epoch.zero_()

    def be_followed(self, step: int, unit: int, rounds_to_remember: int, whole: int = 1) -> None:
        """From a callback, before training: examples per optimizer step; examples that a worker reads in a row; for
        how many steps a reader may lag behind; `whole`: the examples of a batch, where an incomplete last one is
        dropped. An epoch becomes a whole number of steps: those of an ordinary script.
        """
        self._followed, self._step, self._unit = True, step, unit
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

    def follow(self, position: int) -> None:
        """If the mixture has moved since the last call, the move takes effect at this position."""
        if self._version != self.mixture.version:
            self._version = self.mixture.version
            self._history.add(position, self.mixture.probabilities)

    @property
    def examples(self) -> dict[str, int]:
        """How many examples of each dataset training has consumed, over all processes."""
        return dict(self._consumed.counts)

    @property
    def passes(self) -> dict[str, float]:
        """How often training has gone through each dataset of known size, over all processes."""
        return {name: self._consumed.counts[name] / size for name, size in self._sized.items()}

    def set_epoch(self, epoch: int) -> None:
        """The loader calls it before it begins an epoch."""

    def state_dict(self) -> dict[str, Any]:
        """The state after what training has consumed, mixtures that are still to take effect included."""
        return {
            "seed": self._seed,
            "position": self.position,
            "sizes": dict(self.sizes),
            "counts": self.examples,
            "history": [[start, mixture.probabilities] for start, mixture in self._consumed.rules()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_names("MixedDataset: state", self.sizes, state["sizes"])
        for name, size in self.sizes.items():
            if state["sizes"][name] != size:
                raise ValueError(
                    f"MixedDataset: the state is of {_counted(state['sizes'][name])} {name!r}, not {_counted(size)} it."
                )
        history = [(int(start), probabilities) for start, probabilities in state["history"]]
        self._begin(state["seed"], int(state["position"]), dict(state["counts"]), history)


class _MixedExamples(MixedDataset):
    """All datasets have a length and indices."""

    def _begin(self, *state: Any) -> None:
        super()._begin(*state)
        self._reader = self._consumed.copy()

    def set_epoch(self, epoch: int) -> None:
        start = epoch * self._length
        if self._followed and start > self.position:
            raise ValueError(
                f"MixedDataset: epoch {epoch} begins at position {start}, but training has only consumed "
                f"{self.position} examples. Epochs cannot be left early (should_epoch_stop), and a BalanceCallback "
                "must be added to the Trainer that it was made for."
            )
        if not self._followed:  # nobody else says what was consumed, and when the mixture moved
            if start < self.position:
                self.restart()
            self._consumed.skip_to(start)
            self.follow(start)
        self._epoch.fill_(epoch)
        self._reader = self._consumed.copy()

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The examples of a batch, in one call per dataset where the dataset offers that."""
        drawn = [self._draw(int(index)) for index in indices]
        places: dict[str, list[int]] = {}
        for name, place in drawn:
            places.setdefault(name, []).append(place)
        found = {name: iter(_several(self.datasets[name], wanted)) for name, wanted in places.items()}
        return [next(found[name]) for name, _ in drawn]

    def _draw(self, index: int) -> tuple[str, int]:
        """(name, place in that dataset) of what stands at an index of this epoch."""
        if not 0 <= index < self._length:
            raise IndexError(f"MixedDataset: index {index} is not between 0 and {self._length - 1}.")
        position = int(self._epoch.item()) * self._length + index
        if position < self._reader.position:
            raise ValueError(
                f"MixedDataset: position {position} was asked for after {self._reader.position - 1}, but positions are "
                "read in order. Set train_sampling_strategy='sequential' in TrainingArguments; in several processes "
                "add a BalanceCallback."
            )
        self._reader.skip_to(position)
        name, count = self._reader.draw()
        return name, self._orders.place(name, count)


class _MixedStreams(MixedDataset, IterableDataset[Any]):
    """At least one dataset is a stream. The training is one endless epoch."""

    def _begin(self, *state: Any) -> None:
        super()._begin(*state)
        self._skipped = 0  # positions that the Trainer will ask for again after a resume, and throw away
        self._places: dict[int, dict[str, Any]] = {}  # {position: places of the streams}, where a step may end

    def set_epoch(self, epoch: int) -> None:
        if epoch > 0:  # a finished training was resumed: the Trainer throws nothing away
            self._skipped = 0

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        if workers > 1 and self._unit is None:
            raise ValueError(
                f"MixedDataset: to share streams between {workers} workers it must know the batch size: "
                "give batch_size, or add a BalanceCallback."
            )
        examples = self._examples(worker, workers, alone=info is None)
        if self._skipped:
            batches = range(worker, self._skipped // (self._unit or 1), workers)  # this worker's
            example = next(examples)
            for _ in range(len(batches) * (self._unit or 1) + 1):  # nothing is read for what is thrown away
                yield example
        yield from examples

    def _examples(self, worker: int, workers: int, alone: bool) -> Iterator[Any]:
        streams = {name: Stream(name, d) for name, d in self.datasets.items() if is_stream(d)}
        draws = self._consumed.copy()
        if alone:
            for name, place in self._places.get(draws.position, {}).items():
                streams[name].load_state_dict(place)
        while True:
            number = draws.position // (self._unit or 1)
            name, count = draws.draw()
            if number % workers != worker:
                continue
            part = self.datasets[name]
            example = next(streams[name]) if name in streams else part[self._orders.place(name, count)]
            if alone and self._step is not None and draws.position % self._step == 0:
                self._places[draws.position] = {n: s.state_dict() for n, s in streams.items() if s.stateful}
            yield example

    def consume(self, count: int) -> None:
        super().consume(count)
        for position in [position for position in self._places if position < self.position]:
            del self._places[position]

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "places": self._places.get(self.position, {})}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._skipped = self.position
        self._places = {self.position: dict(state["places"])}


class Stream:
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


class _History:
    """Which mixture rules from which position on. In shared memory: workers see what is added after they began."""

    def __init__(self, names: Sequence[str], capacity: int) -> None:
        self._names = tuple(names)
        self._rows = _shared(capacity, 1 + len(names), dtype=torch.float64)  # a ring
        self._total = _shared(1, dtype=torch.int64)

    def add(self, position: int, probabilities: Mapping[str, float]) -> None:
        """Behind all that were added before: where one of them is still to come, this one waits for it."""
        row = [float(position), *(probabilities[name] for name in self._names)]
        self._rows[self.total % len(self._rows)] = torch.tensor(row, dtype=torch.float64)
        self._total += 1  # last, so that a reader never sees half a row

    @property
    def total(self) -> int:
        return int(self._total.item())

    def since(self, number: int) -> list[tuple[int, Mixture]]:
        total = self.total
        assert total - number <= len(self._rows), "a reader fell behind the mixtures that are kept"
        rows = [self._rows[i % len(self._rows)].tolist() for i in range(number, total)]
        return [(int(start), Mixture(dict(zip(self._names, p, strict=True)))) for start, *p in rows]


class _Draws:
    """A place in the sequence of draws: how many there were, and of which dataset."""

    def __init__(self, key: int, history: _History, position: int, counts: dict[str, int]) -> None:
        self._key, self._history = key, history
        self.position, self.counts = position, counts
        self._rules: deque[tuple[int, Mixture]] = deque()  # the first one rules here
        self._read = 0  # rows of the history

    def copy(self) -> "_Draws":
        twin = _Draws(self._key, self._history, self.position, dict(self.counts))
        twin._rules, twin._read = self._rules.copy(), self._read
        return twin

    def rules(self) -> deque[tuple[int, Mixture]]:
        """The mixture that rules here, and those that will."""
        if self._history.total != self._read:
            new = self._history.since(self._read)
            self._rules.extend(new)
            self._read += len(new)
        while len(self._rules) > 1 and self._rules[1][0] <= self.position:
            self._rules.popleft()
        return self._rules

    def draw(self) -> tuple[str, int]:
        """The dataset of this position, and how often it was drawn before."""
        name = self.rules()[0][1].at(point(self._key, self.position))
        count = self.counts[name]
        self.counts[name] = count + 1
        self.position += 1
        return name, count

    def skip_to(self, position: int) -> None:
        while self.position < position:
            rules = self.rules()  # all that rule before a position are there before it is asked for
            end = position if len(rules) == 1 else min(position, rules[1][0])
            key, counts, at = self._key, self.counts, rules[0][1].at
            for here in range(self.position, end):
                counts[at(point(key, here))] += 1
            self.position = end


def is_stream(dataset: object) -> bool:
    return isinstance(dataset, IterableDataset)


def is_stateful(stream: object) -> bool:
    return hasattr(stream, "state_dict") and hasattr(stream, "load_state_dict")


def _shared(*shape: int, dtype: torch.dtype) -> Tensor:
    """Zeros that all processes of a loader see."""
    return torch.zeros(shape, dtype=dtype, device="cpu").share_memory_()  # type: ignore[no-untyped-call,no-any-return]


def _several(dataset: Any, places: list[int]) -> list[Any]:
    if hasattr(dataset, "__getitems__"):
        return list(dataset.__getitems__(places))
    return [dataset[place] for place in places]


def _counted(size: int | None) -> str:
    return "a stream of" if size is None else f"{size} examples of"
