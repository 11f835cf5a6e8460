"""The posterior rewards of all datasets, from probes of a part of them at a time: empirical Bayes. Pure.

An observation of a dataset is x = theta + noise: theta, its lasting advantage over the others, varies between datasets
with variance tau^2; the noise is that of the probe and whatever does not last. Both variances are estimated from all
datasets together. An observation of update t counts t/u at update u: evidence fades. The posterior mean of a dataset is
the mean of its group, moved towards its own observations according to their precision against tau^2: a dataset with few
observations stays with its group. `docs/method.md` has the formulas.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._base.state import check_keys

_MAX_Z = 3.0  # standard deviations: |x| <= 3
_PRIOR_DEGREES = 4.0  # degrees of freedom of the mean variance of all probes in the variance of one
_PRIOR_OBSERVATIONS = 16.0  # observations for which the spread of earlier updates counts in that of this one
_PRIOR_PAIRS = 30.0  # pairs of observations for which the prior counts that half of the spread lasts
_ROUNDS = 20  # of the fixed-point iteration between the variance between groups and that within them
_ARRAYS = ("weights", "totals", "looks")
_NUMBERS = ("level", "scale", "spread", "pairs", "products")


@dataclass(frozen=True)
class Posterior:
    """The posterior of every dataset, in the order of the memory."""

    rewards: list[float]
    errors: list[float]  # their standard errors
    advantages: list[float]  # in standard deviations between datasets, at most three
    own_evidence: list[float]  # the share of each advantage that is due to the dataset's own observations: 0 to 1
    looks: list[int]  # updates that probed the dataset


class RewardMemory:
    """The observations of n datasets so far. groups: the number of the group of each."""

    def __init__(self, groups: Sequence[int]) -> None:
        self._groups = np.asarray(groups, dtype=np.int64)
        self.updates = 0
        n = len(self._groups)
        self._weights = np.zeros(n)  # sums over observations of t / variance
        self._totals = np.zeros(n)  # the same times x
        self._looks = np.zeros(n, np.int64)  # observations of each dataset
        self._level = 0.0  # the reward of a dataset that is no better than the others
        self._scale = 0.0  # the standard deviation of the rewards, noise included
        self._spread = 0.0  # the share of that variance at one moment that is not the probes'
        self._pairs = 0.0  # repeated observations of datasets
        self._products = 0.0  # of a repeated x with the mean of the earlier ones

    def add(
        self, places: Sequence[int], rewards: Sequence[float], errors: Sequence[float] | None, degrees: float
    ) -> bool:
        """Adds the rewards of the datasets at these places. Returns False, with nothing changed, if one is not finite.

        errors: their standard errors, if they were estimated. degrees: degrees of freedom of each error.
        """
        at, r = np.asarray(places, dtype=np.int64), np.asarray(rewards, dtype=np.float64)
        if not np.isfinite(r).all() or not np.isfinite(((r - r.mean()) ** 2).sum()):
            return False
        noise = np.zeros(len(r))
        if errors is not None and np.isfinite(errors).all():
            own = np.asarray(errors, dtype=np.float64) ** 2
            noise = (_PRIOR_DEGREES * own.mean() + degrees * own) / (_PRIOR_DEGREES + degrees)
        means = self._shrunk()[0][at]
        self.updates += 1
        share = 2 / (self.updates + 1)
        level = float((r - self._scale * means).mean())
        kept = _PRIOR_OBSERVATIONS if self.updates > 1 else 0.0
        scale = math.sqrt(float(((r - level) ** 2).sum() + kept * self._scale**2) / (len(r) + kept))
        self._level += share * (level - self._level)
        self._scale = scale
        x = np.clip((r - level) / scale, -_MAX_Z, _MAX_Z) if scale > 0 else np.zeros(len(r))
        noise = noise / scale**2 if scale > 0 else noise
        self._spread += share * (max(0.0, float((x**2).mean() - noise.mean())) - self._spread)
        self._compare(at, x)
        # At least a thousandth: no observation is beyond doubt.
        variances = np.maximum(noise + max(0.0, self._spread - self._lasting()), 1e-3)
        self._weights[at] += self.updates / variances
        self._totals[at] += self.updates * x / variances
        self._looks[at] += 1
        return True

    def _compare(self, at: Any, x: Any) -> None:
        """Adds the repeated observations: E[x x'] = tau^2, since noise is new each time."""
        again = self._weights[at] > 0
        before = self._totals[at][again] / self._weights[at][again]
        self._pairs += self.updates * int(again.sum())
        self._products += self.updates * float((x[again] * before).sum())

    def _lasting(self) -> float:
        """Returns tau^2; at first half of the spread."""
        guess = _PRIOR_PAIRS * max(1, self.updates)
        found = (self._products + guess * self._spread / 2) / (self._pairs + guess)
        return min(max(0.0, found), self._spread)

    def _shrunk(self) -> tuple[Any, Any, Any]:
        """Returns (mean, variance, weight of the own observations) of every theta, in units of the scale."""
        weight = self._weights / max(1, self.updates)
        seen = np.divide(self._totals, self._weights, out=np.zeros_like(self._totals), where=self._weights > 0)
        return shrunk(seen, weight, self._groups, self._lasting())

    def posterior(self) -> Posterior:
        mean, variance, own = self._shrunk()
        spread = math.sqrt(self._spread)
        z = np.clip(mean / spread, -_MAX_Z, _MAX_Z) if spread > 0 else np.zeros_like(mean)
        rewards, errors = self._level + self._scale * mean, self._scale * np.sqrt(variance)
        return Posterior(rewards.tolist(), errors.tolist(), z.tolist(), own.tolist(), self._looks.tolist())

    def state_dict(self) -> dict[str, Any]:
        arrays = {word: getattr(self, f"_{word}").tolist() for word in _ARRAYS}
        return {"updates": self.updates, **arrays, **{word: getattr(self, f"_{word}") for word in _NUMBERS}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_keys("Balancer: memory", state, "updates", *_ARRAYS, *_NUMBERS)
        arrays = {word: np.array(state[word], dtype=getattr(self, f"_{word}").dtype) for word in _ARRAYS}
        for word, array in arrays.items():
            if array.shape != self._groups.shape:
                raise ValueError(f"Balancer: the memory of the state has {len(array)} {word}, not {len(self._groups)}.")
        for word in _NUMBERS:
            setattr(self, f"_{word}", float(state[word]))
        for word, array in arrays.items():
            setattr(self, f"_{word}", array)
        self.updates = int(state["updates"])


def shrunk(seen: Any, weight: Any, groups: Any, lasting: float) -> tuple[Any, Any, Any]:
    """Returns (mean, variance, weight of the own observations) of every theta, each [n].

    seen, weight: [n], means of observations and their precisions. groups: [n], numbers. lasting: tau^2, the variance
    between datasets, which includes the variance between groups. The mean of a group is shrunk towards 0 in turn.
    """
    if lasting <= 0:
        return np.zeros_like(seen), np.zeros_like(seen), np.zeros_like(seen)
    count = int(groups.max()) + 1
    centre, between = np.zeros(len(seen)), 0.0
    for _ in range(_ROUNDS if count > 1 and weight.any() else 0):
        own = weight / (1 + weight * (lasting - between))  # one over the variance within a group + 1 / weight
        total = np.bincount(groups, own, count)
        known = total > 0
        mean = np.divide(np.bincount(groups, own * seen, count), total, out=np.zeros(count), where=known)
        # The variance of the means of groups beyond what the datasets in them explain.
        between = min(max(0.0, float((mean[known] ** 2 - 1 / total[known]).mean())), lasting)
        centre = (between * total / (1 + between * total) * mean)[groups]
    within = lasting - between
    own = weight * within / (1 + weight * within)
    return centre + own * (seen - centre), within * (1 - own), own


def numbered(groups: Sequence[str | None]) -> list[int]:
    """Returns the number of the group of each dataset, whatever their order; those without one are one group."""
    order = {group: number for number, group in enumerate(sorted({"" if g is None else g for g in groups}))}
    return [order["" if group is None else group] for group in groups]
