"""Rules and rewards to compare with: DoGE (Fan et al. 2024), Online Data Mixing (Albalak et al. 2023), mirror ascent.

    Balancer(..., reward=FromTable(inner_products), rule=Exponentiated())     # DoGE
    Balancer(..., reward=FromTable(training_losses, sketch=1), rule=Exp3())   # Online Data Mixing
    Balancer(..., rule=Exponentiated(lr=0.3, standardized=True))              # mirror ascent on standardised rewards

They use the public protocol of `multidds.rules` alone. None is tuned here.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import pstdev
from typing import Any

import torch
from torch import Tensor

from multidds.probes import Alignment
from multidds.rules import Evidence, Training

Numbers = dict[str, float]  # {dataset: number}


class Rival(ABC):
    """A rule that keeps one number per dataset and the number of updates so far."""

    needs_errors = False

    @abstractmethod
    def first(self, prior: Numbers) -> Numbers:
        """Returns the numbers at the start. prior: {dataset: probability}."""

    @abstractmethod
    def next(self, numbers: Numbers, rewards: Numbers, prior: Numbers, update: int) -> tuple[Numbers, Numbers]:
        """Returns the new numbers and the new probabilities. update: the number of this update, from 1."""

    def start(self, training: Training) -> "RivalState":
        """Returns the state for one training."""
        return RivalState(self, dict(training.prior))


@dataclass(frozen=True)
class Exponentiated(Rival):
    """The rule of DoGE, exponentiated gradient ascent: P(i) becomes proportional to P(i) * exp(lr * R(i)).

    lr: size of a step: DoGE's learning rate over its mu, times the optimizer steps between two updates. Default 0.5.
    standardized: whether the rewards of an update are divided by their standard deviation. Default False.
    floor: no probability falls much below this share of the smallest prior probability, 0 to below 1. Default 0.1.
    """

    lr: float = 0.5
    standardized: bool = False
    floor: float = 0.1

    def __post_init__(self) -> None:
        if not (self.lr > 0 and math.isfinite(self.lr)):
            raise ValueError(f"Exponentiated: lr must be positive and finite, but it is {self.lr}.")
        if not 0 <= self.floor < 1:
            raise ValueError(f"Exponentiated: floor must be at least 0 and below 1, but it is {self.floor}.")

    def first(self, prior: Numbers) -> Numbers:
        return prior

    def next(self, numbers: Numbers, rewards: Numbers, prior: Numbers, update: int) -> tuple[Numbers, Numbers]:
        best = max(rewards.values())
        lr = self.lr / (pstdev(rewards.values()) or 1.0) if self.standardized else self.lr
        raised = normalized({name: p * math.exp(lr * (rewards[name] - best)) for name, p in numbers.items()})
        least = self.floor * min(prior.values())
        probabilities = normalized({name: max(p, least) for name, p in raised.items()})
        return probabilities, probabilities


@dataclass(frozen=True)
class Exp3(Rival):
    """The bandit of Online Data Mixing: datasets with a high training loss are drawn more.

    smoothing: the share of the averaged rewards that an update keeps, 0 to below 1. Default 0.9.

    P(i) = (1 - n e) softmax(e' * averaged reward)(i) + e, with e = min(1/n, sqrt(log n / (n u))) at update u, and e'
    that of the update before. Every dataset is probed, so no reward has to be divided by its probability.
    """

    smoothing: float = 0.9

    def __post_init__(self) -> None:
        if not 0 <= self.smoothing < 1:
            raise ValueError(f"Exp3: smoothing must be at least 0 and below 1, but it is {self.smoothing}.")

    def first(self, prior: Numbers) -> Numbers:
        return dict.fromkeys(prior, 0.0)

    def next(self, numbers: Numbers, rewards: Numbers, prior: Numbers, update: int) -> tuple[Numbers, Numbers]:
        n = len(numbers)
        averages = {name: self.smoothing * a + (1 - self.smoothing) * rewards[name] for name, a in numbers.items()}
        before, now = (min(1 / n, math.sqrt(math.log(n) / (n * max(u, 1)))) for u in (update - 1, update))
        best = max(averages.values())
        weights = normalized({name: math.exp(before * (average - best)) for name, average in averages.items()})
        return averages, {name: (1 - n * now) * weight + now for name, weight in weights.items()}


class RivalState:
    """The state of one mixture under a `Rival`."""

    signal = math.nan  # these rules do not estimate how much of the rewards is noise

    def __init__(self, rule: Rival, prior: Numbers) -> None:
        self._rule = rule
        self._prior = prior
        self._numbers = rule.first(prior)
        self._updates = 0
        self.mixture = dict(prior)

    def relevance(self) -> None:
        return None

    def step(self, evidence: Evidence) -> Numbers | None:
        """Returns the new probabilities; None, with nothing changed, if rewards are not finite."""
        if not all(map(math.isfinite, evidence.rewards.values())):
            return None
        self._updates += 1
        self._numbers, self.mixture = self._rule.next(self._numbers, evidence.rewards, self._prior, self._updates)
        return self.mixture

    def notes(self, evidence: Evidence) -> tuple[str, ...]:
        return ()

    def state_dict(self) -> dict[str, Any]:
        rule = type(self._rule).__name__
        return {"rule": rule, "prior": self._prior, "numbers": self._numbers, "updates": self._updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        rule = type(self._rule).__name__
        if state["rule"] != rule:
            raise ValueError(f"{rule}: the state is of the rule {state['rule']!r}.")
        if state["prior"].keys() != self._prior.keys():
            raise ValueError(f"{rule}: the state is of other datasets: {', '.join(map(repr, state['prior']))}.")
        self._prior, self._numbers = dict(state["prior"]), dict(state["numbers"])
        self._updates = state["updates"]


def normalized(numbers: Numbers) -> Numbers:
    total = math.fsum(numbers.values())
    return {name: number / total for name, number in numbers.items()}


def inner_products(alignment: Alignment, weights: Tensor) -> Tensor:
    """Returns W_i = <sum_k w_k d_k, t_i> of gradients clipped to a norm of 1: the reward of DoGE. [train]"""
    dev = alignment.dev_norms if alignment.dev_norms.dim() == 2 else alignment.dev_norms[:, None]
    clipped = alignment.dev_train / (dev.clamp(min=1) * alignment.train_norms.clamp(min=1))
    return torch.as_tensor(weights, dtype=torch.float64) @ clipped


def training_losses(alignment: Alignment, weights: Tensor) -> Tensor:
    """Returns the loss of every dataset's probe: the reward of Online Data Mixing. [train]"""
    losses = [alignment.train_losses[name] for name in alignment.train_names]
    return torch.tensor(losses, dtype=torch.float64, device="cpu")
