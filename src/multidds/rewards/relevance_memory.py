"""The relevance of datasets to dev sets: posterior means over all updates, with their standard errors. Pure.

The cosine of the gradients of dataset i and dev set k at update t is modelled as s_kt a_ki + noise: a_ki lasts, and is
what a plan needs up to a factor of its row; the scale s_kt of a row falls while a model learns. The noise of a probe is
measured by its halves; what else changes from update to update has the variance s_kt S_k, with S_k the largest scale so
far. So an update counts by its information, s^2 / (noise^2 + s S): one at noise level says nothing, however late it
comes. The prior is the relevance by names.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .._base.state import check_keys
from ..mixture.planned import OTHERS

_SAME_GROUP = 0.5  # prior relevance of a dataset of the group of the dev set's own dataset
_PRIOR_UPDATES = 1.0  # updates without noise for which the prior counts
_MARGIN = 2.0  # standard errors of a squared scale that are subtracted from it: noise must not pass for a scale
_ARRAYS = ("information", "totals", "largest", "noise", "updates")

Table = Mapping[str, Mapping[str, tuple[float, float]]]


def relevance_by_names(names: Sequence[str], dev_names: Sequence[str], groups: Mapping[str, str] | None = None) -> Any:
    """Returns the prior [K, n]: 1 for the dataset of the dev set's name; 1 for all if no dataset has it."""
    groups = groups or {}
    prior = np.ones((len(dev_names), len(names)))
    known = set(names)
    for k, dev in enumerate(dev_names):
        if dev in known:
            group = groups.get(dev)
            near = [_SAME_GROUP if group is not None and groups.get(name) == group else OTHERS for name in names]
            prior[k] = [1.0 if name == dev else value for name, value in zip(names, near, strict=True)]
    return prior


class RelevanceMemory:
    """The observed cosines of n datasets with K dev sets, as sums.

    names, dev_names: the order of columns and rows. prior: [K, n], not negative, with a positive value in each row.
    """

    def __init__(self, names: Sequence[str], dev_names: Sequence[str], prior: Any) -> None:
        self._columns = {name: i for i, name in enumerate(names)}
        self._rows = {name: k for k, name in enumerate(dev_names)}
        self._prior = prior / np.sqrt((prior**2).mean(axis=1, keepdims=True))  # rows have a root mean square of 1
        self._information = np.zeros(prior.shape)  # sums over updates of s^2 / (noise^2 + s S)
        self._totals = np.zeros(prior.shape)  # the same times cosine / s
        self._largest = np.zeros(len(prior))  # squared scale of each row
        self._noise = np.zeros(len(prior))  # sums over updates of the mean squared error of each row
        self._updates = np.zeros(len(prior))  # of each row

    def add(self, table: Table) -> None:
        """Adds an update. table: {dev set: {dataset: (cosine, error)}}; values that are not finite are left out."""
        for dev, row in table.items():
            k = self._rows[dev]
            at = np.array([self._columns[name] for name in row], dtype=np.int64)
            cosines, errors = np.array(list(row.values()), dtype=np.float64).reshape(-1, 2).T
            finite = np.isfinite(cosines) & np.isfinite(errors)
            if not finite.any():
                continue
            at, cosines = at[finite], cosines[finite]
            noise = float((errors[finite] ** 2).mean())
            self._noise[k] += noise
            self._updates[k] += 1
            noise = max(noise, self._noise[k] / self._updates[k])  # a few differences of halves may be small by chance
            scale = float((cosines**2).mean()) - noise * (1 + _MARGIN * math.sqrt(2 / len(cosines)))
            if scale > 0:
                self._largest[k] = max(self._largest[k], scale)
                information = scale / (noise + math.sqrt(scale * self._largest[k]))
                self._information[k, at] += information
                self._totals[k, at] += information * cosines / math.sqrt(scale)

    def posterior(self) -> tuple[Any, Any]:
        """Returns (relevance, standard errors), both [K, n]: each row divided by its largest value.

        Datasets that harm are below 0. A row in which nothing is positive is its prior.
        """
        total = self._information + _PRIOR_UPDATES
        mean = (self._totals + _PRIOR_UPDATES * self._prior) / total
        empty = mean.max(axis=1) <= 0
        mean[empty] = self._prior[empty]
        largest = mean.max(axis=1, keepdims=True)
        return mean / largest, 1 / np.sqrt(total) / largest

    def measured(self, weights: Any) -> float:
        """Returns the share of the posterior that is not the prior's, averaged with the weights of the dev sets [K]."""
        shares = (self._information / (self._information + _PRIOR_UPDATES)).mean(axis=1)
        return float(weights @ shares / weights.sum())

    def state_dict(self) -> dict[str, Any]:
        return {word: getattr(self, f"_{word}").tolist() for word in _ARRAYS}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_keys("Balancer: relevance", state, *_ARRAYS)
        arrays = {word: np.array(state[word], dtype=np.float64) for word in _ARRAYS}
        for word, array in arrays.items():
            expected = getattr(self, f"_{word}").shape
            if array.shape != expected:
                raise ValueError(
                    f"Balancer: the relevance of the state has {word} of shape {array.shape}, not {expected}."
                )
        for word, array in arrays.items():
            setattr(self, f"_{word}", array)
