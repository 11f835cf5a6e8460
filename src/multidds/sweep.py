"""The walk over all dev sets and datasets of one update, and what is made of the gradients on the way.

`sweep` decides the order: first the dev sets, then the datasets; with step-ahead the dev sets anew for every dataset.
Collectors see each gradient once, before it is forgotten: `Direction` makes the paper's rewards with one vector,
`Losses` and `Findings` keep the losses and what is not finite, `table.Table` the inner products of an `Alignment`.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeAlias

from .gradients import Gradient, added, dot, norm


@dataclass
class Look:
    """One gradient on its way through the collectors."""

    name: str
    gradient: Gradient
    loss: float | None  # None where the gradient is a moving average from training

    @cached_property
    def norm(self) -> float:
        return norm(self.gradient)


class Collector(Protocol):
    """Sees the dev sets that belong to a dataset, then the dataset."""

    def dev(self, look: Look) -> None: ...

    def train(self, look: Look) -> None: ...


Taken: TypeAlias = Callable[[], tuple[Gradient, float | None]]  # takes one gradient; returns it and its loss


def sweep(
    dev: Mapping[str, Taken],
    train: Mapping[str, Taken],
    collectors: Iterable[Collector],
    *,
    ahead: Callable[[Gradient], AbstractContextManager[None]] | None = None,
    metric: Callable[[Gradient], Gradient] | None = None,
) -> None:
    """Take every gradient once and show it to the collectors: n + K passes, or n + n * K with `ahead`.

    ahead: moves the model one step along a dataset's gradient (Algorithm 1). metric: what becomes of a dataset's
    gradient before the collectors see it.
    """

    def look_at_dev_sets() -> None:
        for name, taken in dev.items():
            look = Look(name, *taken())
            for collector in collectors:
                collector.dev(look)
            del look  # forgotten before the next pass makes another

    if ahead is None:
        look_at_dev_sets()
    for name, taken in train.items():
        gradient, loss = taken()
        if ahead is not None:
            with ahead(gradient):
                look_at_dev_sets()
        look = Look(name, gradient if metric is None else metric(gradient), loss)
        del gradient
        for collector in collectors:
            collector.train(look)
        del look


class Direction:
    """Rewards as inner products with the one vector v that the dev sets want: sum_k w_k d_k, or of d_k / |d_k|.

    multidds:   R_i = <t_i, v> / (|t_i| |v|)        multidds-s (stabilized): R_i = <t_i, v> / |t_i|
    """

    def __init__(self, weights: Mapping[str, float], stabilized: bool) -> None:
        self._weights, self._stabilized = weights, stabilized
        self._sum: Gradient | None = None
        self._length: float | None = None  # |v|, known when all dev sets are in
        self.rewards: dict[str, float] = {}
        self.cancelled = False  # the weighted dev gradients summed to zero

    def dev(self, look: Look) -> None:
        if self._length is not None:  # the dev sets of another dataset begin
            self._sum = self._length = None
        if weight := self._weights[look.name]:
            self._sum = added(self._sum, look.gradient, weight / (look.norm or 1.0) if self._stabilized else weight)

    def train(self, look: Look) -> None:
        assert self._sum is not None
        if self._length is None:
            self._length = norm(self._sum)
        self.cancelled |= self._length == 0
        if look.norm == 0 or self._length == 0:
            self.rewards[look.name] = 0.0
        else:
            scale = 1.0 if self._stabilized else self._length
            self.rewards[look.name] = dot(look.gradient, self._sum) / look.norm / scale


class Losses:
    """The loss of every dev set and dataset that was probed."""

    def __init__(self, looks: int = 1) -> None:
        self._looks = looks  # at each dev set: with step-ahead one per dataset, and its loss is their mean
        self.of_dev: dict[str, float] = {}
        self.of_train: dict[str, float] = {}

    def dev(self, look: Look) -> None:
        assert look.loss is not None
        self.of_dev[look.name] = self.of_dev.get(look.name, 0.0) + look.loss / self._looks

    def train(self, look: Look) -> None:
        if look.loss is not None:
            self.of_train[look.name] = look.loss


class Findings:
    """Which numbers of an update are zero, and which are not finite, so that the mixture must not move."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights  # of the dev sets: what does not count cannot do harm
        self.zero: list[str] = []
        self.not_finite: list[str] = []

    def dev(self, look: Look) -> None:
        if self._weights[look.name]:
            self.check("gradient", "dev set", {look.name: look.norm})

    def train(self, look: Look) -> None:
        self.check("gradient", "dataset", {look.name: look.norm})

    def check(self, what: str, kind: str, values: Mapping[str, float]) -> None:
        """Remember losses, norms of gradients or rewards that are not finite, and gradients that are zero."""
        for name, value in values.items():
            found = f"the {what} of {kind} {name!r}"
            if not math.isfinite(value):
                self.not_finite.append(found)
            elif value == 0 and what == "gradient":
                self.zero.append(found)

    def trouble(self) -> str | None:
        """Why the mixture must not move."""
        if not self.not_finite:
            return None
        first, *others = dict.fromkeys(self.not_finite)
        return f"{first} is not finite" + (f" (and {len(others)} more like it)" if others else "")
