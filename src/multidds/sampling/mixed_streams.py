"""`MixedDataset` over streams, and readers of single streams."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from .._base.state import check_keys
from .draws import Draws
from .mixed_dataset import MixedDataset, is_stream


class MixedStreams(MixedDataset, IterableDataset[Any]):
    """A `MixedDataset` of which at least one dataset is a stream. Training is one endless epoch."""

    def _begin(self, draws: Draws) -> None:
        super()._begin(draws)
        self._skipped = 0  # positions that the Trainer will ask for again after a resume, and throw away
        self._places: dict[int, dict[str, Any]] = {}  # {position: states of the streams}, at ends of steps

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
        draws, used = self._consumed.fork(), self._used
        if alone:
            for name, place in self._places.get(draws.position, {}).items():
                streams[name].load_state_dict(place)
        while True:
            number = draws.position // (self._unit or 1)
            used = self._later_mixtures.bring_up_to_date(draws, used)
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
        self._places = {position: place for position, place in self._places.items() if position >= self.position}

    @property
    def places(self) -> dict[str, Any]:
        return self._places.get(self.position, {})

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "places": self.places}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_keys("MixedDataset", state, "places")
        super().load_state_dict(state)
        self._skipped = self.position
        self._places = {self.position: dict(state["places"])}


class StreamReader:
    """The examples of a stream, pass after pass, with a state if the stream has one."""

    def __init__(self, name: str, stream: Any) -> None:
        self.stateful = is_stateful(stream)
        own = self.stateful or hasattr(stream, "set_epoch")
        self._stream = copy.deepcopy(stream) if own else stream  # others may read the same object
        self._name, self._pass = name, 0
        self._iterator: Iterator[Any] | None = None
        self._loaded: Any = None  # the stream's own state, until it is read from

    def __next__(self) -> Any:
        for _ in range(2):  # the rest of this pass; if there is none, the next pass
            if self._iterator is None:
                if hasattr(self._stream, "set_epoch"):
                    self._stream.set_epoch(self._pass)
                self._iterator = iter(self._stream)
            for example in self._iterator:
                return example
            self._iterator, self._loaded, self._pass = None, None, self._pass + 1
        raise ValueError(f"MixedDataset: there are no examples in {self._name!r}.")

    def state_dict(self) -> dict[str, Any]:
        begun = self.stateful and self._iterator is not None
        return {"pass": self._pass, "own": self._stream.state_dict() if begun else self._loaded}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._iterator, self._loaded, self._pass = None, state["own"], state["pass"]
        if self._loaded is not None:
            self._stream.load_state_dict(self._loaded)


def is_stateful(stream: object) -> bool:
    return hasattr(stream, "state_dict") and hasattr(stream, "load_state_dict")
