"""The batches of a training over several datasets, each of one dataset, drawn as a mixture says.

Which dataset comes next is `draws`'; which of its examples make a batch is the trainer's own batch sampler's, whose
passes follow each other without end. What is read ahead and what training has consumed are two places here, too.
"""

import copy
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from sentence_transformers.base.sampler import MultiDatasetDefaultBatchSampler, ProportionalBatchSampler

from ..._base.carrying import HINT
from ..._base.checks import check_names, check_sizes, refuse
from ..._base.randomness import derive
from ..._base.ranks import rank_and_size
from ...mixture.mixture import Mixture, check_mixture
from ...sampling.draws import Draws

_OWNER = "mixed_batches"


def mixed_batches(mixture: Mixture, seed: int = 0) -> "MixedBatches":
    """Batches drawn as the mixture says: `multi_dataset_batch_sampler=mixed_batches(mixture)` in the arguments.

    mixture: how often each dataset of the trainer's `train_dataset`, a dict, is drawn. Without a `BalanceCallback` its
        names must be in the order of the dict.
    seed: for the draws, and for the order within each dataset.

    Each batch comes from one dataset and is made by the trainer's `batch_sampler` ("no_duplicates", ...), pass after
    pass. An epoch has as many batches as all datasets together.
    """
    return MixedBatches(mixture, seed)


class MixedBatches:
    """What `mixed_batches` returns: it makes the sampler of a training, and knows where in it training is.

    There is one global sequence of batches; accelerate gives every W-th of it to each of W processes.
    """

    def __init__(self, mixture: Mixture, seed: int) -> None:
        check_mixture(_OWNER, mixture)
        self.mixture, self._seed = mixture, seed
        self.datasets: dict[str, Any] = {}  # of the training, where a callback has told them
        self._step: int | None = None  # batches of an optimizer step, over all processes
        self._passes: dict[str, _Passes] = {}  # from the first loader on
        self.length = 0  # batches of an epoch, likewise
        self.restart()

    def __reduce__(self) -> tuple[Any, ...]:
        return mixed_batches, (self.mixture, self._seed)  # the Trainer saves its arguments, not what was read

    @property
    def sizes(self) -> dict[str, int]:
        return {name: len(dataset) for name, dataset in self.datasets.items()}

    def attach(self, datasets: Mapping[str, Any], step: int) -> None:
        """From a callback, before the loader is made: the data of the training, and the batches of an optimizer step,
        over all processes. An epoch becomes a whole number of steps.
        """
        check_names(_OWNER, self.mixture.names, datasets)
        self.datasets, self._step = dict(datasets), step

    def __call__(
        self, dataset: Any, batch_samplers: list[Any], generator: torch.Generator | None = None, seed: int = 0
    ) -> Any:
        """The sampler of a loader, as the trainer asks for it; data that is not the training's is drawn as ever."""
        known = [id(d) for d in self.datasets.values()]
        if known and [id(d) for d in dataset.datasets] != known:
            return ProportionalBatchSampler(dataset, batch_samplers, generator, seed)
        names = self._names_of(dataset.datasets)
        self._passes = {
            name: _Passes(name, sampler, generator, self._seed)
            for name, sampler in zip(names, batch_samplers, strict=True)
        }
        whole = self._step or rank_and_size()[1]
        self.length = -(-sum(len(sampler) for sampler in batch_samplers) // whole) * whole
        offsets = dict(zip(names, accumulate(map(len, dataset.datasets), initial=0), strict=False))
        self.restart()
        return _Sampler(dataset, batch_samplers, generator, seed, self, offsets)

    def _names_of(self, datasets: Sequence[Any]) -> list[str]:
        if self.datasets:
            return list(self.datasets)
        names = list(self.mixture.names)
        first = [d[0].get("dataset_name", name) for name, d in zip(names, datasets, strict=False) if len(d)]
        rows = [
            (
                len(names) != len(datasets),
                f"the mixture has {len(names)} names, but there are {len(datasets)} datasets.",
            ),
            (first != names, f"the mixture has the names {names}, but the datasets are {first}, in this order."),
        ]
        refuse(_OWNER, rows)
        return names

    def restart(self) -> None:
        """Back to the first batch, with the mixture of this moment."""
        self._begin(Draws(self.mixture, self._seed), dict.fromkeys(self.mixture.names, (0, 0)))
        self._examples = dict.fromkeys(self.mixture.names, 0)

    def _begin(self, draws: Draws, places: Mapping[str, tuple[int, int]]) -> None:
        self._consumed, self._reader = draws, draws.fork()
        self._places = dict(places)  # {name: (pass, batches of it)} that training has consumed
        self._read: deque[tuple[str, tuple[int, int], int]] = deque()  # and not consumed: name, place behind it, size
        for name, passes in self._passes.items():
            passes.go_to(*self._places[name])

    def epoch(self, number: int) -> Iterator[tuple[str, list[int]] | None]:
        """The batches of an epoch: which dataset, and which of its examples. None: one that nobody will look at."""
        if self._step is None:
            self._go_to(number * self.length)
        elif self._reader.position != self.position:  # an abandoned loader had read ahead
            self._begin(self._consumed, self._places)
        place = self._reader.position % self.length
        for _ in range(place):  # the Trainer skips them after a resume
            yield None
        for _ in range(self.length - place):
            yield self._next()

    def _go_to(self, start: int) -> None:
        """Without a callback: the epoch tells how much was consumed, and the mixture moves between epochs."""
        if start < self._reader.position:
            self.restart()
        while self._reader.position < start:
            self._next()
        self.consume(len(self._read))
        self._reader.use(self.mixture)
        self._consumed.use(self.mixture)

    def _next(self) -> tuple[str, list[int]]:
        name, _ = self._reader.draw()
        passes = self._passes[name]
        batch = passes.next()
        self._read.append((name, passes.place, len(batch)))
        return name, batch

    @property
    def position(self) -> int:
        """How many batches training has consumed, over all processes."""
        return self._consumed.position

    def consume(self, count: int) -> None:
        """From a callback: training has seen the next `count` batches."""
        self._consumed.skip_to(self.position + count)
        for _ in range(count):
            name, place, size = self._read.popleft()
            self._places[name] = place
            self._examples[name] += size

    def mixture_changed(self, effective_from: int) -> None:
        """If the mixture has moved since the last call, it rules from this batch on."""
        if self._consumed.use(self.mixture, effective_from):
            self._reader.use(self.mixture, effective_from)

    @property
    def examples(self) -> dict[str, int]:
        """How many examples of each dataset training has consumed, over all processes."""
        return dict(self._examples)

    @property
    def passes(self) -> dict[str, float]:
        """How often training has gone through each dataset, over all processes."""
        return {name: self._examples[name] / size for name, size in self.sizes.items()}

    @property
    def places(self) -> dict[str, Any]:
        return {}  # no streams

    def reads(self, loader_length: int, processes: int) -> bool:
        """Whether a loader of so many batches in each process is that of this training."""
        return bool(self._passes) and loader_length * processes == self.length

    def state_dict(self) -> dict[str, Any]:
        """The state after what training has consumed, mixtures that are still to take effect included."""
        places = {name: list(place) for name, place in self._places.items()}
        return {**self._consumed.state_dict(), "sizes": self.sizes, "places": places, "examples": self.examples}

    def load_state_dict(self, state: Mapping[str, Any], changed: bool = False) -> None:
        """Go on exactly there. changed: datasets may have been added, which begin, left out, or have another size;
        those that are still there keep their places and counts.
        """
        if not changed:
            check_sizes(_OWNER, self.sizes, state["sizes"], HINT)
        self._consumed.load_state_dict(state)
        found = {name: state["places"].get(name, (0, 0)) for name in self.mixture.names}
        self._begin(self._consumed, {name: (int(p), int(b)) for name, (p, b) in found.items()})
        self._examples = {name: int(state["examples"].get(name, 0)) for name in self.mixture.names}


class _Sampler(MultiDatasetDefaultBatchSampler):  # type: ignore[misc]
    """What the loader reads: indices into the datasets, one behind the other."""

    def __init__(
        self,
        dataset: Any,
        batch_samplers: list[Any],
        generator: torch.Generator | None,
        seed: int,
        owner: MixedBatches,
        offsets: Mapping[str, int],
    ) -> None:
        super().__init__(dataset, batch_samplers, generator, seed)
        self._owner, self._offsets = owner, offsets

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch  # the samplers of the datasets count their own passes

    def __iter__(self) -> Iterator[list[int]]:
        for drawn in self._owner.epoch(self.epoch):
            if drawn is None:
                yield [0] * self.batch_size
            else:
                name, batch = drawn
                yield [self._offsets[name] + index for index in batch]

    def __len__(self) -> int:
        return self._owner.length


class _Passes:
    """The batches of one dataset, pass after pass, by a batch sampler of the trainer.

    All samplers of a loader share one generator. Each has it as if it were alone: seeded when a pass begins, and put
    back to where this one left it before each batch.
    """

    def __init__(self, name: str, sampler: Any, generator: torch.Generator | None, seed: int) -> None:
        self._name, self._sampler, self._seed = name, sampler, seed
        self._generator = torch.Generator() if generator is None else generator
        self._left = self._generator.get_state()
        self.go_to(0, 0)

    @property
    def place(self) -> tuple[int, int]:
        return self._pass, self._batches

    def go_to(self, number: int, batches: int) -> None:
        """Behind so many batches of a pass. Nothing is read until a batch is asked for."""
        self._iterator: Iterator[list[int]] | None = None
        self._pass, self._batches, self._to_skip = number, 0, batches

    def next(self) -> list[int]:
        while self._to_skip:
            self._to_skip -= 1
            self._one()
        batch = self._one()
        if batch is None and self._batches:  # the pass has ended
            self.go_to(self._pass + 1, 0)
            batch = self._one()
        if batch is None:
            raise ValueError(
                f"{_OWNER}: the batch sampler makes no batch of {self._name!r}: it is smaller than a batch, or has too "
                "few distinct values. Set a smaller per_device_train_batch_size, or dataloader_drop_last=False."
            )
        return batch

    def _one(self) -> list[int] | None:
        if self._iterator is None:
            if hasattr(self._sampler, "set_epoch"):
                self._sampler.set_epoch(self._pass)
            self._generator.manual_seed(derive(self._seed, "order", self._name, self._pass))
            self._iterator = iter(self._sampler)
        else:
            self._generator.set_state(self._left)
        batch = next(self._iterator, None)
        self._left = self._generator.get_state()
        self._batches += batch is not None
        return batch


def probe_batches(trainer: Any, dataset: Any, batch_size: int, collate: Any) -> Any:
    """A source of probe batches: the first batch that the trainer's batch sampler makes under a seed.

    Not of examples drawn with replacement: an example that is twice in a batch is a negative of itself.
    """
    own = torch.Generator()
    sampler = trainer.get_batch_sampler(
        dataset,
        batch_size=batch_size,
        drop_last=False,
        valid_label_columns=trainer.data_collator.valid_label_columns,
        generator=own,
        seed=None,  # so that it leaves the generator as it is given
    )

    def draw(generator: torch.Generator) -> Any:
        own.set_state(generator.get_state())
        return collate(dataset.__getitems__(next(iter(sampler))))

    return draw


def untransformed_copies(sets: Mapping[str, Any]) -> dict[str, Any]:
    """The same data in objects of their own, to which the trainer may add the names of datasets."""
    return {name: copy.copy(dataset) for name, dataset in sets.items()}
