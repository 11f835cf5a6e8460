"""The walk over the dev sets and datasets of one update.

First the dev sets, then the datasets; with a step ahead the dev sets anew for every dataset. Collectors see each
gradient once, before it is forgotten. If ranks have divided the gradients, each sees its own, and `join` brings in what
the others have collected.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeAlias

from ..gradients.layout import Whole
from ..gradients.vectors import Gradient
from ..gradients.work_split import WorkSplit


@dataclass
class ProbedGradient:
    """One gradient on its way through the collectors."""

    name: str
    gradient: Gradient
    loss: float | None  # None: the gradient is a moving average from training
    layout: Whole

    @cached_property
    def norm(self) -> float:
        return self.layout.norm(self.gradient)


class Collector(Protocol):
    """A collector gets the dev sets that belong to a dataset, then the dataset."""

    def dev(self, probed: ProbedGradient) -> None: ...

    def train(self, probed: ProbedGradient) -> None: ...

    def join(self, role: str, split: WorkSplit) -> None:
        """Adds what the other ranks have collected of their sets of a role."""


Taken: TypeAlias = Callable[[], tuple[Gradient, float | None]]  # takes one gradient; returns it and its loss


def sweep(
    dev: Mapping[str, Taken],
    train: Mapping[str, Taken],
    collectors: Sequence[Collector],
    *,
    layout: Whole,
    split: WorkSplit | None = None,
    ahead: Callable[[Gradient], AbstractContextManager[None]] | None = None,
) -> None:
    """Takes every gradient once and gives it to the collectors: n + K passes, or n + n * K with `ahead`.

    layout: where the elements of gradients are.
    split: the rank that takes each gradient; None: all ranks take all gradients together.
    ahead: moves the model one step along a dataset's gradient (Algorithm 1).
    """

    def probe_dev_sets(names: Iterable[str]) -> None:
        for name in names:
            probed = ProbedGradient(name, *dev[name](), layout)
            for collector in collectors:
                collector.dev(probed)
            del probed  # forgotten before the next pass makes another

    def probe_datasets(names: Iterable[str]) -> None:
        for name in names:
            gradient, loss = train[name]()
            if ahead is not None:
                with ahead(gradient):
                    probe_dev_sets(dev)
            probed = ProbedGradient(name, gradient, loss, layout)
            del gradient
            for collector in collectors:
                collector.train(probed)
            del probed

    phases: list[tuple[str, Mapping[str, Taken], Callable[[Iterable[str]], None]]]
    phases = [("dev", dev, probe_dev_sets), ("train", train, probe_datasets)]
    for role, taken, probe_sets in phases[0 if ahead is None else 1 :]:
        names = list(taken)
        if split is not None and split.of(role):
            with split.apart():
                probe_sets(split.mine(role, names))
            for collector in collectors:
                collector.join(role, split)
            names = [name for name in names if name not in split.of(role)]
        probe_sets(names)
