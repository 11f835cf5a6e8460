"""What one update found and did, and its one flattening into named numbers for logs, records and pages."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from .alignment import Alignment


@dataclass(frozen=True)
class Update:
    """One change of the mixture, or why there was none.

    step: the optimizer step after which it came.
    mixture: {dataset: probability} after the update.
    rewards: {dataset: reward}; probed: the datasets whose rewards are new.
    dev_losses, train_losses: {name: loss of the probe}, for the dev sets and datasets that were probed.
    weights: {dev set: weight}, the priority.
    alignment: the table, if it was asked for.
    seconds: what the update took.
    skipped: None, or why the mixture did not move.
    notes: zero gradients, rewards that sum to 0 or less.
    noise: {dataset: standard error of its reward}, where it was estimated.
    signal: how much of what the rule goes by is not noise, 0 to 1; NaN where it is not known.
    drift: total variation between the mixture and the prior: 0 is the prior, 1 has nothing in common with it.
    learned: the same between the mixture and the one that the rule would have without any reward.
    """

    step: int
    mixture: dict[str, float]
    rewards: dict[str, float]
    dev_losses: dict[str, float]
    train_losses: dict[str, float]
    weights: dict[str, float]
    alignment: Alignment | None
    seconds: float
    skipped: str | None = None
    notes: tuple[str, ...] = ()
    noise: dict[str, float] = field(default_factory=dict)
    signal: float = math.nan
    drift: float = 0.0
    learned: float = 0.0
    probed: tuple[str, ...] = ()

    def groups(self) -> dict[str, dict[str, float]]:
        """{"mixture": {"az": 0.1, ...}, "reward": ...}: what every logger, record and page calls these numbers."""
        return {
            "mixture": self.mixture,
            "reward": self.rewards,
            "train_loss": self.train_losses,
            "dev_loss": self.dev_losses,
            "dev_weight": self.weights,
            "noise": self.noise,
        }

    def scalars(self, **more: Mapping[str, float]) -> dict[str, float]:
        """The groups flat: {"mixture/az": 0.1, "reward/az": 0.3, ...}. What is behind the first '/' is the name.

        more: further groups that a caller knows, such as passes={"az": 1.5}, which become "passes/az".
        """
        groups: dict[str, Mapping[str, float]] = {**self.groups(), **more}
        return {f"{group}/{name}": float(value) for group, values in groups.items() for name, value in values.items()}
