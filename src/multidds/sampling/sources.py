"""Where batches come from: one way to draw from loaders, functions and stateful objects, with exact resume.

`open_source` turns what a user has into a `Source`. Every draw runs under a seed made from (seed, name,
pass, place in the pass) or from the number of the batch, and leaves every random state outside as it was.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, default_collate

from .._base.checks import check_state, is_count, is_state
from .._base.randomness import derive, isolated


class Source(Protocol):
    """What `open_source` returns."""

    @property
    def passes(self) -> float:
        """How often the data was gone through; a fraction where the length is known, 0 where there are no passes."""

    def draw(self, number: tuple[int, ...]) -> Any:
        """The next batch. Its number seeds sources that are functions; the others have an order of their own."""

    def skip(self) -> None:
        """Go past the next batch, which another replica takes."""

    def example(self) -> Any:
        """Part of the data, always the same; None: the source has nothing like that. Nothing moves."""

    def trial(self) -> Any:
        """A batch, where there is an example. Nothing moves."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


def open_source(owner: str, role: str, name: str, source: Any, seed: int) -> Source:
    """`owner` opens the error messages; (seed, role, name) separates the random numbers of sources."""
    label, key = f"{owner}: {role} {name!r}", (seed, role, name)
    if callable(source) and not hasattr(source, "__iter__"):
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
    if not hasattr(source, "__iter__"):
        raise TypeError(f"{label}: expected a DataLoader, an iterable or a function, got {type(source).__name__}.")
    if hasattr(source, "__len__") and not (isinstance(source, DataLoader) and _streams(source)) and len(source) == 0:
        raise ValueError(f"{label}: there are no batches.")
    if stateful:
        return _Stateful(label, key, source)
    if isinstance(source, DataLoader) and source.persistent_workers:
        # Its iterators are one object: a second pass elsewhere would restart this one.
        raise ValueError(f"{label}: a DataLoader with persistent_workers=True cannot be shared; set it to False.")
    return _Loop(label, key, source)


def refuse_sharing(owner: str, sources: Iterable[Any]) -> None:
    """An object that keeps its own place has only one: two names for it would move each other's."""
    seen = set()
    for source in sources:
        if hasattr(source, "load_state_dict"):
            if id(source) in seen:
                raise ValueError(f"{owner}: one {type(source).__name__} was given twice, but it keeps only one place.")
            seen.add(id(source))


def batches_of(dataset: Any, batch_size: int, collate_fn: Callable[[list[Any]], Any] = default_collate) -> "BatchesOf":
    """Probe batches of a map-style dataset: examples drawn with replacement. For probes, not for training.

    dataset: a dataset with a length and indices.
    batch_size: examples per batch; larger batches make less noise.
    collate_fn: makes a batch of a list of examples; by default as a DataLoader does.
    """
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise TypeError(
            f"batches_of: needs a map-style dataset, with a length and indices, got {type(dataset).__name__}."
        )
    if len(dataset) == 0:
        raise ValueError("batches_of: the dataset is empty.")
    if batch_size < 1:
        raise ValueError(f"batches_of: batch_size must be at least 1, but it is {batch_size}.")
    return BatchesOf(dataset, batch_size, collate_fn)


class BatchesOf:
    """What `batches_of` returns: a function generator -> batch that can also give single examples, for batches that mix
    datasets. Anything else with these names can, too.

    splittable: whether all ranks draw the same batches, so that each may compute the gradients of other sets.
    """

    splittable = True

    def __init__(self, dataset: Any, batch_size: int, collate_fn: Callable[[list[Any]], Any]) -> None:
        self._dataset, self.batch_size, self.collate_fn = dataset, batch_size, collate_fn

    def __call__(self, generator: torch.Generator) -> Any:
        return self.collate_fn(self.examples(generator, self.batch_size))

    def examples(self, generator: torch.Generator, count: int) -> list[Any]:
        """So many examples, drawn with replacement."""
        indices = torch.randint(len(self._dataset), (count,), generator=generator, device="cpu")
        return [self._dataset[i] for i in indices.tolist()]


class _Function:
    """A function generator -> batch: no order, no passes, no state; the number of the batch is everything."""

    passes = 0.0

    def __init__(self, key: tuple[int | str, ...], function: Callable[[torch.Generator], Any]) -> None:
        self._key, self._function = key, function

    def draw(self, number: tuple[int, ...]) -> Any:
        seed = derive(*self._key, *number)
        with isolated(seed):
            return self._function(torch.Generator().manual_seed(seed))

    def skip(self) -> None:
        pass

    def example(self) -> Any:
        return self.draw((0, 0))

    trial = example

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


class _Loop:
    """A DataLoader, sequence or other iterable, gone through pass after pass."""

    def __init__(self, label: str, key: tuple[int | str, ...], iterable: Iterable[Any]) -> None:
        self._label, self._key, self._iterable = label, key, iterable
        self._iterator: Iterator[Any] | None = None
        self._pass = 0  # the pass that is under way
        self._place = 0  # batches taken from it

    def draw(self, number: tuple[int, ...]) -> Any:
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

    def example(self) -> Any:
        data: Any = self._iterable
        if isinstance(data, DataLoader):
            samplers = [data.sampler, getattr(data.batch_sampler, "sampler", None), data.batch_sampler]
            if _streams(data) or any(hasattr(sampler, "num_replicas") for sampler in samplers):
                return None
            data = data.dataset
        elif not isinstance(data, Sequence):
            return None
        with isolated(derive(*self._key, "example"), generators=self._generators()):
            try:
                return len(data), data[0], data[len(data) - 1]
            except (TypeError, KeyError, IndexError):  # indices of another kind
                return None

    def trial(self) -> Any:
        with isolated(derive(*self._key, "example"), generators=self._generators()):
            return next(iter(self._iterable))

    def _next(self) -> Any:
        # One seed per batch, not per pass: a resumed pass needs no random state but the two numbers.
        with isolated(derive(*self._key, self._pass, self._place), generators=self._generators()), self._epoch():
            if self._iterator is None:
                self._iterator = iter(self._iterable)
            return next(self._iterator)

    @contextmanager
    def _epoch(self) -> Iterator[None]:
        """A DistributedSampler shuffles by an epoch number, which is its own again afterwards."""
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
        """The generators that a DataLoader's shuffling uses, so that it can be seeded and put back."""
        if not isinstance(self._iterable, DataLoader):
            return []
        batch_sampler = self._iterable.batch_sampler
        owners = [self._iterable, self._iterable.sampler, batch_sampler, getattr(batch_sampler, "sampler", None)]
        found = [getattr(owner, "generator", None) for owner in owners]
        return list({id(g): g for g in found if isinstance(g, torch.Generator)}.values())

    @property
    def passes(self) -> float:
        try:
            return self._pass + self._place / len(self._iterable)  # type: ignore[arg-type]
        except TypeError:  # no length: whole passes
            return float(self._pass)

    def state_dict(self) -> dict[str, Any]:
        repeatable = isinstance(self._iterable, Sequence) or (
            isinstance(self._iterable, DataLoader) and not _streams(self._iterable)
        )
        if not repeatable:
            raise ValueError(
                f"{self._label}: a {type(self._iterable).__name__} cannot be resumed exactly. Give a DataLoader over "
                "a map-style dataset, a list of batches, a function, or an object with state_dict and load_state_dict."
            )
        return {"pass": self._pass, "place": self._place}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_state(self._label, state, **{"pass": is_count, "place": is_count})
        self._iterator, self._pass, self._place = None, int(state["pass"]), 0
        while self._place < int(state["place"]):
            try:
                self._next()
            except StopIteration:
                raise ValueError(
                    f"{self._label}: the state is {state['place']} batches into a pass, but a pass has "
                    f"{self._place}: this is other data."
                ) from None
            self._place += 1


class _Stateful(_Loop):
    """An iterable that keeps its own place, such as torchdata's StatefulDataLoader."""

    _loaded: Any = None  # its own state, as it was loaded

    def example(self) -> Any:
        return None

    def _generators(self) -> list[torch.Generator]:
        return []  # part of the state that the object answers for

    def state_dict(self) -> dict[str, Any]:
        # In the middle of a pass without an iterator: loaded, and nothing drawn since.
        own = self._loaded if self._place else None
        if self._iterator is not None:
            own = self._iterable.state_dict()  # type: ignore[attr-defined]
        return {"pass": self._pass, "place": self._place, "own": own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_state(self._label, state, **{"pass": is_count, "place": is_count, "own": _is_none_or_state})
        self._iterator, self._pass, self._place = None, int(state["pass"]), int(state["place"])
        self._loaded = state["own"]
        if self._loaded is not None:
            self._iterable.load_state_dict(self._loaded)  # type: ignore[attr-defined]


def _is_none_or_state(value: object) -> bool:
    return value is None or is_state(value)


def _streams(loader: DataLoader[Any]) -> bool:
    return isinstance(loader.dataset, IterableDataset)
