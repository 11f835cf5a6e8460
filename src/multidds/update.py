"""What one update found and did, and its one flattening into named numbers for logs, records and pages."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from .alignment import Alignment


@dataclass(frozen=True)
class Update:
    """One change of the mixture, or why there was none."""

    step: int  # the optimizer step after which it came
    mixture: dict[str, float]  # after the update
    rewards: dict[str, float]
    dev_losses: dict[str, float]  # of the probe, for the dev sets that were probed
    train_losses: dict[str, float]  # of the probe, for the datasets that were probed
    weights: dict[str, float]  # of the dev sets: the priority
    alignment: Alignment | None  # the table, if it was asked for
    seconds: float
    skipped: str | None = None  # why the mixture did not move
    notes: tuple[str, ...] = ()  # zero gradients, rewards that sum to 0 or less
    noise: dict[str, float] = field(default_factory=dict)  # standard errors of the rewards, where they were estimated
    signal: float = math.nan  # how much of what the rule goes by is not noise, 0 to 1; NaN where it is not known
    drift: float = 0.0  # total variation between the mixture and the prior: 0 is the prior, 1 nothing in common
    learned: float = 0.0  # the same between the mixture and the one that the rule would have without any reward
    probed: tuple[str, ...] = ()  # the datasets whose rewards are new

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
