"""Rules of other papers, to compare with: DoGE (Fan et al. 2024) and Online Data Mixing (Albalak et al. 2023).

Both fit where `Scorer` and `Anchored` do, `Balancer(reward=..., scorer=...)`, with the rewards that they are made for:
`rewards.inner_products` and `rewards.training_losses`. Neither is the default, and neither is tuned here.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .._base.carrying import carried
from .._base.checks import are, check_state, is_count, is_finite, is_share


@dataclass(frozen=True)
class Exponentiated:
    """DoGE's rule, exponentiated gradient ascent: P(i) becomes proportional to P(i) * exp(lr * R(i)). Settings only.

    lr: the size of a step; DoGE's learning rate over its mu, times the optimizer steps between two updates.
    floor: no probability falls much below this share of the smallest prior probability.
    """

    lr: float = 0.5
    floor: float = 0.1

    def __post_init__(self) -> None:
        if not (self.lr > 0 and math.isfinite(self.lr)):
            raise ValueError(f"Exponentiated: lr must be positive and finite, but it is {self.lr}.")
        if not 0 <= self.floor < 1:
            raise ValueError(f"Exponentiated: floor must be at least 0 and below 1, but it is {self.floor}.")

    def started(self, prior: Sequence[float]) -> "Rival":
        """The state of one learned mixture, which begins at the prior."""
        return Rival("exponentiated", prior, self._moved)

    def _moved(self, numbers: list[float], rewards: Sequence[float], prior: Sequence[float], _: int) -> list[float]:
        """numbers: the probabilities so far."""
        best = max(rewards)
        raised = [p * math.exp(self.lr * (r - best)) for p, r in zip(numbers, rewards, strict=True)]
        least = self.floor * min(prior)
        total = math.fsum(raised)
        kept = [max(p / total, least) for p in raised]
        total = math.fsum(kept)
        numbers[:] = [p / total for p in kept]
        return list(numbers)


@dataclass(frozen=True)
class Exp3:
    """The bandit of Online Data Mixing: datasets whose training loss is high are drawn more. Settings only.

    smoothing: how much of the averaged rewards an update keeps.

    P(i) = (1 - n e) softmax(e' * averaged reward)(i) + e, with e = min(1/n, sqrt(log n / (n u))) at update u, and e'
    that of the update before. Every dataset is probed, so no reward has to be divided by its probability.
    """

    smoothing: float = 0.9

    def __post_init__(self) -> None:
        if not 0 <= self.smoothing < 1:
            raise ValueError(f"Exp3: smoothing must be at least 0 and below 1, but it is {self.smoothing}.")

    def started(self, prior: Sequence[float]) -> "Rival":
        """The state of one learned mixture. The prior holds until the first update."""
        return Rival("exp3", [0.0] * len(prior), self._moved)

    def _moved(self, numbers: list[float], rewards: Sequence[float], _: Sequence[float], update: int) -> list[float]:
        """numbers: the averaged rewards so far."""
        n = len(numbers)
        for i, reward in enumerate(rewards):
            numbers[i] = self.smoothing * numbers[i] + (1 - self.smoothing) * reward
        before, now = (min(1 / n, math.sqrt(math.log(n) / (n * max(u, 1)))) for u in (update - 1, update))
        best = max(numbers)
        weights = [math.exp(before * (number - best)) for number in numbers]
        total = math.fsum(weights)
        return [(1 - n * now) * weight / total + now for weight in weights]


class Rival:
    """The state of one mixture under a rule of this file: numbers per dataset, and how many updates there were."""

    signal = math.nan  # these rules do not ask how much of the rewards is noise

    def __init__(self, rule: str, numbers: Sequence[float], moved: Any) -> None:
        self._rule, self._numbers, self._start, self._moved = rule, list(numbers), list(numbers), moved
        self._updates = 0

    def step(
        self, rewards: Sequence[float], noise: Sequence[float] | None = None, anchor: Sequence[float] | None = None
    ) -> list[float] | None:
        """One update: the new probabilities, or None, with nothing changed, where rewards are not finite."""
        if not all(map(math.isfinite, rewards)):
            return None
        self._updates += 1
        found: list[float] = self._moved(self._numbers, rewards, self._start, self._updates)
        return found

    def notes(self, rewards: Sequence[float]) -> tuple[str, ...]:
        return ()

    def state_dict(self) -> dict[str, Any]:
        return {"rule": self._rule, "numbers": list(self._numbers), "start": self._start, "updates": self._updates}

    def check_state(self, state: Mapping[str, Any]) -> None:
        check_state("Balancer", state)
        if state.get("rule") != self._rule:
            raise ValueError("Balancer: the state is of another rule.")
        check_state("Balancer", state, numbers=are(is_finite), start=are(is_finite), updates=is_count)
        if len(state["numbers"]) != len(self._numbers):
            raise ValueError(f"Balancer: the state is of {len(state['numbers'])} datasets, not {len(self._numbers)}.")
        try:
            found = self._moved(
                list(state["numbers"]), [0.0] * len(self._numbers), state["start"], state["updates"] + 1
            )
        except (ArithmeticError, ValueError, IndexError):
            found = None
        if not are(is_share)(found):
            raise ValueError("Balancer: the state is damaged: no mixture follows from its numbers.")

    def carried(
        self, state: Mapping[str, Any], places: Sequence[int | None], probabilities: Sequence[float]
    ) -> dict[str, Any]:
        """A state for other datasets. places: where each was; None: it is new. probabilities: of all of them now."""
        if self._rule == "exponentiated":  # the numbers are the probabilities
            return {**state, "numbers": list(probabilities), "start": self._start}
        usual = math.fsum(state["numbers"]) / len(state["numbers"])
        return {**state, "numbers": carried(state["numbers"], places, usual), "start": self._start}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.check_state(state)
        self._numbers, self._start = list(state["numbers"]), list(state["start"])
        self._updates = int(state["updates"])
