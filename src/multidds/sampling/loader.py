"""`mixed_loader`: a training loader over mixed examples, cut into epochs, with exact resume.

`MixtureSampler` draws. The loader adds a length, a position that is kept between epochs, and the state after the
batches that were handed out, without those that workers have read ahead.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import ConcatDataset, DataLoader, default_collate

from .._base.checks import check_names, check_whole
from .._base.randomness import derive
from .._base.ranks import rank_and_size
from ..mixture.mixture import Mixture, check_mixture
from .sampler import MixtureSampler

_OURS = ("sampler", "batch_sampler", "shuffle", "drop_last", "generator")  # options that the mixture decides


class MixedLoader:
    """The loader that `mixed_loader` returns: endless batches, cut into epochs; it keeps its position between them.

    train_sets, mixture, batch_size, seed, options: as `mixed_loader` takes them.

    It is not a DataLoader but has one, so that Lightning leaves the sampler alone whatever `use_distributed_sampler`
    is. Its length is known, so that Lightning reads nothing ahead. Workers do, `num_workers * prefetch_factor`
    batches, and one iterator serves all epochs: nothing that was drawn is lost.
    """

    def __init__(
        self, train_sets: Mapping[str, Any], mixture: Mixture, batch_size: int, seed: int, options: dict[str, Any]
    ) -> None:
        check_mixture("mixed_loader", mixture)
        check_names("mixed_loader", mixture.names, train_sets)
        for name, dataset in train_sets.items():
            if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
                raise TypeError(
                    f"mixed_loader: the dataset {name!r} must be map-style, with a length and indices, "
                    f"got {type(dataset).__name__}."
                )
        self._sizes = {name: len(dataset) for name, dataset in train_sets.items()}
        check_whole("mixed_loader", **{f"the size of {name!r}": size for name, size in self._sizes.items()})
        check_whole("mixed_loader", batch_size=batch_size)
        if taken := [name for name in _OURS if name in options]:
            raise ValueError(f"mixed_loader: the mixture decides what is drawn; leave {taken[0]!r} out.")
        self.train_sets, self.mixture, self.batch_size = dict(train_sets), mixture, batch_size
        self.collate_fn = options.get("collate_fn") or default_collate
        self._seed, self._options = seed, options
        self._sampler: MixtureSampler | None = None
        self._handed_out = 0  # batches, across resumes
        self._iterator: Iterator[Any] | None = None  # by this name Lightning stops its workers when a fit ends

    @property
    def _indices(self) -> MixtureSampler:
        """Made when it is first needed: a script makes its loader before Lightning starts the processes."""
        if self._sampler is None:
            self._sampler = MixtureSampler(self._sizes, self.mixture, self.batch_size, self._seed)
        return self._sampler

    def __len__(self) -> int:
        """Batches of an epoch: as many examples as there are in all datasets, whatever the mixture draws."""
        return -(-sum(self._sizes.values()) // self.examples_of(1))

    def __iter__(self) -> Iterator[Any]:
        # A generator: Lightning asks for iterators before it loads a checkpoint, and nothing may be drawn then.
        for _ in range(len(self)):
            if self._iterator is None:
                self._iterator = self._opened()
            batch = next(self._iterator)
            self._handed_out += 1
            yield batch

    def _opened(self) -> Iterator[Any]:
        sampler = self._indices
        sampler.load_state_dict(sampler.state_dict(self._handed_out))  # back over what an abandoned iterator read ahead
        # Seeds of workers from a generator of its own: the model's random numbers do not change with the loader.
        generator = torch.Generator().manual_seed(derive(self._seed, "workers", rank_and_size()[0], self._handed_out))
        dataset: ConcatDataset[Any] = ConcatDataset(self.train_sets.values())
        return iter(DataLoader(dataset, batch_sampler=sampler, generator=generator, **self._options))

    def examples_of(self, batches: int) -> int:
        """Counts the examples of this number of batches of every process."""
        return batches * self.batch_size * rank_and_size()[1]

    def is_fresh_copy_of(self, other: "MixedLoader") -> bool:
        """Whether it is another loader, not used yet, that would draw what `other` drew from its start."""
        return self is not other and not self._handed_out and (self._seed, self._sizes) == (other._seed, other._sizes)

    @property
    def passes(self) -> dict[str, float]:
        """{name: passes of training over the dataset so far, over all ranks, without what was read ahead}."""
        if self._sampler is None:  # also before the processes are started
            return dict.fromkeys(self._sizes, 0.0)
        counts = self._sampler.after(self._handed_out).counts
        return {name: counts[name] / size for name, size in self._sizes.items()}

    def state_dict(self, unfinished: int = 0) -> dict[str, Any]:
        """Returns the state, the same on all ranks, after the batches that were handed out.

        unfinished: the last batches that do not count yet.
        """
        return self._indices.state_dict(self._handed_out - unfinished)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues exactly where the other loader was."""
        self._indices.load_state_dict(state)
        self._handed_out = self._indices.drawn
        self._iterator = None


def mixed_loader(
    train_sets: Mapping[str, Any], mixture: Mixture, batch_size: int, seed: int = 0, **options: Any
) -> MixedLoader:
    """Returns batches of mixed examples: the loader for `Trainer.fit`, or for a datamodule's `train_dataloader`.

    train_sets: {name: map-style dataset}.
    mixture: probability of each dataset; a `BalanceCallback` with the same object changes it.
    batch_size: examples per batch and process.
    seed: for the draws and for the order within each pass.
    options: passed on to the DataLoader: num_workers, collate_fn, pin_memory, ...

    An epoch has as many examples as all datasets together.
    """
    return MixedLoader(train_sets, mixture, batch_size, seed, options)
