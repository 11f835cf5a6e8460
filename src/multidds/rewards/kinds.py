"""The rewards as objects that carry their settings: the gradients a reward needs, and the formula on them."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from ..probes.alignment import Alignment
from ..probes.example_slopes import ExampleLosses
from .formulas import Formula, multidds, multidds_s


class Reward:
    """A reward: one number per dataset and update. Holds settings only; `FromTable` takes a formula of your own."""

    ahead: float | None = None  # step size of the step ahead of Algorithm 1; None: no step
    table: int | str | None = None  # the table that updates keep: "exact", a number of buckets, or None
    unit_gradients: bool | None = None  # whether the dev direction sums unit gradients; None: there is no direction
    formula: Formula | None = None  # the reward as a function of a table, if there is one
    decay: float | None = None  # of moving averages in the place of the datasets' gradients; None: gradients of probes
    losses: ExampleLosses | None = None  # of single examples, for batches that mix datasets; None: they do not mix

    @property
    def needs_all(self) -> bool:
        """Whether every update has to probe every dataset and dev set."""
        return self.ahead is not None or self.table is not None or self.decay is not None


@dataclass(frozen=True)
class StabilizedCosine(Reward):
    """The reward of MultiDDS-S and of the default: the mean of a dataset's cosines with the dev sets.

    ahead: step size of the step ahead of Algorithm 1, which costs n + n * K passes; None: no step. Default None.
    table: None: no table. "exact" or a number of buckets such as 2**16: each update has its table of inner products.
        "exact" keeps K + 1 gradients in memory. Default None.
    """

    ahead: float | None = None
    table: int | str | None = None

    unit_gradients = True
    formula = staticmethod(multidds_s)

    def __post_init__(self) -> None:
        _check("StabilizedCosine", self.ahead, self.table)


@dataclass(frozen=True)
class Cosine(Reward):
    """The reward of MultiDDS: the cosine of a dataset's gradient with that of the weighted dev loss.

    ahead, table: as in `StabilizedCosine`.
    """

    ahead: float | None = None
    table: int | str | None = None

    unit_gradients = False
    formula = staticmethod(multidds)

    def __post_init__(self) -> None:
        _check("Cosine", self.ahead, self.table)


@dataclass(frozen=True)
class MovingAverage(Reward):
    """The reward of DDS: as `Cosine`, with moving averages of the datasets' gradients: n gradients of memory.

    decay: the weight of an average relative to the next newer gradient, 0 to below 1. Default 0.9.
    ahead, table: as in `StabilizedCosine`.
    """

    decay: float = 0.9
    ahead: float | None = None
    table: int | str | None = None

    unit_gradients = False

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise ValueError(f"MovingAverage: decay must be at least 0 and below 1, but it is {self.decay}.")
        _check("MovingAverage", self.ahead, self.table)


@dataclass(frozen=True)
class FromTable(Reward):
    """A reward of your own: a function of the table of inner products.

    function: (alignment, weights [dev]) -> tensor [train]; `multidds.rewards` has examples.
    sketch: the buckets of the table, or "exact", which keeps K + 1 gradients in memory. Default 2**16.
    ahead: as in `StabilizedCosine`.
    """

    function: Callable[[Alignment, Tensor], Tensor]
    sketch: int | str = 2**16
    ahead: float | None = None

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(f"FromTable: function must be callable, got {type(self.function).__name__}.")
        _check("FromTable", self.ahead, self.sketch, "sketch")

    @property
    def table(self) -> int | str:  # type: ignore[override]
        return self.sketch

    @property
    def formula(self) -> Formula:  # type: ignore[override]
        return self.function


@dataclass(frozen=True)
class MeanSlope(Reward):
    """A reward for very many datasets: the mean slope of a dataset's examples along the gradient of the dev sets.

    losses: (model, batch) -> tensor [B], the loss of every example.

    Batches mix datasets, so the cost of an update depends on the number of examples, not of datasets; the sources must
    be made by `batches_of`. It keeps two parameter-sized vectors.
    """

    losses: ExampleLosses

    def __post_init__(self) -> None:
        if not callable(self.losses):
            raise TypeError(
                f"MeanSlope: losses must be a function (model, batch) -> tensor [B], got {type(self.losses).__name__}."
            )


def _check(owner: str, ahead: float | None, table: object, word: str = "table") -> None:
    if ahead is not None and not (ahead > 0 and math.isfinite(ahead)):
        raise ValueError(f"{owner}: ahead must be a positive step size, but it is {ahead}.")
    if isinstance(table, bool) or not (table in (None, "exact") or (isinstance(table, int) and table >= 1)):
        raise ValueError(f"{owner}: {word} must be 'exact' or a number of buckets, but it is {table!r}.")
