"""The walk over all dev sets and datasets of one update, and what is made of the gradients on the way.

`sweep` decides the order: first the dev sets, then the datasets; with step-ahead the dev sets anew for every dataset.
Collectors see each gradient once, before it is forgotten: `Direction` makes the paper's rewards with one vector,
`Losses` and `NonFinite` keep the losses and what is not finite, `table.Table` the inner products of an `Alignment`.
Where ranks have shared the gradients out, each sees its own, and `join` brings what the others have made of theirs.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeAlias

from ..gradients.layout import Whole
from ..gradients.vectors import Gradient, added
from ..gradients.work_split import WorkSplit


@dataclass
class ProbedGradient:
    """One gradient on its way through the collectors."""

    name: str
    gradient: Gradient
    loss: float | None  # None where the gradient is a moving average from training
    layout: Whole

    @cached_property
    def norm(self) -> float:
        return self.layout.norm(self.gradient)


class Collector(Protocol):
    """Sees the dev sets that belong to a dataset, then the dataset."""

    def dev(self, probed: ProbedGradient) -> None: ...

    def train(self, probed: ProbedGradient) -> None: ...

    def join(self, role: str, sharing: WorkSplit) -> None:
        """This rank and the others have seen their shares of the dev sets or of the datasets; from here on, all."""


Finding: TypeAlias = tuple[str, str, str]  # what is wrong with which kind of set of which name
Taken: TypeAlias = Callable[[], tuple[Gradient, float | None]]  # takes one gradient; returns it and its loss


def sweep(
    dev: Mapping[str, Taken],
    train: Mapping[str, Taken],
    collectors: Sequence[Collector],
    *,
    layout: Whole,
    sharing: WorkSplit | None = None,
    ahead: Callable[[Gradient], AbstractContextManager[None]] | None = None,
    metric: Callable[[Gradient], Gradient] | None = None,
) -> None:
    """Take every gradient once and show it to the collectors: n + K passes, or n + n * K with `ahead`.

    layout: where the elements of gradients are. sharing: which rank takes which gradients; None: all take all together.
    ahead: moves the model one step along a dataset's gradient (Algorithm 1). metric: what becomes of a dataset's
    gradient before the collectors see it.
    """

    def look_at_dev_sets(names: Iterable[str]) -> None:
        for name in names:
            probed = ProbedGradient(name, *dev[name](), layout)
            for collector in collectors:
                collector.dev(probed)
            del probed  # forgotten before the next pass makes another

    def look_at_datasets(names: Iterable[str]) -> None:
        for name in names:
            gradient, loss = train[name]()
            if ahead is not None:
                with ahead(gradient):
                    look_at_dev_sets(dev)
            probed = ProbedGradient(name, gradient if metric is None else metric(gradient), loss, layout)
            del gradient
            for collector in collectors:
                collector.train(probed)
            del probed

    phases: list[tuple[str, Mapping[str, Taken], Callable[[Iterable[str]], None]]]
    phases = [("dev", dev, look_at_dev_sets), ("train", train, look_at_datasets)]
    for role, taken, look_at in phases[0 if ahead is None else 1 :]:
        names = list(taken)
        if sharing is not None and sharing.of(role):
            with sharing.apart():
                look_at(sharing.mine(role, names))
            for collector in collectors:
                collector.join(role, sharing)
            names = [name for name in names if name not in sharing.of(role)]
        look_at(names)


class Direction:
    """Rewards as inner products with the one vector v that the dev sets want: sum_k w_k d_k, or of d_k / |d_k|.

    multidds:   R_i = <t_i, v> / (|t_i| |v|)        multidds-s (stabilized): R_i = <t_i, v> / |t_i|
    """

    def __init__(self, weights: Mapping[str, float], stabilized: bool, layout: Whole) -> None:
        self._weights, self._stabilized, self._layout = weights, stabilized, layout
        self._sum: Gradient | None = None
        self._length: float | None = None  # |v|, known when all dev sets are in
        self.rewards: dict[str, float] = {}
        self.cancelled = False  # the weighted dev gradients summed to zero

    def dev(self, probed: ProbedGradient) -> None:
        if self._length is not None:  # the dev sets of another dataset begin
            self._sum = self._length = None
        if weight := self._weights[probed.name]:
            self._sum = added(self._sum, probed.gradient, weight / (probed.norm or 1.0) if self._stabilized else weight)

    def train(self, probed: ProbedGradient) -> None:
        assert self._sum is not None
        if self._length is None:
            self._length = self._layout.norm(self._sum)
        self.cancelled |= self._length == 0
        if probed.norm == 0 or self._length == 0:
            self.rewards[probed.name] = 0.0
        else:
            scale = 1.0 if self._stabilized else self._length
            self.rewards[probed.name] = self._layout.dot(probed.gradient, self._sum) / probed.norm / scale

    def join(self, role: str, sharing: WorkSplit) -> None:
        if role == "dev":
            self._sum = sharing.summed(self._sum)
        else:
            parts = sharing.gathered((self.rewards, self.cancelled))
            self.rewards = {name: reward for rewards, _ in parts for name, reward in rewards.items()}
            self.cancelled = any(cancelled for _, cancelled in parts)


class Losses:
    """The loss of every dev set and dataset that was probed."""

    def __init__(self, looks: int = 1) -> None:
        self._looks = looks  # at each dev set: with step-ahead one per dataset, and its loss is their mean
        self.of_dev: dict[str, float] = {}
        self.of_train: dict[str, float] = {}

    def dev(self, probed: ProbedGradient) -> None:
        assert probed.loss is not None
        self.of_dev[probed.name] = self.of_dev.get(probed.name, 0.0) + probed.loss / self._looks

    def train(self, probed: ProbedGradient) -> None:
        if probed.loss is not None:
            self.of_train[probed.name] = probed.loss

    def join(self, role: str, sharing: WorkSplit) -> None:
        if role == "train":
            self.of_train = sharing.joined(self.of_train)
        if role == "dev" or self._looks > 1:  # with step-ahead every rank has looked at all dev sets for its datasets
            parts = sharing.gathered(self.of_dev)
            names = dict.fromkeys(name for part in parts for name in part)
            self.of_dev = {name: sum(part[name] for part in parts if name in part) for name in names}

    def arrange(self, dev: Iterable[str], train: Iterable[str]) -> None:
        """Put the names into this order, whoever has seen them first."""
        self.of_dev = {name: self.of_dev[name] for name in dev if name in self.of_dev}
        self.of_train = {name: self.of_train[name] for name in train if name in self.of_train}


class NonFinite:
    """Which numbers of an update are zero, and which are not finite, so that the mixture must not move."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights  # of the dev sets: what does not count cannot do harm
        self._zero: list[Finding] = []
        self._not_finite: list[Finding] = []

    def dev(self, probed: ProbedGradient) -> None:
        if self._weights[probed.name]:
            self.check("gradient", "dev set", {probed.name: probed.norm})

    def train(self, probed: ProbedGradient) -> None:
        self.check("gradient", "dataset", {probed.name: probed.norm})

    def check(self, what: str, kind: str, values: Mapping[str, float]) -> None:
        """Remember losses, norms of gradients or rewards that are not finite, and gradients that are zero."""
        for name, value in values.items():
            if not math.isfinite(value):
                self._not_finite.append((what, kind, name))
            elif value == 0 and what == "gradient":
                self._zero.append((what, kind, name))

    def join(self, role: str, sharing: WorkSplit) -> None:
        parts = sharing.gathered((self._zero, self._not_finite))
        self._zero = [each for zero, _ in parts for each in zero]
        self._not_finite = [each for _, not_finite in parts for each in not_finite]

    def arrange(self, dev: Iterable[str], train: Iterable[str]) -> None:
        """Put them into the order of one process, whoever has found them first."""
        order = [*(("dev set", name) for name in dev), *(("dataset", name) for name in train)]
        places = {each: place for place, each in enumerate(order)}
        for found in (self._zero, self._not_finite):
            found.sort(key=lambda each: (each[0] != "loss", places[each[1], each[2]]))

    @property
    def zero(self) -> list[str]:
        """The gradients that are zero."""
        return [_told(each) for each in dict.fromkeys(self._zero)]

    def trouble(self) -> str | None:
        """Why the mixture must not move."""
        if not self._not_finite:
            return None
        first, *others = dict.fromkeys(self._not_finite)
        return f"{_told(first)} is not finite" + (f" (and {len(others)} more like it)" if others else "")


def _told(finding: Finding) -> str:
    what, kind, name = finding
    return f"the {what} of {kind} {name!r}"
