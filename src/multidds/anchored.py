"""The default rule: the mixture is an anchor, tilted towards the datasets whose gradients help more than the others'.

P(i) is proportional to q(i) * rho(i)^strength: q is the anchor, a mixture that is good without any learning, and rho(i)
the reward of dataset i over the mean of all rewards, averaged over the updates so far and drawn towards 1 as far as
it is noise. Nothing accumulates, so neither the number of updates nor the scale of the rewards matters; without a
signal the mixture is the anchor. With a uniform anchor and strength 1 it is the fixed point of the paper's rule.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Anchored:
    """How rewards tilt an anchor: settings only.

    strength: the power of the reward ratio; 0 keeps the anchor, larger values trust the rewards more.
    limit: no dataset gets more than so many times, or less than one such part of, its share in the anchor. Rewards of
        zero or below count as the lower limit.
    """

    strength: float = 1.0
    limit: float = 8.0

    def __post_init__(self) -> None:
        if not (self.strength >= 0 and math.isfinite(self.strength)):
            raise ValueError(f"Anchored: strength must be 0 or more, but it is {self.strength}.")
        if not (self.limit >= 1 and math.isfinite(self.limit)):
            raise ValueError(f"Anchored: limit must be at least 1, but it is {self.limit}.")

    def started(self, prior: Sequence[float]) -> "Tilt":
        """The state of one learned mixture. The prior is the anchor until a step brings another."""
        return Tilt(self, prior)


class Tilt:
    """The averages of the rewards of one mixture, and how reliable they are."""

    def __init__(self, settings: Anchored, prior: Sequence[float]) -> None:
        self._settings, self._prior = settings, list(prior)
        self._updates = 0
        self._ratios = [1.0] * len(self._prior)  # rewards over their mean, averaged over updates
        self._noise = 0.0  # mean square error of a ratio in one update, averaged likewise
        self.signal = 0.0  # how much of the spread of the ratios is not noise, 0 to 1

    def step(
        self, rewards: Sequence[float], noise: Sequence[float] | None = None, anchor: Sequence[float] | None = None
    ) -> list[float] | None:
        """One update: the new probabilities, or None, with nothing changed, where the rewards have no positive mean.

        noise: the standard error of each reward, where it is known. anchor: the mixture to tilt now.
        """
        mean = math.fsum(rewards) / len(rewards)
        size = math.fsum(map(abs, rewards)) / len(rewards)
        if not (size > 0 and math.isfinite(size)):
            return None
        # Where rewards of both signs cancel, their mean size says what is large.
        scale = max(mean, size / 2)
        self._updates += 1
        # The newest counts in proportion to its number, so that the first ones, of another model, fade by themselves.
        share = 2 / (self._updates + 1)
        self._ratios = [old + share * (r / scale - old) for old, r in zip(self._ratios, rewards, strict=True)]
        if noise is not None:
            square = math.fsum((e / scale) ** 2 for e in noise) / len(noise)
            self._noise += share * (square - self._noise)
        return self._tilted(list(anchor) if anchor is not None else self._prior)

    def _tilted(self, anchor: list[float]) -> list[float]:
        centre = math.fsum(self._ratios) / len(self._ratios)
        spread = math.fsum((r - centre) ** 2 for r in self._ratios) / len(self._ratios)
        # Of an average with weights 1, 2, ..., u the variance is (2/3)(2u + 1) / (u (u + 1)) of that of one update.
        of_average = self._noise * 2 * (2 * self._updates + 1) / (3 * self._updates * (self._updates + 1))
        self.signal = max(0.0, 1 - of_average / spread) if spread > 0 else 0.0
        low, high = 1 / self._settings.limit, self._settings.limit
        shrunk = [centre + self.signal * (r - centre) for r in self._ratios]
        tilts = [min(max(r / max(centre, low), low), high) ** self._settings.strength for r in shrunk]
        weights = [q * tilt for q, tilt in zip(anchor, tilts, strict=True)]
        return [weight / math.fsum(weights) for weight in weights]

    def notes(self, rewards: Sequence[float]) -> tuple[str, ...]:
        return ()

    def state_dict(self) -> dict[str, Any]:
        return {
            "rule": "anchored",
            "prior": self._prior,
            "updates": self._updates,
            "ratios": self._ratios,
            "noise": self._noise,
            "signal": self.signal,
        }

    def check_state(self, state: Mapping[str, Any]) -> None:
        if state.get("rule") != "anchored":
            raise ValueError("Anchored: the state is of another rule.")
        if len(state["ratios"]) != len(self._ratios):
            raise ValueError(f"Anchored: the state is of {len(state['ratios'])} datasets, not {len(self._ratios)}.")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.check_state(state)
        self._prior, self._ratios = list(state["prior"]), list(state["ratios"])
        self._updates, self._noise, self.signal = int(state["updates"]), float(state["noise"]), float(state["signal"])
