"""The memory of relevance: posterior means over all updates, with their standard errors. Pure.

Only differences between datasets can move a mixture, so the mean of a row of cosines is subtracted from it, as
REINFORCE subtracts a baseline. Early in training any text teaches the first things, and every cosine is high.

What is left of the cosine of dataset i with dev set k at update t is modelled as s_kt a_ki + noise. a_ki lasts, and is
what a plan needs up to a factor of its row; the scale s_kt of a row falls while a model learns. The noise of a probe is
measured by its parts. What else changes from update to update has the variance s_kt S_k, with S_k the largest scale so
far. A row in which all datasets are nearly alike says little about their differences, so its level m counts as noise,
too. So an update counts by its information, s^2 / (noise^2 + s S + (m / 2)^2): one at noise level says nothing, however
late it comes. The prior is the relevance by names.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from .._base.state import Checks, not_negative
from ..mixture.planned import OTHERS

_PRIOR_UPDATES = 1.0  # updates without noise for which the prior counts
_LEVEL = 0.5  # of the mean of a row: counts as a standard error
_MARGIN = 2.0  # standard errors of a squared scale that are subtracted from it: noise must not pass for a scale

Table = Mapping[str, Mapping[str, tuple[float, float]]]


def relevance_by_names(names: Sequence[str], dev_names: Sequence[str]) -> Any:
    """Returns the prior [K, n]: 1 for the dataset of the dev set's name; 1 for all if no dataset has it."""
    prior = np.ones((len(dev_names), len(names)))
    known = set(names)
    for k, dev in enumerate(dev_names):
        if dev in known:
            prior[k] = [1.0 if name == dev else OTHERS for name in names]
    return prior


class RelevanceMemory:
    """The observed cosines of n datasets with K dev sets, as sums.

    names, dev_names: the order of columns and rows.
    prior: [K, n], not negative, with a positive value in each row.

    Public attributes are its state.
    """

    CHECKS: ClassVar[Checks] = {"information": not_negative, "largest": not_negative}

    def __init__(self, names: Sequence[str], dev_names: Sequence[str], prior: Any) -> None:
        self._columns = {name: i for i, name in enumerate(names)}
        self._rows = {name: k for k, name in enumerate(dev_names)}
        self._prior = prior / np.sqrt((prior**2).mean(axis=1, keepdims=True))  # rows have a root mean square of 1
        self.information = np.zeros(prior.shape)  # sums over updates of their information
        self.totals = np.zeros(prior.shape)  # the same times cosine / s
        self.largest = np.zeros(len(prior))  # squared scale of each row

    def add(self, table: Table) -> None:
        """Adds an update.

        table: {dev set: {dataset: (cosine, standard error of its difference from the mean of the row)}}. Cosines that
            are not finite are left out. An error that is not finite is unknown. The noise of the row is then that of
            its other errors, or the mean of the other rows.
        """
        squares = [error**2 for row in table.values() for _, error in row.values() if math.isfinite(error)]
        usual = sum(squares) / len(squares) if squares else None
        for dev, row in table.items():
            k = self._rows[dev]
            at = np.array([self._columns[name] for name in row], dtype=np.int64)
            cosines, errors = np.array(list(row.values()), dtype=np.float64).reshape(-1, 2).T
            finite, known = np.isfinite(cosines), np.isfinite(errors)
            if not finite.any() or usual is None:
                continue
            at, cosines = at[finite], cosines[finite]
            noise = float((errors[known] ** 2).mean()) if known.any() else usual
            level = max(0.0, float(cosines.mean()))
            cosines = cosines - level
            scale = float((cosines**2).mean()) - noise * (1 + _MARGIN * math.sqrt(2 / len(cosines)))
            if scale > 0:
                self.largest[k] = max(self.largest[k], scale)
                information = scale / (noise + math.sqrt(scale * self.largest[k]) + (_LEVEL * level) ** 2)
                self.information[k, at] += information
                self.totals[k, at] += information * cosines / math.sqrt(scale)

    def posterior(self) -> tuple[Any, Any]:
        """Returns (relevance, standard errors), both [K, n]: each row divided by its largest value.

        1 is the best dataset, and datasets below 0 are of less use than the average one. A row in which nothing is
        positive is its prior.
        """
        total = self.information + _PRIOR_UPDATES
        mean = (self.totals + _PRIOR_UPDATES * self._prior) / total
        empty = mean.max(axis=1) <= 0
        mean[empty] = self._prior[empty]
        largest = mean.max(axis=1, keepdims=True)
        return mean / largest, 1 / np.sqrt(total) / largest

    def measured(self, weights: Any) -> float:
        """Returns the share of the posterior that is not the prior's, averaged with the weights of the dev sets [K]."""
        shares = (self.information / (self.information + _PRIOR_UPDATES)).mean(axis=1)
        return float(weights @ shares / weights.sum())
