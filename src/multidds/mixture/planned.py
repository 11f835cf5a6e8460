"""The best mixture for a training of a given length, from sizes, priorities and relevance. Pure.

    maximise over P:   sum_k w_k log sum_i A_ki D_i(N P_i)^(1/2)

w: the weights of the dev sets. A_ki: the relevance of dataset i to dev set k, relative to the most relevant. D_i: the
effective examples after N P_i draws from U_i examples: data that come again are worth less each time, after U new ones
r further passes are worth U R (1 - e^(-r / R)) new ones (Muennighoff et al. 2023, R about 15). The objective is
concave: there is one optimum.
"""

from typing import Any, Protocol

import numpy as np

REPETITION = 15.0  # R: passes after which a repeated example is worth 1/e of a new one
MAX_PASSES = 1 + REPETITION  # planned over a dataset, unless R is larger or a proportional mixture makes more
OTHERS = 0.22  # relevance by names of a dataset to the dev set of another: 0.22^2 = 0.05 of an example of its own
_POWER = 0.5  # examples are exchanged at A^2 of their relevance; 1 would go to corners
FLOOR = 0.1  # of the smaller of its proportional and its uniform share: the least share of a dataset
_MIN_REPETITION = 0.5  # at 0 the optimum is not unique
_NOTHING = 1e-9  # share of a dataset that helps nobody: it takes the draws that caps leave over
_ROUNDS = 200
_TOLERANCE = 1e-10  # change of a share between two rounds


class Relevance(Protocol):
    """A matrix A [K, n] of which only products are needed."""

    def __matmul__(self, other: Any) -> Any: ...

    def __rmatmul__(self, other: Any) -> Any: ...


class NamedRelevance:
    """The relevance by names: 1 to the dev set of a dataset's own name, `others` to the rest, times `factors`.

    own: [K], the place of the dataset that has the dev set's name; -1: none has, and all datasets count 1.
    """

    __array_ufunc__ = None  # so that numpy leaves the products to this class

    def __init__(self, own: Any, others: float, factors: Any) -> None:
        self._own = np.asarray(own)
        self._named = self._own >= 0
        self._others = np.where(self._named, others, 1.0)
        self._factors = np.asarray(factors, dtype=np.float64)

    def __matmul__(self, values: Any) -> Any:
        scaled = self._factors * values
        own = np.where(self._named, scaled[self._own], 0.0)
        return self._others * scaled.sum() + (1 - self._others) * own

    def __rmatmul__(self, weights: Any) -> Any:
        own = np.bincount(
            self._own[self._named], ((1 - self._others) * weights)[self._named], minlength=len(self._factors)
        )
        return self._factors * ((weights * self._others).sum() + own)


def planned(
    sizes: Any, draws: float, weights: Any, relevance: Relevance, repetition: Any = REPETITION, cap: bool = True
) -> Any:
    """Returns the best shares [n].

    sizes: [n], examples of each dataset. draws: N. weights: [K], of the dev sets. relevance: A [K, n], each row with
    at least one positive value. repetition: R, one number or [n]. cap: whether no dataset is passed through more often
    than 16 times, than 1 + R times or than in a proportional mixture, whichever is most.

    Expectation-maximisation: with the responsibilities r_ki = A_ki D_i^(1/2) / sum_j A_kj D_j^(1/2) fixed, the best
    draws solve one equation (`_best_draws`), and the objective never falls.
    """
    size, weights = np.asarray(sizes, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    worth = np.maximum(np.broadcast_to(np.asarray(repetition, dtype=np.float64), size.shape), _MIN_REPETITION)
    proportional = size / size.sum()
    least = FLOOR * np.minimum(1 / len(size), proportional) * draws
    most = size * most_passes(size, draws, worth) if cap else np.full(len(size), draws)
    drawn = np.clip(np.full(len(size), draws / len(size)), least, most)
    for _ in range(_ROUNDS):
        served = effective(drawn, size, worth) ** _POWER
        shares = served * ((weights / (relevance @ served)) @ relevance)  # sum over dev sets of w_k r_ki
        shares = np.maximum(shares, _NOTHING)
        before, drawn = drawn, _best_draws(shares, size, worth, draws, least, most)
        if np.abs(drawn - before).max() <= _TOLERANCE * draws:
            break
    return drawn / drawn.sum()


def most_passes(sizes: Any, draws: float, repetition: Any = REPETITION) -> Any:
    """Returns the most passes [n] that are planned over each dataset. Arguments: as those of `planned`."""
    size = np.asarray(sizes, dtype=np.float64)
    return np.maximum(1 + np.broadcast_to(repetition, size.shape), max(MAX_PASSES, draws / size.sum()))


def effective(drawn: Any, size: Any, repetition: Any) -> Any:
    """Returns the effective examples D of so many draws."""
    passes = np.maximum(drawn / size - 1, 0.0)  # after the first
    return np.minimum(drawn, size) - size * repetition * np.expm1(-passes / repetition)


def _best_draws(shares: Any, size: Any, worth: Any, draws: float, least: Any, most: Any) -> Any:
    """Returns the draws that maximise sum_i shares_i log D_i, between `least` and `most`, summing to `draws`.

    At the optimum shares_i D_i' / D_i is one number, the price; between the limits that gives draws in closed form.
    """

    def at(log_price: float) -> Any:
        price = np.exp(log_price)
        fresh = shares / price  # while no example comes again
        left = price * size * (1 + worth) / (shares + price * size * worth)  # e^(-r / R) beyond the first pass
        repeated = size * (1 - worth * np.log(np.minimum(np.maximum(left, 1e-300), 1.0)))
        return np.clip(np.where(fresh <= size, fresh, repeated), least, most)

    low, high = -700.0, 100.0  # of the logarithm of the price
    with np.errstate(over="ignore"):
        for _ in range(200):
            middle = (low + high) / 2
            if middle in (low, high):
                break
            low, high = (middle, high) if at(middle).sum() > draws else (low, middle)
        return at(high)
