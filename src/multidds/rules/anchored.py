"""The default rule: the plan, tilted towards the datasets whose gradients help more than the others'.

P(i) is proportional to q(i) * exp(strength * z(i)). q is the plan. z(i) is how much better than the others dataset i
is, in standard deviations, averaged over the updates and shrunk by the share of the average that is noise: the noise of
a probe and the change from update to update. What all rewards have in common cancels, nothing accumulates, and neither
the number of updates nor the scale of the rewards matters; without a lasting signal the mixture is the plan.
A dataset that certainly does not help has its share cut as well.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, ClassVar

from .._base.state import check_keys
from ..rewards.memory import Posterior
from .rule import Evidence

_MAX_REWARD = 1e150  # |r| < 1e150, or its square would not be finite
_MAX_Z = 3.0  # standard deviations: |z| <= 3, so that one dataset among thousands is not all that counts
_CUT_BELOW = 0.5  # of the median reward
_CUT_MARGIN = 1.0  # cut i only if r_i + 1 SE_i < 0.5 * (median(r) - 2 median(SE))
_MIN_LOOKS = 3  # updates of a dataset before it can be cut
_MIN_SHARE = 0.02  # of its share: kept of a dataset that was cut, so that it can show that it has become useful
_AVERAGES = ("advantages", "changes", "rewards", "variances")


@dataclass(frozen=True)
class Anchored:
    """The default rule: rewards tilt the plan. Holds settings only.

    strength: a dataset one standard deviation better than the mean gets exp(strength) times its share in the plan,
        before all shares are scaled to sum to 1. 0 keeps the plan. Default 0.5.
    plan: True: if sizes and length of the training are given, training starts at `Mixture.planned` for them.
        False: the given mixture is tilted. Default True.
    """

    strength: float = 0.5
    plan: bool = True

    needs_errors: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (self.strength >= 0 and math.isfinite(self.strength)):
            raise ValueError(f"Anchored: strength must be 0 or more, but it is {self.strength}.")

    @property
    def uses_plan(self) -> bool:
        return self.plan

    def start(self, prior: Mapping[str, float]) -> "Tilt":
        """Returns the state of one learned mixture. prior: {dataset: probability}; only its names matter."""
        return Tilt(self.strength, sorted(prior))


class Tilt:
    """The averaged advantages of one mixture, and the probabilities that follow from them."""

    def __init__(self, strength: float, names: Sequence[str]) -> None:
        self._strength = strength
        self._names = list(names)
        self._updates = 0
        self._advantages = [0.0] * len(names)  # in standard deviations, averaged over updates
        self._changes = [0.0] * len(names)  # the variance of each advantage over the updates
        self._noise = 0.0  # of one update's advantages by its probe, as a share of their variance; averaged
        self._rewards = [0.0] * len(names)  # averaged over updates
        self._variances = [0.0] * len(names)  # of each reward over the updates
        self._probe_variance: float | None = None  # of one reward by its probe; averaged, if it was estimated
        self.signal = math.nan  # the share of the spread of the averaged advantages that is not noise, 0 to 1

    def step(self, evidence: Evidence, plan: Mapping[str, float]) -> dict[str, float] | None:
        """Returns the tilted plan; None, with nothing changed, if the rewards are not finite."""
        if evidence.posterior is not None:
            return self._tilted_by_posterior(evidence.posterior, plan)
        rewards = [evidence.rewards[name] for name in self._names]
        if not all(abs(reward) < _MAX_REWARD for reward in rewards):  # also NaN
            return None
        mean, spread = _mean_and_variance(rewards)
        errors = [evidence.errors[name] for name in self._names if name in evidence.errors]
        self._add(rewards, mean, spread, errors if all(map(math.isfinite, errors)) else [])
        self.signal = self._signal()
        cuts = [1.0] * len(rewards) if self._updates < _MIN_LOOKS else cut_factors(self._rewards, self._errors())
        return self._tilted(plan, self._strength * self.signal, self._advantages, cuts)

    def _tilted_by_posterior(self, posterior: Posterior, plan: Mapping[str, float]) -> dict[str, float]:
        """Tilts by posterior means, which are shrunk already: an advantage counts as far as its evidence goes."""
        self.signal = math.fsum(posterior.own_evidence) / len(posterior.own_evidence)
        factors = cut_factors(posterior.rewards, posterior.errors)
        cuts = [1.0 if looks < _MIN_LOOKS else cut for looks, cut in zip(posterior.looks, factors, strict=True)]
        return self._tilted(plan, self._strength, posterior.advantages, cuts)

    def _tilted(
        self, plan: Mapping[str, float], strength: float, advantages: Sequence[float], cuts: Sequence[float]
    ) -> dict[str, float]:
        largest = max(advantages)
        weights = {
            name: plan[name] * math.exp(strength * (z - largest)) * cut
            for name, z, cut in zip(self._names, advantages, cuts, strict=True)
        }
        total = math.fsum(weights.values())
        return {name: weight / total for name, weight in weights.items()}

    def _add(self, rewards: Sequence[float], mean: float, spread: float, errors: Sequence[float]) -> None:
        """Adds an update to the averages, in which update t of u counts in proportion to t: the first ones fade."""
        error = math.fsum(e**2 for e in errors) / len(errors) if errors else 0.0
        self._updates += 1
        share = 2 / (self._updates + 1)
        self._noise += share * ((min(1.0, error / spread) if spread > 0 else 1.0) - self._noise)
        if errors:
            before = error if self._probe_variance is None else self._probe_variance
            self._probe_variance = before + share * (error - before)
        for i, reward in enumerate(rewards):
            change = reward - self._rewards[i]
            self._rewards[i] += share * change
            self._variances[i] = (1 - share) * (self._variances[i] + share * change**2)
            z = (reward - mean) / math.sqrt(spread) if spread > 0 else 0.0
            change = min(max(z, -_MAX_Z), _MAX_Z) - self._advantages[i]
            self._advantages[i] += share * change
            self._changes[i] = (1 - share) * (self._changes[i] + share * change**2)

    def _errors(self) -> list[float]:
        """Returns the standard errors of the averaged rewards: the noise of all probes at first, and more and more the
        variance of the dataset's own rewards; never less than the noise of probes.
        """
        if self._probe_variance is None:
            return [math.inf] * len(self._rewards)
        u = self._updates
        variances = [(self._probe_variance + u * own) / (1 + u) for own in self._variances]
        return [math.sqrt(max(self._probe_variance, variance) * self._variance_of_mean()) for variance in variances]

    def _signal(self) -> float:
        if self._updates == 1:  # all noise, whatever the rounding of a spread of 1
            return 0.0
        _, spread = _mean_and_variance(self._advantages)
        noise = max(self._noise, self._change_variance())
        return max(0.0, 1 - noise * self._variance_of_mean() / spread) if spread > 0 else 0.0

    def _change_variance(self) -> float:
        """Returns the variance of an advantage from update to update; before others agree, an update is all noise."""
        u = self._updates
        unbiased = math.fsum(self._changes) / len(self._changes) / (1 - self._variance_of_mean()) if u > 1 else 0.0
        return (1 + (u - 1) * unbiased) / u

    def _variance_of_mean(self) -> float:
        """Returns the variance of a mean of u updates with weights 1, 2, ..., u, as a share of that of one."""
        u = self._updates
        return 2 * (2 * u + 1) / (3 * u * (u + 1))

    def notes(self, evidence: Evidence) -> tuple[str, ...]:
        return ()

    def state_dict(self) -> dict[str, Any]:
        averages = {key: list(getattr(self, f"_{key}")) for key in _AVERAGES}
        own = {"updates": self._updates, "noise": self._noise, "probe_variance": self._probe_variance}
        return {"rule": "anchored", **own, **averages}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_keys("Anchored", state, "rule")
        if state["rule"] != "anchored":
            raise ValueError(f"Anchored: the state is of the rule {state['rule']!r}.")
        check_keys("Anchored", state, "updates", "noise", "probe_variance", *_AVERAGES)
        for key in _AVERAGES:
            if len(state[key]) != len(self._names):
                raise ValueError(f"Anchored: the state is of {len(state[key])} datasets, not {len(self._names)}.")
        for key in _AVERAGES:
            setattr(self, f"_{key}", [float(value) for value in state[key]])
        self._updates = int(state["updates"])
        self._noise = float(state["noise"])
        self._probe_variance = state["probe_variance"]
        self.signal = self._signal() if self._updates else math.nan


def cut_factors(rewards: Sequence[float], errors: Sequence[float]) -> list[float]:
    """Returns the factor of every share: below 1 for datasets that certainly do not help.

    Those are datasets whose rewards are certainly below half of the median, or below 0 if the median is not certain.
    errors: the standard errors of the rewards.
    """
    bar = _CUT_BELOW * max(0.0, median(rewards) - 2 * _CUT_MARGIN * median(errors))
    if bar > 0:
        return [min(1.0, max(_MIN_SHARE, (r + _CUT_MARGIN * e) / bar)) for r, e in zip(rewards, errors, strict=True)]
    return [_unless_harmful(r + 3 * _CUT_MARGIN * e, e) for r, e in zip(rewards, errors, strict=True)]


def _unless_harmful(upper: float, error: float) -> float:
    """Returns 1 if the upper limit of a reward is 0 or more; below 0 the less, the more certain it is."""
    return 1.0 if upper >= 0 else max(_MIN_SHARE, math.exp(upper / error) if error > 0 else 0.0)


def _mean_and_variance(values: Sequence[float]) -> tuple[float, float]:
    mean = math.fsum(values) / len(values)
    return mean, math.fsum((value - mean) ** 2 for value in values) / len(values)
