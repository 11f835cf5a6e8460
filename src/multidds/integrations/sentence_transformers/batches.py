"""Batches of a training over several datasets, each of one dataset, drawn from a mixture.

`Draws` has the dataset of each batch; the trainer's own batch sampler has its examples, pass after pass without end.
Two places are kept: what the loader has read ahead, and what training has consumed.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from sentence_transformers.base.sampler import MultiDatasetDefaultBatchSampler, ProportionalBatchSampler

from ..._base.checks import check_names
from ..._base.randomness import derive
from ..._base.ranks import rank_and_size
from ..._base.state import check_keys, check_sizes
from ...mixture.mixture import Mixture, check_mixture
from ...sampling.draws import Draws
from ...sampling.sources import Part

_OWNER = "mixed_batches"


def mixed_batches(mixture: Mixture, seed: int = 0) -> "MixedBatches":
    """Draws batches from a mixture: `multi_dataset_batch_sampler=mixed_batches(mixture)` in the trainer's arguments.

    mixture: how often each dataset of the trainer's `train_dataset`, a dict, is drawn. Without a `BalanceCallback` its
        names must be in the order of the dict.
    seed: for the draws, and for the order within each dataset; default 0.

    Each batch comes from one dataset and is made by the trainer's `batch_sampler` ("no_duplicates", ...), pass after
    pass. An epoch has as many batches as all datasets together.
    """
    return MixedBatches(mixture, seed)


class MixedBatches:
    """The result of `mixed_batches`: makes the sampler of a training, and keeps the place of training in it.

    There is one global sequence of batches; accelerate gives every W-th of it to each of W processes.
    """

    def __init__(self, mixture: Mixture, seed: int) -> None:
        check_mixture(_OWNER, mixture)
        self.mixture, self._seed = mixture, seed
        self.datasets: dict[str, Any] = {}  # of the training, if there is a callback
        self.sizes: dict[str, int] = {}  # {dataset: number of its examples}, once there is a callback or a loader
        self.length = 0  # batches of an epoch, once there is a loader
        self._step: int | None = None  # batches of an optimizer step, over all processes
        self._passes: dict[str, _Passes] = {}  # once there is a loader
        self.restart()

    def __reduce__(self) -> tuple[Any, ...]:
        return mixed_batches, (self.mixture, self._seed)  # the Trainer saves its arguments, not what was read

    def attach(self, datasets: Mapping[str, Any], step: int) -> None:
        """Takes the data of the training, from a callback, before the loader is made.

        step: batches of an optimizer step, over all processes. An epoch becomes a whole number of steps.
        """
        check_names(_OWNER, self.mixture.names, datasets)
        self.datasets, self._step = dict(datasets), step
        self.sizes = {name: len(dataset) for name, dataset in datasets.items()}

    def __call__(
        self, dataset: Any, batch_samplers: list[Any], generator: torch.Generator | None = None, seed: int = 0
    ) -> Any:
        """Returns the sampler of a loader, for the trainer; data other than the training's is drawn as by default."""
        ours = [id(d) for d in self.datasets.values()]
        if ours and [id(d) for d in dataset.datasets] != ours:
            return ProportionalBatchSampler(dataset, batch_samplers, generator, seed)
        names = self._names_of(dataset.datasets)
        self._passes = {
            name: _Passes(name, sampler, generator, self._seed)
            for name, sampler in zip(names, batch_samplers, strict=True)
        }
        self.sizes = dict(zip(names, map(len, dataset.datasets), strict=True))
        whole = self._step or rank_and_size()[1]
        self.length = -(-sum(len(sampler) for sampler in batch_samplers) // whole) * whole
        self.restart()
        sampler = _Sampler(dataset, batch_samplers, generator, seed)
        sampler.mixed = self
        sampler.offsets = dict(zip(names, accumulate(map(len, dataset.datasets), initial=0), strict=False))
        return sampler

    def _names_of(self, datasets: Sequence[Any]) -> list[str]:
        if self.datasets:
            return list(self.datasets)
        names = list(self.mixture.names)
        first = [d[0].get("dataset_name", name) for name, d in zip(names, datasets, strict=False) if len(d)]
        if len(names) != len(datasets) or first != names:
            raise ValueError(f"{_OWNER}: the mixture is of {names}, but there are {len(datasets)} datasets: {first}.")
        return names

    def restart(self) -> None:
        """Goes back to the first batch, with the mixture of this moment."""
        self._begin(Draws(self.mixture, self._seed), dict.fromkeys(self.mixture.names, (0, 0)))
        self._examples = dict.fromkeys(self.mixture.names, 0)

    def _begin(self, draws: Draws, places: Mapping[str, tuple[int, int]]) -> None:
        self._consumed, self._reader = draws, draws.fork()
        self._places = dict(places)  # {name: (pass, batches of it)} that training has consumed
        self._read: deque[tuple[str, tuple[int, int], int]] = deque()  # but not consumed: name, place after it, size
        for name, passes in self._passes.items():
            passes.go_to(*self._places[name])

    def epoch(self, number: int) -> Iterator[tuple[str, list[int]] | None]:
        """Yields the batches of an epoch: the dataset, and the indices of its examples; None for a skipped batch."""
        if self._step is None:
            self._go_to(number * self.length)
        elif self._reader.position != self.position:  # an abandoned loader had read ahead
            self._begin(self._consumed, self._places)
        place = self._reader.position % self.length
        yield from [None] * place  # the Trainer skips them after a resume
        for _ in range(self.length - place):
            yield self._next()

    def _go_to(self, start: int) -> None:
        """Without a callback the epoch shows how much was consumed, and the mixture moves between epochs."""
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
        """Batches that training has consumed, over all processes."""
        return self._consumed.position

    def consume(self, count: int) -> None:
        """Counts the next `count` batches as consumed by training; called by a callback."""
        self._consumed.skip_to(self.position + count)
        for _ in range(count):
            name, place, size = self._read.popleft()
            self._places[name] = place
            self._examples[name] += size

    def mixture_changed(self, effective_from: int) -> None:
        """Lets the mixture, if it has moved since the last call, take effect from this batch on."""
        if self._consumed.use(self.mixture, effective_from):
            self._reader.use(self.mixture, effective_from)

    @property
    def examples(self) -> dict[str, int]:
        """{dataset: examples that training has consumed, over all processes}; without a callback, that were read."""
        examples = dict(self._examples)
        if self._step is None:  # nothing else counts
            for name, _, size in self._read:
                examples[name] += size
        return examples

    @property
    def passes(self) -> dict[str, float]:
        """{dataset: passes over it so far, over all processes}, counted as `examples` are."""
        examples = self.examples
        return {name: examples[name] / size for name, size in self.sizes.items()}

    @property
    def places(self) -> dict[str, Any]:
        """Places in streams, as of a `MixedDataset`; there are no streams here."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Returns the state after what training has consumed, with mixtures that are still to take effect."""
        places = {name: list(place) for name, place in self._places.items()}
        return {**self._consumed.state_dict(), "sizes": dict(self.sizes), "places": places, "examples": self.examples}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues exactly there. A state of other datasets, or of other sizes, is refused."""
        check_keys(_OWNER, state, "sizes", "places", "examples")
        check_sizes(_OWNER, self.sizes, state["sizes"])
        consumed = self._consumed.fork()
        consumed.load_state_dict(state)
        self._begin(consumed, {name: tuple(state["places"][name]) for name in self.mixture.names})
        self._examples = {name: state["examples"][name] for name in self.mixture.names}


class _Sampler(MultiDatasetDefaultBatchSampler):  # type: ignore[misc]
    """The batch sampler of the loader: indices into the datasets, one behind the other."""

    mixed: MixedBatches
    offsets: Mapping[str, int]  # {dataset: number of examples before it}

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch  # the samplers of the datasets count their own passes

    def __iter__(self) -> Iterator[list[int]]:
        for drawn in self.mixed.epoch(self.epoch):
            if drawn is None:
                yield [0] * self.batch_size
            else:
                name, batch = drawn
                yield [self.offsets[name] + index for index in batch]

    def __len__(self) -> int:
        return self.mixed.length


class _Passes:
    """The batches of one dataset, pass after pass, by a batch sampler of the trainer.

    All samplers of a loader share one generator. It is seeded when a pass of this dataset begins, and set to where this
    dataset left it before each batch.
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
        """Goes to the place after the first `batches` of a pass. Nothing is read before the next batch."""
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
                f"{_OWNER}: the batch sampler makes no batch of {self._name!r}, which is smaller than a batch or has "
                "too few distinct values; set a smaller per_device_train_batch_size, or dataloader_drop_last=False."
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
    """Returns a source of probe batches: batches of one pass of the trainer's batch sampler under a seed.

    Examples are not drawn with replacement: one that is twice in a batch would be a negative of itself.
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

    def of_part(key: int, part: Part) -> Any:
        own.manual_seed(key)
        number, batches = part[2] * part[1] + part[0], 0
        while True:  # pass after pass
            for indices in sampler:
                if batches == number:
                    return collate(dataset.__getitems__(indices))
                batches += 1

    draw.of_part, draw.size = of_part, -(-len(dataset) // batch_size)  # type: ignore[attr-defined]
    draw.batch_size = batch_size  # type: ignore[attr-defined]  # for the cost of updates
    draw.dataset = dataset  # type: ignore[attr-defined]  # by which the start line finds dev sets that are training sets
    return draw
