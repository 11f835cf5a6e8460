"""Batches from DataLoaders, lists, functions and stateful iterables, drawn in one way, with exact resume.

`open_source` turns what a user has into a `Source`. Every draw runs under a seed made from (seed, name, pass, place in
the pass) or from the number of the batch, and leaves every random state outside as it was.
"""

import copy
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, default_collate

from .._base.checks import check_whole
from .._base.randomness import Permutation, derive, isolated
from .._base.state import check_keys, not_negative, restored

Part: TypeAlias = tuple[int, int, int]  # (part of a round, number of parts, place of a batch in its part)
SINGLE = "dev"  # the name of a dev set that was given without one
_PLACE = {"pass": 0, "place": 0}  # of a loop, at its beginning
_CHECKS = dict.fromkeys(_PLACE, not_negative)
_log = logging.getLogger("multidds")


class Source(Protocol):
    """A place in the batches of one dataset. first: the state of the user's own object before its first batch."""

    first: Any

    @property
    def passes(self) -> float:
        """Passes over the data so far; a fraction if the length is known, 0 if there are no passes."""

    @property
    def most_parts(self) -> float:
        """The most parts of a round that can have different examples; infinity if the source does not say."""

    def draw(self, number: tuple[int, ...], part: Part = (0, 1, 0)) -> Any:
        """Returns the next batch. Its number seeds sources that are functions; the others have their own order.

        part: of the round. Sources that can, give the parts of a round different examples.
        """

    def skip(self) -> None:
        """Goes past the next batch, which another rank takes."""

    def state_dict(self) -> dict[str, Any]: ...

    def check_state(self, state: Any) -> None:
        """Raises a ValueError if a state cannot be one of this source."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


def open_source(owner: str, role: str, name: str, source: Any, seed: int) -> Source:
    """Returns a source at its beginning; an object that batches cannot be drawn from is an error.

    owner: opens the error messages.
    role, name, seed: separate the random numbers of sources.
    source: a DataLoader, a list of batches, another iterable, or a function generator -> batch.
    """
    label, key = f"{owner}: {role} {name!r}", (seed, role, name)
    if callable(source) and not hasattr(source, "__iter__"):
        if isinstance(source, BatchesOf) and len(source.dataset) == 0:
            raise ValueError(f"{label}: there are no examples.")
        return _Function(key, source)
    if any(kind.__module__ == "accelerate.data_loader" for kind in type(source).__mro__):
        raise ValueError(
            f"{label}: the loader was prepared by Accelerate, whose loaders keep all processes in step and "
            "decide when gradients are synchronised. Give it unprepared; move batches to the device in the loss."
        )
    stateful = hasattr(source, "state_dict") and hasattr(source, "load_state_dict")
    if hasattr(source, "__next__") and not stateful:
        raise ValueError(
            f"{label}: an iterator can be gone through only once; give a DataLoader, a list of batches, "
            "or a function generator -> batch such as batches_of(dataset, batch_size)."
        )
    if hasattr(source, "column_names") or (isinstance(source, Dataset) and not isinstance(source, IterableDataset)):
        raise TypeError(f"{label}: a {type(source).__name__} has examples, not batches. Give batches_of(dataset, 32).")
    if not hasattr(source, "__iter__"):
        raise TypeError(f"{label}: expected a DataLoader, an iterable or a function, got {type(source).__name__}.")
    if hasattr(source, "__len__") and not (isinstance(source, DataLoader) and _streams(source)) and len(source) == 0:
        raise ValueError(f"{label}: there are no batches.")
    if stateful:
        return _Stateful(label, key, source)
    if isinstance(source, DataLoader) and source.persistent_workers:
        # Its iterators are one object: a second pass elsewhere would restart this one.
        raise ValueError(f"{label}: a DataLoader with persistent_workers=True cannot be shared; set it to False.")
    loop = _Loop(label, key, source)
    if (sentence := loop.why_inexact()) is not None:
        _log.warning("%s", sentence)
    return loop


def named_dev_sets(where: str, dev: Any) -> Mapping[str, Any]:
    """Returns {dev set: source}; a single source is called "dev"."""
    if isinstance(dev, Mapping):
        return dev
    if dev is None or (isinstance(dev, list | tuple) and any(isinstance(each, DataLoader) for each in dev)):
        raise TypeError(f"{where}: dev must be {{name: dev set}}, or one dev set, but it is {dev!r}.")
    return {SINGLE: dev}


def place_of(source: Source) -> dict[str, Any]:
    """Returns the state of a source; empty if it has none, for whatever reason."""
    try:
        return source.state_dict()
    except Exception:
        return {}


def refuse_sharing(owner: str, sources: Iterable[Any]) -> None:
    """Raises a ValueError if two names share an object that keeps its own place: they would move each other's."""
    seen = set()
    for source in sources:
        if hasattr(source, "load_state_dict"):
            if id(source) in seen:
                raise ValueError(f"{owner}: one {type(source).__name__} was given twice, but it keeps only one place.")
            seen.add(id(source))


def batches_of(dataset: Any, batch_size: int, collate_fn: Callable[[list[Any]], Any] = default_collate) -> "BatchesOf":
    """Returns probe batches of a map-style dataset, of random examples. For probes, not for training.

    dataset: a dataset with a length and indices.
    batch_size: examples per batch; larger batches make less noise.
    collate_fn: makes a batch of a list of examples; by default as a DataLoader does.
    """
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise TypeError(
            f"batches_of: needs a map-style dataset, with a length and indices, got {type(dataset).__name__}."
        )
    check_whole("batches_of", batch_size=batch_size)
    return BatchesOf(dataset, batch_size, collate_fn)


class BatchesOf:
    """A function generator -> batch whose parts of a round share no example. `batches_of` returns it.

    Any other function may have the same attributes and methods.

    splittable: whether all ranks draw the same batches, so that each rank may compute the gradients of other sets.
    """

    splittable = True

    def __init__(self, dataset: Any, batch_size: int, collate_fn: Callable[[list[Any]], Any]) -> None:
        self.dataset, self.batch_size, self.collate_fn = dataset, batch_size, collate_fn

    def __call__(self, generator: torch.Generator) -> Any:
        """Returns a batch of examples drawn with replacement."""
        indices = torch.randint(len(self.dataset), (self.batch_size,), generator=generator, device="cpu")
        return self.collate_fn([self.dataset[i] for i in indices.tolist()])

    @property
    def size(self) -> int:
        """The number of examples."""
        return len(self.dataset)

    def of_part(self, key: int, part: Part) -> Any:
        """Returns a batch; parts of a round share no example. key: seeds the order of the round."""
        return self.collate_fn([self.dataset[i] for i in part_indices(self.size, key, part, self.batch_size)])


def part_indices(size: int, key: int, part: Part, count: int) -> list[int]:
    """Returns `count` indices of a batch, from the part of all examples that it belongs to, in an order by the key.

    The parts share no index, unless there are fewer examples than parts. Batches of a part share none before all
    examples of the part are used.

    >>> [part_indices(5, key=1, part=(part, 2, 0), count=3) for part in (0, 1)]
    [[0, 2, 0], [1, 3, 4]]
    """
    number, parts, place = part
    parts = min(parts, size)
    start, end = (size * (number % parts + step) // parts for step in (0, 1))
    order = Permutation(key, size)
    return [order[start + (place * count + i) % (end - start)] for i in range(count)]


class _Function:
    """A function generator -> batch, without order, passes or state: the number of a batch seeds it."""

    passes = 0.0
    first: Any = None

    def __init__(self, key: tuple[int | str, ...], function: Any) -> None:
        self._key, self._function = key, function

    @property
    def most_parts(self) -> float:
        return float(getattr(self._function, "size", math.inf))

    def draw(self, number: tuple[int, ...], part: Part = (0, 1, 0)) -> Any:
        seed = derive(*self._key, *number)
        with isolated(seed):
            if hasattr(self._function, "of_part"):
                return self._function.of_part(derive(*self._key, *number[:-1], "round"), part)
            return self._function(torch.Generator().manual_seed(seed))

    def skip(self) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {}

    def check_state(self, state: Any) -> None:
        pass

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


class _Loop:
    """A DataLoader, sequence or other iterable, gone through pass after pass.

    first: of an object that keeps its own place, its state before the first batch.
    """

    first: Any = None

    def __init__(self, label: str, key: tuple[int | str, ...], iterable: Iterable[Any]) -> None:
        self._label, self._key, self._iterable = label, key, iterable
        self._iterator: Iterator[Any] | None = None
        self._pass = 0  # the pass that is under way
        self._place = 0  # batches taken from it

    @property
    def most_parts(self) -> float:
        try:
            return float(len(self._iterable))  # type: ignore[arg-type]
        except TypeError:  # a stream
            return math.inf

    def draw(self, number: tuple[int, ...], part: Part = (0, 1, 0)) -> Any:
        try:
            batch = self._next()
        except StopIteration:
            if self._place == 0:
                raise ValueError(f"{self._label}: there are no batches.") from None
            self._iterator, self._pass, self._place = None, self._pass + 1, 0
            return self.draw(number)
        self._place += 1
        return batch

    def skip(self) -> None:
        self.draw(())

    def _next(self) -> Any:
        # One seed per batch, not per pass: a resumed pass needs no random state but the two numbers.
        with isolated(derive(*self._key, self._pass, self._place), generators=self._generators()), self._epoch():
            if self._iterator is None:
                self._iterator = iter(self._iterable)
            return next(self._iterator)

    @contextmanager
    def _epoch(self) -> Iterator[None]:
        """Sets the epoch number by which a DistributedSampler shuffles, and puts its own back afterwards."""
        sampler = getattr(self._iterable, "sampler", None)
        if not isinstance(sampler, DistributedSampler):
            yield
            return
        before = sampler.epoch
        sampler.set_epoch(self._pass)
        try:
            yield
        finally:
            sampler.set_epoch(before)

    def _generators(self) -> list[torch.Generator]:
        """Returns the generators that a DataLoader's shuffling uses, which are seeded and put back."""
        if not isinstance(self._iterable, DataLoader):
            return []
        batch_sampler = self._iterable.batch_sampler
        owners = [self._iterable, self._iterable.sampler, batch_sampler, getattr(batch_sampler, "sampler", None)]
        generators = [getattr(owner, "generator", None) for owner in owners]
        return list({id(g): g for g in generators if isinstance(g, torch.Generator)}.values())

    @property
    def passes(self) -> float:
        try:
            return self._pass + self._place / len(self._iterable)  # type: ignore[arg-type]
        except TypeError:  # no length: whole passes
            return float(self._pass)

    def why_inexact(self) -> str | None:
        """Returns why the place cannot be saved, and what to give instead; None: it can."""
        streams = isinstance(self._iterable, DataLoader) and _streams(self._iterable)
        if isinstance(self._iterable, Sequence | DataLoader) and not streams:
            return None
        what = "DataLoader over an IterableDataset" if streams else type(self._iterable).__name__
        return (
            f"{self._label}: a {what} cannot be resumed, and state_dict() is an error. To save checkpoints, give "
            "torchdata's StatefulDataLoader or another object with state_dict and load_state_dict, a DataLoader over "
            "a map-style dataset, a list of batches, or a function."
        )

    def state_dict(self) -> dict[str, Any]:
        if (sentence := self.why_inexact()) is not None:
            raise ValueError(sentence)
        return {"pass": self._pass, "place": self._place}

    def check_state(self, state: Any) -> None:
        check_keys(self._label, state, *_PLACE)
        restored(f"{self._label}: the state", _PLACE, {key: state[key] for key in _PLACE}, _CHECKS)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.check_state(state)
        self._iterator, self._pass, self._place = None, state["pass"], 0
        while self._place < state["place"]:
            try:
                self._next()
            except StopIteration:
                raise ValueError(
                    f"{self._label}: the state has 'place' {state['place']}, but a pass has {self._place} batches: "
                    "this is other data."
                ) from None
            self._place += 1


class _Stateful(_Loop):
    """An iterable that keeps its own place, such as torchdata's StatefulDataLoader."""

    _loaded: Any = None  # its own state, as it was loaded

    def _next(self) -> Any:
        if self._iterator is None:
            # Apart from the first batch: its random numbers are the same whether or not an iterator is made before it.
            with isolated(derive(*self._key, self._pass, self._place)):
                self._iterator = iter(self._iterable)
                if self._pass == self._place == 0:
                    self.first = copy.deepcopy(self._iterable.state_dict())  # type: ignore[attr-defined]
        return super()._next()

    def _generators(self) -> list[torch.Generator]:
        return []  # part of the object's own state

    def state_dict(self) -> dict[str, Any]:
        # In the middle of a pass without an iterator: loaded, and nothing drawn since.
        own = self._loaded if self._place else None
        if self._iterator is not None:
            own = self._iterable.state_dict()  # type: ignore[attr-defined]
        return {"pass": self._pass, "place": self._place, "own": own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_keys(self._label, state, "own")
        self.check_state(state)
        self._iterator, self._pass, self._place = None, state["pass"], state["place"]
        self._loaded = state["own"]
        own = self.first if self._loaded is None else self._loaded
        if own is not None:
            self._iterable.load_state_dict(own)  # type: ignore[attr-defined]


def _streams(loader: DataLoader[Any]) -> bool:
    return isinstance(loader.dataset, IterableDataset)
