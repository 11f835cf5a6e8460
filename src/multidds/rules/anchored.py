"""The default rule: the mixture is an anchor, tilted towards the datasets whose gradients help more than the others'.

P(i) is proportional to q(i) * exp(strength * z(i)). q is the anchor, a mixture that is good without any learning. z(i)
is how much better than the others dataset i is, in standard deviations, averaged over the updates so far and shrunk by
what of the average is still noise: what a probe drawn anew would change, and what changes from update to update. What
all rewards have in common cancels, nothing accumulates, and neither the number of updates nor the scale of the rewards
matters; without a signal that lasts the mixture is the anchor; harm is bounded.
A dataset that certainly does not help, as one of noise does not, has its share cut besides.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from .._base.carrying import carried
from .._base.checks import check_state, is_count, is_finite, is_number
from .._base.packing import are_packed, packed, unpacked

if TYPE_CHECKING:
    from ..rewards.memory import Posterior

_FURTHEST = 3.0  # standard deviations: one dataset among thousands that differs must not be all that counts
_USELESS = 0.5  # of the reward that is usual: one that is certainly lower is cut
_SURE = 1.0  # standard errors by which a reward counts as higher than it seems, and twice which what is usual as lower
_FEW = 3  # updates, before which nothing is cut
_LEAST = 0.02  # of its share: what is left of a dataset however useless, so that it can show that it has become useful


@dataclass(frozen=True)
class Anchored:
    """The default rule: rewards tilt an anchor. Holds settings only.

    strength: a dataset one standard deviation better than the mean gets exp(strength) times its share in the anchor,
        before all shares are scaled to sum to 1. 0 keeps the anchor; larger values trust the rewards more.
    plan: if the balancer knows the sizes of the datasets and how many examples will be drawn, the anchor is
        Mixture.planned for them, and training starts from it. False: the anchor is the mixture that you give.
    """

    strength: float = 0.5
    plan: bool = True

    def __post_init__(self) -> None:
        if not (self.strength >= 0 and math.isfinite(self.strength)):
            raise ValueError(f"Anchored: strength must be 0 or more, but it is {self.strength}.")

    def started(self, prior: Sequence[float]) -> "Tilt":
        """The state of one learned mixture. The prior is the anchor until a step brings another."""
        return Tilt(self, prior)

    def believing(self) -> "Believing":
        """The same rule where datasets are looked at in parts, or have groups: it keeps nothing, `shrinkage` does."""
        return Believing(self)


class Tilt:
    """The averaged advantages of one mixture."""

    def __init__(self, settings: Anchored, prior: Sequence[float]) -> None:
        self._settings, self._prior = settings, list(prior)
        self._updates = 0
        self._advantages = [0.0] * len(self._prior)  # in standard deviations, averaged over updates
        self._changes = [0.0] * len(self._prior)  # the variance of each advantage over the updates, likewise
        self._noise = 0.0  # of the advantages of one update by its probe, as a share of their variance, likewise
        self._rewards = [0.0] * len(self._prior)  # as they are, averaged likewise
        self._variances = [0.0] * len(self._prior)  # of each reward over the updates, likewise
        self._probe_variance: float | None = None  # of one reward by its probe, averaged likewise, where it is known
        self.signal = math.nan  # what of the spread of the averaged advantages is not noise, 0 to 1

    def step(
        self, rewards: Sequence[float], noise: Sequence[float] | None = None, anchor: Sequence[float] | None = None
    ) -> list[float] | None:
        """One update: the new probabilities, or None, with nothing changed, where rewards are not finite.

        noise: the standard error of each reward, where it is known. anchor: the mixture to tilt now.
        """
        if not all(map(math.isfinite, rewards)):
            return None
        mean, spread = _mean_and_variance(rewards)
        if not math.isfinite(spread):
            return None
        if noise is not None and not all(map(math.isfinite, noise)):
            noise = None
        error = 0.0 if noise is None else math.fsum(e**2 for e in noise) / len(noise)
        self._updates += 1
        # The newest counts in proportion to its number, so that the first ones, of another model, fade by themselves.
        share = 2 / (self._updates + 1)
        self._noise += share * ((min(1.0, error / spread) if spread > 0 else 1.0) - self._noise)
        if noise is not None:
            before = error if self._probe_variance is None else self._probe_variance
            self._probe_variance = before + share * (error - before)
        for i, r in enumerate(rewards):
            step = r - self._rewards[i]
            self._rewards[i] += share * step
            self._variances[i] = (1 - share) * (self._variances[i] + share * step**2)
            z = (r - mean) / math.sqrt(spread) if spread > 0 else 0.0
            step = min(max(z, -_FURTHEST), _FURTHEST) - self._advantages[i]
            self._advantages[i] += share * step
            self._changes[i] = (1 - share) * (self._changes[i] + share * step**2)
        trust = self._settings.strength * self._signal()
        furthest = max(self._advantages)
        tilts = [math.exp(trust * (z - furthest)) for z in self._advantages]
        self.signal = self._signal()
        anchor = self._prior if anchor is None else anchor
        weights = [q * tilt * cut for q, tilt, cut in zip(anchor, tilts, self._cuts(), strict=True)]
        total = math.fsum(weights)
        return [weight / total for weight in weights]

    def _cuts(self) -> list[float]:
        """`cuts` by the averaged rewards. How certain they are, the noise of all probes says at first, and more and
        more how much the dataset's own rewards have varied.
        """
        if self._updates < _FEW:
            return [1.0] * len(self._rewards)
        return cuts(self._rewards, self._errors())

    def _errors(self) -> list[float]:
        """The standard errors of the averaged rewards: never less than those of the probes."""
        if self._probe_variance is None:
            return [math.inf] * len(self._rewards)
        u = self._updates
        variances = [(self._probe_variance + u * own) / (1 + u) for own in self._variances]
        return [math.sqrt(max(self._probe_variance, variance) * self._averaged()) for variance in variances]

    def _signal(self) -> float:
        """What of the spread of the averaged advantages is not noise."""
        if not self._updates:
            return math.nan
        if self._updates == 1:  # all noise, whatever the rounding of a spread of 1
            return 0.0
        _, spread = _mean_and_variance(self._advantages)
        noise = max(self._noise, self._changeable())
        return max(0.0, 1 - noise * self._averaged() / spread) if spread > 0 else 0.0

    def _changeable(self) -> float:
        """The variance of an advantage from update to update. Before others have agreed, an update is all noise."""
        u = self._updates
        unbiased = math.fsum(self._changes) / len(self._changes) / (1 - self._averaged()) if u > 1 else 0.0
        return (1 + (u - 1) * unbiased) / u

    def _averaged(self) -> float:
        """What of the variance of one update an average of u with weights 1, 2, ..., u has."""
        u = self._updates
        return 2 * (2 * u + 1) / (3 * u * (u + 1))

    def notes(self, rewards: Sequence[float]) -> tuple[str, ...]:
        return ()

    def state_dict(self) -> dict[str, Any]:
        return {
            "rule": "anchored",
            "prior": packed(self._prior),
            "updates": self._updates,
            "advantages": packed(self._advantages),
            "changes": packed(self._changes),
            "noise": self._noise,
            "rewards": packed(self._rewards),
            "variances": packed(self._variances),
            "variance": self._probe_variance,
        }

    def check_state(self, state: Mapping[str, Any]) -> None:
        check_state("Anchored", state)
        if state.get("rule") != "anchored":
            raise ValueError("Anchored: the state is of another rule.")
        numbers = are_packed(is_finite)
        lists = dict.fromkeys(("prior", "advantages", "changes", "rewards", "variances"), numbers)
        check_state(
            "Anchored", state, **lists, updates=is_count, noise=is_number,
            variance=lambda value: value is None or is_number(value),
        )  # fmt: skip
        n = len(self._advantages)
        if wrong := [len(unpacked(state[key])) for key in lists if len(unpacked(state[key])) != n]:
            raise ValueError(f"Anchored: the state is of {wrong[0]} datasets, not {n}.")

    def carried(
        self, state: Mapping[str, Any], places: Sequence[int | None], probabilities: Sequence[float]
    ) -> dict[str, Any]:
        """A state for other datasets. places: where each was; None: it is new, and neither better nor worse."""
        lists = {key: unpacked(state[key]) for key in ("advantages", "changes", "rewards", "variances")}
        new = {"advantages": 0.0, "rewards": median(lists["rewards"])}
        new |= {key: fmean(lists[key]) for key in ("changes", "variances")}
        return {**state, "prior": self._prior, **{key: carried(lists[key], places, v) for key, v in new.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.check_state(state)
        self._prior, self._advantages = unpacked(state["prior"]), unpacked(state["advantages"])
        self._rewards, self._variances = unpacked(state["rewards"]), unpacked(state["variances"])
        self._updates, self._noise = int(state["updates"]), float(state["noise"])
        self._changes = unpacked(state["changes"])
        self._probe_variance = state["variance"]
        self.signal = self._signal()


class Believing:
    """The tilt of one mixture by what is believed of its datasets."""

    def __init__(self, settings: Anchored) -> None:
        self._settings = settings
        self.signal = math.nan  # what of all advantages is the datasets' own evidence, 0 to 1

    def tilted(self, anchor: Sequence[float], belief: "Posterior", looks: Sequence[int]) -> list[float]:
        """The new probabilities.

        anchor: the mixture to tilt. belief: what is believed of every dataset, so that an advantage counts as far as
        its evidence goes. looks: how often each was looked at; nothing is cut before the third.
        """
        self.signal = math.fsum(belief.trusted) / len(belief.trusted)
        furthest = max(belief.advantages)
        tilts = [math.exp(self._settings.strength * (z - furthest)) for z in belief.advantages]
        left = [1.0 if n < _FEW else cut for n, cut in zip(looks, cuts(belief.rewards, belief.errors), strict=True)]
        weights = [q * tilt * cut for q, tilt, cut in zip(anchor, tilts, left, strict=True)]
        total = math.fsum(weights)
        return [weight / total for weight in weights]

    def notes(self, rewards: Sequence[float]) -> tuple[str, ...]:
        return ()

    def state_dict(self) -> dict[str, Any]:
        return {"rule": "anchored by beliefs"}

    def carried(
        self, state: Mapping[str, Any], places: Sequence[int | None], probabilities: Sequence[float]
    ) -> dict[str, Any]:
        return dict(state)

    def check_state(self, state: Mapping[str, Any]) -> None:
        check_state("Anchored", state)
        if state.get("rule") != "anchored by beliefs":
            raise ValueError(
                "Anchored: the state is of another rule, or of updates that looked at all datasets at once."
            )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.check_state(state)


def cuts(rewards: Sequence[float], errors: Sequence[float]) -> list[float]:
    """What is left of every share after datasets that certainly do not help have been cut: those whose rewards are less
    than half of what is usual, or below 0 where it is not known well enough what is usual.

    errors: the standard errors of the rewards.
    """
    bar = _USELESS * max(0.0, median(rewards) - 2 * _SURE * median(errors))
    if bar > 0:
        return [min(1.0, max(_LEAST, (r + _SURE * e) / bar)) for r, e in zip(rewards, errors, strict=True)]
    return [_unless_harmful(r + 3 * _SURE * e, e) for r, e in zip(rewards, errors, strict=True)]


def _unless_harmful(highest: float, error: float) -> float:
    """highest: what a reward may be at the most. Where that is below 0, the less is left the surer it is."""
    return 1.0 if highest >= 0 else max(_LEAST, math.exp(highest / error) if error > 0 else 0.0)


def _mean_and_variance(values: Sequence[float]) -> tuple[float, float]:
    mean = math.fsum(values) / len(values)
    return mean, math.fsum((value - mean) ** 2 for value in values) / len(values)
