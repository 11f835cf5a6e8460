"""What is known of every dataset from looks at a part of them at a time: kept, aged, and shrunk by its own noise. Pure.

Empirical Bayes. A look shows x = theta + noise: theta, how much better than the others a dataset is, lasts and varies
between datasets with variance tau^2; the noise is that of the probe, which each look brings with it, and what does not
last. Both are estimated from all datasets together. A look of update t counts t/u at update u, as in `anchored`:
evidence fades. What is believed of a dataset is the mean of its group, moved towards its looks as far as they weigh
against tau^2: a dataset that was hardly seen stays with its group. `docs/method.md` has the formulas.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._base.carrying import carried
from .._base.checks import check_state, is_count, is_finite, is_number
from .._base.packing import are_packed, packed, unpacked

_FURTHEST = 3.0  # standard deviations, as in `anchored`
_PRIOR_DEGREES = 4.0  # of freedom that the mean variance of all probes counts in that of one
_PRIOR_LOOKS = 16.0  # looks that the spread of earlier updates counts in that of this one
_PRIOR_PAIRS = 30.0  # pairs of looks that the guess counts that half of the spread lasts
_ROUNDS = 20  # until the variance between groups and that within them agree
_ARRAYS = ("weights", "totals", "looks", "last")
_NUMBERS = ("level", "scale", "spread", "pairs", "products")


@dataclass(frozen=True)
class Posterior:
    """What is believed of every dataset, in the order of the names."""

    rewards: list[float]
    errors: list[float]  # their standard errors
    advantages: list[float]  # in standard deviations between datasets, at most three
    trusted: list[float]  # what of each advantage is its own looks', not its group's: 0 to 1


class RewardMemory:
    """The looks at n datasets so far. groups: the number of the group of each."""

    def __init__(self, groups: Sequence[int]) -> None:
        self._groups = np.asarray(groups, dtype=np.int64)
        self.updates = 0
        n = len(self._groups)
        self._weights, self._totals = np.zeros(n), np.zeros(n)  # sums over looks of t / variance, and of those times x
        self._looks, self._last = np.zeros(n, np.int64), np.zeros(n, np.int64)  # how many; the update of the last
        self._level = 0.0  # of the rewards: what a dataset has that is no better than the others
        self._scale = 0.0  # of the rewards: their standard deviation, noise included
        self._spread = 0.0  # between datasets at one moment: the share of that variance which is not the probes'
        self._pairs = self._products = 0.0  # looks at datasets that had been seen before, and their x times the old x

    @property
    def ages(self) -> list[int]:
        """Updates since the last look at each dataset; those never seen are as old as the training."""
        return (self.updates - self._last).tolist()

    @property
    def looks(self) -> list[int]:
        return self._looks.tolist()

    def add(
        self, places: Sequence[int], rewards: Sequence[float], errors: Sequence[float] | None, degrees: float
    ) -> bool:
        """One update: the rewards of the datasets at these places. False, with nothing changed: they are not finite.

        errors: the standard error of each by its probe, where they are known, each from so many degrees of freedom.
        """
        at, r = np.asarray(places, dtype=np.int64), np.asarray(rewards, dtype=np.float64)
        if not np.isfinite(r).all() or not np.isfinite(((r - r.mean()) ** 2).sum()):
            return False
        noise = np.zeros(len(r))
        if errors is not None and np.isfinite(errors).all():
            own = np.asarray(errors, dtype=np.float64) ** 2
            noise = (_PRIOR_DEGREES * own.mean() + degrees * own) / (_PRIOR_DEGREES + degrees)
        believed = self._believed()[0][at]
        self.updates += 1
        share = 2 / (self.updates + 1)
        level = float((r - self._scale * believed).mean())
        kept = _PRIOR_LOOKS if self.updates > 1 else 0.0
        scale = math.sqrt(float(((r - level) ** 2).sum() + kept * self._scale**2) / (len(r) + kept))
        self._level += share * (level - self._level)
        self._scale = scale
        x = np.clip((r - level) / scale, -_FURTHEST, _FURTHEST) if scale > 0 else np.zeros(len(r))
        noise = noise / scale**2 if scale > 0 else noise
        self._spread += share * (max(0.0, float((x**2).mean() - noise.mean())) - self._spread)
        self._compare(at, x)
        # At least a thousandth: no look is beyond doubt.
        variances = np.maximum(noise + max(0.0, self._spread - self._lasting()), 1e-3)
        self._weights[at] += self.updates / variances
        self._totals[at] += self.updates * x / variances
        self._looks[at] += 1
        self._last[at] = self.updates
        return True

    def _compare(self, at: Any, x: Any) -> None:
        """What of the spread lasts, datasets that are seen again show: E[x x'] = tau^2, noise being new each time."""
        again = self._weights[at] > 0
        before = self._totals[at][again] / self._weights[at][again]
        self._pairs += self.updates * int(again.sum())
        self._products += self.updates * float((x[again] * before).sum())

    def _lasting(self) -> float:
        """tau^2; of the spread, at first, a half."""
        guess = _PRIOR_PAIRS * max(1, self.updates)
        found = (self._products + guess * self._spread / 2) / (self._pairs + guess)
        return min(max(0.0, found), self._spread)

    def _believed(self) -> tuple[Any, Any, Any]:
        """(mean, variance, weight of the own looks) of theta for every dataset, in units of the scale."""
        weight = self._weights / max(1, self.updates)
        seen = np.divide(self._totals, self._weights, out=np.zeros_like(self._totals), where=self._weights > 0)
        return shrunk(seen, weight, self._groups, self._lasting())

    def belief(self) -> Posterior:
        mean, variance, trust = self._believed()
        spread = math.sqrt(self._spread)
        z = np.clip(mean / spread, -_FURTHEST, _FURTHEST) if spread > 0 else np.zeros_like(mean)
        rewards, errors = self._level + self._scale * mean, self._scale * np.sqrt(variance)
        return Posterior(rewards.tolist(), errors.tolist(), z.tolist(), trust.tolist())

    def state_dict(self) -> dict[str, Any]:
        arrays = {word: packed(getattr(self, f"_{word}").tolist()) for word in _ARRAYS}
        return {"updates": self.updates, **arrays, **{word: getattr(self, f"_{word}") for word in _NUMBERS}}

    def check_state(self, state: Mapping[str, Any]) -> None:
        lists = dict.fromkeys(_ARRAYS, are_packed(is_finite, len(self._groups)))
        check_state("Balancer: estimates", state, updates=is_count, **lists, **dict.fromkeys(_NUMBERS, is_number))

    def carried(self, state: Mapping[str, Any], places: Sequence[int | None]) -> dict[str, Any]:
        """A state for other datasets. places: where each was; None: it is new, and nothing is known of it."""
        return {**state, **{word: packed(carried(unpacked(state[word]), places, 0.0)) for word in _ARRAYS}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.check_state(state)
        for word in _ARRAYS:
            setattr(self, f"_{word}", np.array(unpacked(state[word]), dtype=getattr(self, f"_{word}").dtype))
        for word in _NUMBERS:
            setattr(self, f"_{word}", float(state[word]))
        self.updates = int(state["updates"])


def shrunk(seen: Any, weight: Any, groups: Any, lasting: float) -> tuple[Any, Any, Any]:
    """(mean, variance, weight of the own looks) of every theta [n], given what was seen of it, with which weight.

    seen, weight: [n], means of looks and one over their variances; groups: [n], numbers; lasting: tau^2, the variance
    between datasets, of which what groups have in common is a part. The mean of a group is shrunk towards 0 in turn.
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
        # What the means of groups vary beyond what the datasets in them explain.
        between = min(max(0.0, float((mean[known] ** 2 - 1 / total[known]).mean())), lasting)
        centre = (between * total / (1 + between * total) * mean)[groups]
    within = lasting - between
    trust = weight * within / (1 + weight * within)
    return centre + trust * (seen - centre), within * (1 - trust), trust


def numbered(groups: Sequence[str | None]) -> list[int]:
    """The number of the group of each dataset, whatever their order; those without one are one group."""
    order = {group: number for number, group in enumerate(sorted({"" if g is None else g for g in groups}))}
    return [order["" if group is None else group] for group in groups]
