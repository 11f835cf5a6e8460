"""Rules to compare with: DoGE (Fan et al. 2024), Online Data Mixing (Albalak et al. 2023), mirror ascent, a control.

    Balancer(..., rule=Doge())
    Balancer(..., rule=OnlineDataMixing())
    Balancer(..., rule=MirrorAscent(lr=0.3))
    Balancer(..., rule=Scorer(reward=constant))    # equal rewards: only the drift from the prior to uniform

Each is written with the public interface of `multidds.rules` alone, as a rule of your own would be.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import pstdev

import torch

from multidds.rules import Findings, Probe, Round, Rule, State, Training


@dataclass(frozen=True)
class Doge(Rule):
    """The rule of DoGE: P(i) becomes proportional to P(i) * exp(lr * W(i)), W = inner products of clipped gradients.

    lr: size of a step: DoGE's learning rate over its mu, times the optimizer steps between two updates. Default 0.5.
    floor: no probability falls much below this share of the smallest prior probability. Default 0.1.
    """

    lr: float = 0.5
    floor: float = 0.1

    def start(self, training: Training) -> State:
        return DogeState(self, training)


class DogeState(State):
    def __init__(self, rule: Doge, training: Training) -> None:
        self._rule, self._least = rule, rule.floor * min(training.prior.values())
        self.mixture = dict(training.prior)

    def update(self, probe: Probe, round_: Round) -> Findings:
        table = probe.table(round_)
        clipped = table.dev_train / (table.dev_norms.clamp(min=1)[:, None] * table.train_norms.clamp(min=1))
        weights = torch.tensor([round_.weights[name] for name in table.dev_names], dtype=torch.float64)
        rewards = dict(zip(table.train_names, (weights @ clipped).tolist(), strict=True))
        self.mixture = exponentiated(self.mixture, rewards, self._rule.lr, self._least)
        return Findings(rewards)


@dataclass(frozen=True)
class MirrorAscent(Rule):
    """Exponentiated gradient ascent on the mean cosines, divided by their standard deviation over the datasets.

    lr: size of a step. Default 0.3.
    floor: no probability falls much below this share of the smallest prior probability. Default 0.1.
    """

    lr: float = 0.3
    floor: float = 0.1

    def start(self, training: Training) -> State:
        return MirrorState(self, training)


class MirrorState(State):
    def __init__(self, rule: MirrorAscent, training: Training) -> None:
        self._rule, self._least = rule, rule.floor * min(training.prior.values())
        self.mixture = dict(training.prior)

    def update(self, probe: Probe, round_: Round) -> Findings:
        rewards, errors = probe.table(round_).mean_cosines(round_.weights)
        lr = self._rule.lr / (pstdev(rewards.values()) or 1.0)
        self.mixture = exponentiated(self.mixture, rewards, lr, self._least)
        return Findings(rewards, errors)


@dataclass(frozen=True)
class OnlineDataMixing(Rule):
    """The bandit of Online Data Mixing, EXP3: datasets with a high training loss are drawn more.

    smoothing: the share of the averaged rewards that an update keeps, 0 to below 1. Default 0.9.

    P(i) = (1 - n e) softmax(e' * averaged reward)(i) + e, with e = min(1/n, sqrt(log n / (n u))) at update u, and e'
    that of the update before. Every dataset is probed, so no reward has to be divided by its probability.
    """

    smoothing: float = 0.9

    def start(self, training: Training) -> State:
        return BanditState(self, training)


class BanditState(State):
    def __init__(self, rule: OnlineDataMixing, training: Training) -> None:
        self._smoothing = rule.smoothing
        self.mixture = dict(training.prior)
        self.averages = dict.fromkeys(training.prior, 0.0)
        self.updates = 0

    def update(self, probe: Probe, round_: Round) -> Findings:
        probe.of_datasets(round_, lambda gradient, norm: norm)
        losses, n, keep = probe.losses("train"), len(self.mixture), self._smoothing
        self.updates += 1
        self.averages = {name: keep * a + (1 - keep) * losses[name] for name, a in self.averages.items()}
        before, now = (min(1 / n, math.sqrt(math.log(n) / (n * max(u, 1)))) for u in (self.updates - 1, self.updates))
        best = max(self.averages.values())
        weights = normalized({name: math.exp(before * (a - best)) for name, a in self.averages.items()})
        self.mixture = {name: (1 - n * now) * weight + now for name, weight in weights.items()}
        return Findings(losses)


def constant(probe: Probe, round_: Round) -> dict[str, float]:
    """Returns a reward of 1 for every dataset: the control of `Scorer`, which measures nothing."""
    return dict.fromkeys(round_.datasets, 1.0)


def exponentiated(
    mixture: Mapping[str, float], rewards: Mapping[str, float], lr: float, least: float
) -> dict[str, float]:
    """Returns the mixture proportional to P(i) * exp(lr * R(i)), with no probability much below `least`."""
    best = max(rewards.values())
    raised = normalized({name: p * math.exp(lr * (rewards[name] - best)) for name, p in mixture.items()})
    return normalized({name: max(p, least) for name, p in raised.items()})


def normalized(numbers: Mapping[str, float]) -> dict[str, float]:
    total = math.fsum(numbers.values())
    return {name: number / total for name, number in numbers.items()}
