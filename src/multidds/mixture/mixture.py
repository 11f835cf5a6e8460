"""`Mixture`: named probabilities of datasets that can be moved, and the static rules that make them.

A mixture has names, probabilities, sizes, and a dataset for every point of [0, 1). It has no data and no randomness:
`sampling` draws from it and a balancer moves it. Section 2 of the paper ("heuristic strategies").
"""

import math
import reprlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from numbers import Real
from typing import TYPE_CHECKING, Any

from .._base.checks import check_names, listed
from .._base.state import SUM_TOLERANCE, VERSION, check_keys, check_sizes, check_version, restored
from .._base.text import shares

if TYPE_CHECKING:
    from .mixture_table import MixtureTable

_UNSCALED = 1e-9  # |sum - 1| <= 1e-9: kept bit for bit, so that a copy of a mixture equals it


class Mixture:
    """The probability of each dataset. The names never change; a balancer changes the probabilities.

    probabilities: {name: probability}; they sum to 1.
    sizes: {name: number of examples}, for a plan and for limits of passes. Default None: unknown.

    >>> mixture = Mixture.temperature({"a": 1, "b": 9}, tau=2)
    >>> mixture["a"], mixture.names
    (0.25, ('a', 'b'))
    """

    def __init__(self, probabilities: Mapping[str, float], sizes: Mapping[str, float] | None = None) -> None:
        self._names = _checked_names("Mixture", probabilities)
        self._index = {name: i for i, name in enumerate(self._names)}
        self.sizes = sizes
        self.version = 0  # number of moves: readers notice a move without comparing probabilities
        self.learned = False  # whether the present probabilities were set by a balancer
        self._set(probabilities)

    @classmethod
    def proportional(cls, sizes: Mapping[str, float]) -> "Mixture":
        """Returns P(i) = size_i / sum of sizes, from sizes {name: examples}. The paper's prior."""
        return cls._scaled("Mixture.proportional", sizes, tau=1.0)

    @classmethod
    def temperature(cls, sizes: Mapping[str, float], tau: float) -> "Mixture":
        """Returns P(i) in proportion to size_i^(1/tau).

        sizes: {name: number of examples}.
        tau: 1 is proportional, infinity is uniform.
        """
        if not tau > 0:
            raise ValueError(f"Mixture.temperature: tau must be positive, but it is {tau}.")
        return cls._scaled("Mixture.temperature", sizes, tau)

    @classmethod
    def _scaled(cls, where: str, sizes: Mapping[str, float], tau: float) -> "Mixture":
        sizes = _checked_sizes(where, sizes)
        largest = max(sizes.values())
        return cls(_normalised({name: (size / largest) ** (1.0 / tau) for name, size in sizes.items()}), sizes)

    @classmethod
    def uniform(cls, names: Iterable[str] | Mapping[str, float]) -> "Mixture":
        """Returns the same probability for each of the names, which may be {name: examples} to keep the sizes."""
        sizes = None
        if isinstance(names, Mapping) and all(isinstance(size, Real) for size in names.values()):
            sizes = names  # other values, such as datasets, are ignored
        names = list(names)
        if twice := [name for name, times in Counter(names).items() if times > 1]:
            raise ValueError(f"Mixture.uniform: the name {twice[0]!r} is there more than once.")
        return cls({name: 1.0 / len(names) for name in names}, sizes)

    @classmethod
    def unimax(cls, sizes: Mapping[str, float], budget: float, max_passes: float) -> "Mixture":
        """Returns the mixture that is as uniform as the passes allow (UniMax, Chung et al. 2023).

        From the smallest dataset up, each gets an equal share of the rest of the budget, but at most `max_passes` times
        its size.

        sizes: {name: number of examples}.
        budget: examples that the whole training will see, in the unit of the sizes.
        max_passes: passes over each dataset, at most.
        """
        sizes = _checked_sizes("Mixture.unimax", sizes)
        for word, value in (("budget", budget), ("max_passes", max_passes)):
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"Mixture.unimax: {word} must be positive and finite, but it is {value}.")
        shares = dict.fromkeys(sizes, 0.0)
        left = float(budget)
        smallest_first = sorted(sizes, key=lambda name: (sizes[name], name))
        for taken, name in enumerate(smallest_first):
            shares[name] = min(left / (len(sizes) - taken), max_passes * sizes[name])
            left -= shares[name]
        return cls(_normalised(shares), sizes)

    @classmethod
    def planned(
        cls,
        sizes: Mapping[str, float],
        draws: float,
        weights: Mapping[str, float] | None = None,
        repetition: float = 15.0,
    ) -> "Mixture":
        """Returns the best mixture for a training of this length, by sizes and names alone: no gradients, no cost.

        sizes: {name: number of examples}.
        draws: examples that the whole training will draw, in the unit of sizes.
        weights: {name: weight of its dev set}. Default None: all the same.
        repetition: passes after which a repeated example is worth 1/e of a new one. Default 15.

        An example serves the dev set of its own dataset, twenty times less those of others, and less each time that it
        comes again. The shorter the training, the nearer the plan is to uniform.
        """
        from .planned import OTHERS, NamedRelevance, planned

        sizes = _checked_sizes("Mixture.planned", sizes)
        if not (draws > 0 and math.isfinite(draws)):
            raise ValueError(f"Mixture.planned: draws must be positive and finite, but it is {draws}.")
        if weights is not None:
            check_names("Mixture.planned: weights", sizes, weights)
            if not all(0 <= w < math.inf for w in weights.values()) or not any(weights.values()):
                raise ValueError("Mixture.planned: weights must not be negative, and at least one above 0.")
        names = sorted(sizes)
        by_place = {place: 1.0 if weights is None else weights[name] for place, name in enumerate(names)}
        counted = [place for place, weight in by_place.items() if weight > 0]
        total = math.fsum(by_place.values())
        relevance = NamedRelevance(counted, OTHERS, [1.0] * len(names))
        weighted = [by_place[place] / total for place in counted]
        shares = planned([sizes[name] for name in names], draws, weighted, relevance, repetition)
        by_name = dict(zip(names, shares.tolist(), strict=True))
        return cls({name: by_name[name] for name in sizes}, sizes)

    @classmethod
    def table(
        cls, sizes: Mapping[str, float], draws: float, weights: Mapping[str, float] | None = None
    ) -> "MixtureTable":
        """Returns share and passes of each dataset under every mixture that needs no learning; print it.

        sizes: {name: number of examples}.
        draws: examples that the whole training will draw: steps times examples per step.
        weights: {name: weight of its dev set}, for the planned mixture; others have 0. Default None: all the same.

        >>> table = Mixture.table({"web": 12_000, "topics": 150}, draws=6400)
        >>> print(table)
        share (passes) of each dataset in 6,400 draws
        dataset  examples  proportional  temperature 3  temperature 5     uniform     planned
        web        12,000    99% (0.53)     81% (0.43)     71% (0.38)  50% (0.27)  ...
        topics        150     1% (0.53)        19% (8)       29% (13)    50% (21)  ...
        >>> table.shares["uniform"]
        {'web': 0.5, 'topics': 0.5}
        """
        from .mixture_table import MixtureTable

        sizes = _checked_sizes("Mixture.table", sizes)
        planned = cls.planned(sizes, draws, weights and {**dict.fromkeys(sizes, 0.0), **weights})
        mixtures = {"proportional": cls.proportional(sizes)}
        mixtures |= {f"temperature {tau}": cls.temperature(sizes, tau) for tau in (3, 5)}
        mixtures |= {"uniform": cls.uniform(sizes), "planned": planned}
        return MixtureTable(sizes, draws, {rule: mixture.probabilities for rule, mixture in mixtures.items()})

    @classmethod
    def extended(
        cls, learned: "Mixture | Mapping[str, float]", sizes: Mapping[str, float], draws: float | None = None
    ) -> "Mixture":
        """Returns a learned mixture with other datasets: some are new, some may be left out.

        A new dataset gets the share that `Mixture.planned` gives it; the others divide the rest in proportion to their
        learned probabilities.

        learned: the mixture of an earlier training, or {name: probability}.
        sizes: {name: number of examples} of all datasets of the new training.
        draws: examples that the new training will draw. Default None: as many as there are.

        >>> Mixture.extended({"a": 0.6, "b": 0.3, "c": 0.1}, {"a": 500, "b": 500, "new": 500})
        Mixture(a 44%, new 33%, b 22%)
        """
        plan = cls.planned(sizes, sum(sizes.values()) if draws is None else draws)
        learned = learned if isinstance(learned, Mixture) else cls(learned)
        if set(learned) == set(plan):  # bit for bit
            return cls({name: learned[name] for name in plan}, sizes)
        new_share = math.fsum(plan[name] for name in plan if name not in learned)
        old_share = math.fsum(learned[name] for name in plan if name in learned)
        if not old_share > 0:
            raise ValueError(f"Mixture.extended: the learned mixture has none of the datasets {listed(plan)}.")
        scale = (1 - new_share) / old_share
        return cls({name: learned[name] * scale if name in learned else plan[name] for name in plan}, sizes)

    @property
    def names(self) -> tuple[str, ...]:
        return self._names

    @property
    def probabilities(self) -> dict[str, float]:
        """A copy: {name: probability}."""
        return dict(zip(self._names, self._probabilities, strict=True))

    @property
    def sizes(self) -> dict[str, float] | None:
        """A copy: {name: number of examples}, or None if they are unknown. Assign to fill them in."""
        return None if self._sizes is None else dict(self._sizes)

    @sizes.setter
    def sizes(self, sizes: Mapping[str, float] | None) -> None:
        if sizes is not None:
            check_names("Mixture: sizes", self._names, sizes)
            checked = _checked_sizes("Mixture", {name: sizes[name] for name in self._names})
            sizes = {name: int(size) if size.is_integer() else size for name, size in checked.items()}
        self._sizes = sizes

    def __getitem__(self, name: str) -> float:
        if name not in self._index:
            raise KeyError(f"Mixture: there is no dataset {name!r}; there are {listed(self._names)}.")
        return self._probabilities[self._index[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def keys(self) -> tuple[str, ...]:
        """Returns the names, so that dict(mixture) is {name: probability}."""
        return self._names

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._index

    def __repr__(self) -> str:
        many = f"{len(self):,} datasets: " if len(self) > 12 else ""
        return f"Mixture({many}{shares(self.probabilities, 12 if not many else 4)})"

    def at(self, point: float) -> str:
        """Returns the dataset on which a point of [0, 1) falls; a uniformly random point makes a draw. O(log n)."""
        # Without the last edge, so that no rounding leads past it.
        return self._drawable[bisect_right(self._cumulative, point * self._cumulative[-1], 0, self._last)]

    @property
    def edges(self) -> dict[str, float]:
        """{name: end of its part of [0, 1)}, for callers with many points."""
        return dict(zip(self._drawable, self._cumulative, strict=True))

    def move(self, probabilities: Mapping[str, float]) -> None:
        """Replaces the probabilities; the names must be the same. Every stream that shares this object follows."""
        if set(probabilities) != set(self._names):
            check_names("Mixture.move", self._names, probabilities)
        self._set(probabilities)
        self.version += 1
        self.learned = False

    def state_dict(self) -> dict[str, Any]:
        return {"version": VERSION, "probabilities": self.probabilities, "sizes": self.sizes}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over the probabilities of a state; other names, or other sizes if both are known, are an error."""
        check_version("Mixture", state)
        check_keys("Mixture", state, "probabilities", "sizes")
        probabilities = restored("Mixture: the state: 'probabilities'", self.probabilities, state["probabilities"])
        if self._sizes is not None and state["sizes"] is not None:
            check_keys("Mixture: the state: 'sizes'", state["sizes"])
            check_sizes("Mixture", self._sizes, state["sizes"])
        self.move(probabilities)

    def _set(self, probabilities: Mapping[str, float]) -> None:
        probabilities = {name: _number("Mixture: probabilities", name, p) for name, p in probabilities.items()}
        for name, p in probabilities.items():
            if not p >= 0:  # also NaN
                what = "must not be NaN" if math.isnan(p) else "must not be negative"
                raise ValueError(f"Mixture: probabilities {what}, but {name!r} is {p}.")
        total = sum(probabilities.values())
        if not abs(total - 1) <= SUM_TOLERANCE:
            raise ValueError(
                f"Mixture: probabilities must sum to 1, but they sum to {total:g}. "
                "Divide weights of another scale by their sum."
            )
        scale = 1.0 if abs(total - 1) <= _UNSCALED else total
        self._probabilities = tuple(probabilities[name] / scale for name in self._names)
        # By name, not by position: the same draws in any order of the datasets. Datasets of probability 0 are left out,
        # so that no rounding can draw them.
        self._drawable = tuple(sorted(name for name in self._names if self[name] > 0))
        self._cumulative = list(accumulate(self[name] for name in self._drawable))
        self._last = len(self._drawable) - 1


def check_mixture(where: str, mixture: object) -> None:
    if not isinstance(mixture, Mixture):
        raise TypeError(f"{where}: the mixture must be a Mixture, got {type(mixture).__name__}.")


def _checked_names(where: str, names: Iterable[str]) -> tuple[str, ...]:
    names = tuple(names)
    if not names:
        raise ValueError(f"{where}: there must be at least one dataset.")
    for name in names:
        if not isinstance(name, str) or not name:
            raise ValueError(f"{where}: names must be strings that are not empty, but one is {name!r}.")
    return names


def _number(what: str, name: str, value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        advice = "; give its number of examples, len(...)" if hasattr(value, "__len__") else ""
        raise TypeError(f"{what} must be numbers, but {name!r} is {reprlib.repr(value)}{advice}.") from None


def _checked_sizes(where: str, sizes: Mapping[str, float]) -> dict[str, float]:
    _checked_names(where, sizes)
    sizes = {name: _number(f"{where}: sizes", name, size) for name, size in sizes.items()}
    for name, size in sizes.items():
        if not (size > 0 and math.isfinite(size)):
            raise ValueError(f"{where}: sizes must be positive and finite, but {name!r} is {size:g}.")
    return sizes


def _normalised(weights: Mapping[str, float]) -> dict[str, float]:
    total = math.fsum(weights.values())
    return {name: weight / total for name, weight in weights.items()}
