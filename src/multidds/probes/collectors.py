"""Collectors: what is kept of each gradient of a sweep before it is forgotten.

`Direction` makes the paper's rewards with one vector, `Losses` and `NonFinite` keep the losses and what is not finite;
`alignment_table.Table` keeps the inner products of an `Alignment`.
"""

import math
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from ..gradients.layout import Whole
from ..gradients.vectors import Gradient, added
from ..gradients.work_split import WorkSplit
from .sweep import ProbedGradient

Finding: TypeAlias = tuple[str, str, str]  # what is wrong with which kind of set of which name


class Direction:
    """Rewards as inner products with one vector v of the dev sets: sum_k w_k d_k, or that of d_k / |d_k|.

    MultiDDS:   R_i = <t_i, v> / (|t_i| |v|)        MultiDDS-S (unit gradients): R_i = <t_i, v> / |t_i|
    """

    def __init__(self, weights: Mapping[str, float], unit_gradients: bool, layout: Whole) -> None:
        self._weights = weights
        self._unit_gradients = unit_gradients
        self._layout = layout
        self._sum: Gradient | None = None
        self._length: float | None = None  # |v|, when all dev sets are in
        self.rewards: dict[str, float] = {}
        self.cancelled = False  # the weighted dev gradients summed to zero

    def dev(self, probed: ProbedGradient) -> None:
        if self._length is not None:  # the dev sets of another dataset begin
            self._sum = self._length = None
        if weight := self._weights[probed.name]:
            self._sum = added(
                self._sum, probed.gradient, weight / (probed.norm or 1.0) if self._unit_gradients else weight
            )

    def train(self, probed: ProbedGradient) -> None:
        assert self._sum is not None
        if self._length is None:
            self._length = self._layout.norm(self._sum)
        self.cancelled |= self._length == 0
        if probed.norm == 0 or self._length == 0:
            self.rewards[probed.name] = 0.0
        else:
            scale = 1.0 if self._unit_gradients else self._length
            self.rewards[probed.name] = self._layout.dot(probed.gradient, self._sum) / probed.norm / scale

    def join(self, role: str, split: WorkSplit) -> None:
        if role == "dev":
            self._sum = split.sum(self._sum)
        else:
            parts = split.gather((self.rewards, self.cancelled))
            self.rewards = {name: reward for rewards, _ in parts for name, reward in rewards.items()}
            self.cancelled = any(cancelled for _, cancelled in parts)


class Losses:
    """The loss of every dev set and dataset that was probed."""

    def __init__(self, probes: int = 1) -> None:
        self._probes = probes  # of each dev set: with a step ahead one per dataset, and its loss is their mean
        self.of_dev: dict[str, float] = {}
        self.of_train: dict[str, float] = {}

    def dev(self, probed: ProbedGradient) -> None:
        assert probed.loss is not None
        self.of_dev[probed.name] = self.of_dev.get(probed.name, 0.0) + probed.loss / self._probes

    def train(self, probed: ProbedGradient) -> None:
        if probed.loss is not None:
            self.of_train[probed.name] = probed.loss

    def join(self, role: str, split: WorkSplit) -> None:
        if role == "train":
            self.of_train = split.gather_dict(self.of_train)
        if role == "dev" or self._probes > 1:  # with a step ahead every rank has probed all dev sets for its datasets
            parts = split.gather(self.of_dev)
            names = dict.fromkeys(name for part in parts for name in part)
            self.of_dev = {name: sum(part[name] for part in parts if name in part) for name in names}

    def arrange(self, dev: Iterable[str], train: Iterable[str]) -> None:
        """Puts the names into this order, whichever rank was first."""
        self.of_dev = {name: self.of_dev[name] for name in dev if name in self.of_dev}
        self.of_train = {name: self.of_train[name] for name in train if name in self.of_train}


class NonFinite:
    """The numbers of an update that are zero, and those that are not finite, so that the mixture must not move."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights  # of the dev sets: what does not count cannot do harm
        self._zero: list[Finding] = []
        self._not_finite: list[Finding] = []

    def dev(self, probed: ProbedGradient) -> None:
        if self._weights[probed.name]:
            self._check_both("dev set", probed)

    def train(self, probed: ProbedGradient) -> None:
        self._check_both("dataset", probed)

    def _check_both(self, kind: str, probed: ProbedGradient) -> None:
        self.check("gradient", kind, {probed.name: probed.norm})
        if math.isfinite(probed.norm) and probed.loss is not None:
            self.check("loss", kind, {probed.name: probed.loss})

    def check(self, what: str, kind: str, values: Mapping[str, float]) -> None:
        """Collects losses, norms of gradients or rewards that are not finite, and gradients that are zero."""
        for name, value in values.items():
            if not math.isfinite(value):
                self._not_finite.append((what, kind, name))
            elif value == 0 and what == "gradient":
                self._zero.append((what, kind, name))

    def join(self, role: str, split: WorkSplit) -> None:
        parts = split.gather((self._zero, self._not_finite))
        self._zero = [each for zero, _ in parts for each in zero]
        self._not_finite = [each for _, not_finite in parts for each in not_finite]

    def arrange(self, dev: Iterable[str], train: Iterable[str]) -> None:
        """Puts them into the order of one process, whichever rank was first."""
        order = [*(("dev set", name) for name in dev), *(("dataset", name) for name in train)]
        places = {each: place for place, each in enumerate(order)}
        for findings in (self._zero, self._not_finite):
            findings.sort(key=lambda each: (each[0] != "loss", places[each[1], each[2]]))

    @property
    def zero(self) -> list[str]:
        """The gradients that are zero."""
        return [_described(each) for each in dict.fromkeys(self._zero)]

    def trouble(self) -> str | None:
        """Returns the reason why the mixture must not move; None: there is none."""
        if not self._not_finite:
            return None
        first, *others = dict.fromkeys(self._not_finite)
        return f"{_described(first)} is not finite" + (f" (and {len(others)} more like it)" if others else "")


def _described(finding: Finding) -> str:
    what, kind, name = finding
    return f"the {what} of {kind} {name!r}"
