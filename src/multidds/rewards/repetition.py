"""The worth of repeated data, measured: how fast datasets are memorised, from losses on seen and unseen examples. Pure.

The gap between the loss of a dev set and that of the training probes of the dataset with its name grows with the passes
over the dataset. The gap per pass gives R, the passes after which a repeated example is worth 1/e of a new one: R
passes make a gap of 0.2 nats. The prior is 0.2 nats at 15 passes, R = 15 (Muennighoff et al. 2023). Most of what one
dataset shows is noise, and how fast a model memorises is mostly the model's: datasets are shrunk towards the common
value.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .._base.state import check_keys

_GAP = 0.2  # nats after R passes
_PRIOR_PASSES = 15.0  # for which the prior counts in the common value
_COMMON_PASSES = 60.0  # for which the common value counts in that of a dataset


class RepetitionMemory:
    """The last gaps of datasets, and the passes at which they were measured. names: the order of the datasets."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)
        self._gaps = np.zeros(len(self._names))  # in nats; 0: not measured
        self._passes = np.zeros(len(self._names))  # at which they were measured

    def add(self, train: Mapping[str, float], dev: Mapping[str, float], passes: Mapping[str, float]) -> None:
        """Adds an update. train, dev: {name: loss of the probe}; passes: {dataset: passes so far}."""
        for i, name in enumerate(self._names):
            if name in train and name in dev and passes.get(name, 0.0) > 0 and np.isfinite(dev[name] - train[name]):
                self._gaps[i] = max(0.0, dev[name] - train[name])
                self._passes[i] = passes[name]

    def estimate(self) -> Any:
        """Returns R of every dataset [n]."""
        common = (self._gaps.sum() + _GAP) / (self._passes.sum() + _PRIOR_PASSES)
        slopes = (self._gaps + common * _COMMON_PASSES) / (self._passes + _COMMON_PASSES)
        return _GAP / slopes

    def state_dict(self) -> dict[str, Any]:
        return {"gaps": self._gaps.tolist(), "passes": self._passes.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_keys("Balancer: repetition", state, "gaps", "passes")
        gaps, passes = (np.array(state[key], dtype=np.float64) for key in ("gaps", "passes"))
        if gaps.shape != self._gaps.shape or passes.shape != self._gaps.shape:
            raise ValueError(
                f"Balancer: the repetition of the state is of {len(gaps)} datasets, not {len(self._names)}."
            )
        self._gaps, self._passes = gaps, passes
