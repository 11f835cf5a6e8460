"""The rewards of the paper: one number per dataset and round.

A reward is called with (probe, round) and returns {dataset: reward}; any such function can take its place. Sections 3
(R) and 4 (R', "stabilized") of the paper; `multidds.reference` has them naively.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from ..gradients.vectors import Gradient
from ..probes.probe import Probe
from ..probes.round import Round

Reward: TypeAlias = Callable[[Probe, Round], dict[str, float]]


@dataclass(frozen=True)
class Cosine:
    """The reward of MultiDDS: the cosine of a dataset's gradient with that of the weighted dev loss.

    R_i = <t_i, v> / (|t_i| |v|) with v = sum_k w_k d_k: one vector, which is the same for all datasets.

    ahead: step size of the step ahead of Algorithm 1: v is taken one step of gradient descent further, anew for each
        dataset, which costs n + n * K passes. Default None: no step.
    """

    ahead: float | None = None

    stabilized: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.ahead is not None and not (self.ahead > 0 and math.isfinite(self.ahead)):
            raise ValueError(f"{type(self).__name__}: ahead must be a positive step size, but it is {self.ahead}.")

    def __call__(self, probe: Probe, round_: Round) -> dict[str, float]:
        """Returns {dataset: reward}."""
        if self.ahead is None:
            direction = probe.direction(round_, unit=self.stabilized)
            return probe.of_datasets(round_, lambda t, norm: self._reward(probe, t, norm, *direction))

        def one_step_ahead(t: Gradient, norm: float) -> float:
            with probe.ahead(t, self.ahead or 0.0):
                direction = probe.direction(round_, unit=self.stabilized)
            return self._reward(probe, t, norm, *direction)

        return probe.of_datasets(round_, one_step_ahead, ahead=True)

    def _reward(self, probe: Probe, t: Gradient, norm: float, v: Gradient, length: float) -> float:
        if norm == 0 or length == 0:
            return 0.0
        return probe.model.layout.dot(t, v) / norm / (1.0 if self.stabilized else length)


@dataclass(frozen=True)
class StabilizedCosine(Cosine):
    """The reward of MultiDDS-S: the weighted mean of a dataset's cosines with the dev sets.

    R_i = <t_i, v> / |t_i| with v = sum_k w_k d_k / |d_k|: no dev set counts for more because its gradient is longer.

    ahead: as in `Cosine`.
    """

    stabilized: ClassVar[bool] = True
