"""What one update found and did, and its one flattening into named numbers for logs, records and pages."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from .._base.text import changes, movers, shares
from ..probes.alignment import Alignment

MOST = 64  # datasets and dev sets whose numbers an update writes into a log


@dataclass(frozen=True)
class Update:
    """One change of the mixture, or the reason why there was none.

    step: the optimizer step after which it was made.
    mixture: {dataset: probability} after the update.
    rewards: {dataset: reward}; probed: the datasets whose rewards are new.
    dev_losses, train_losses: {name: loss of the probe}, for the dev sets and datasets that were probed.
    weights: {dev set: weight}, the priority.
    alignment: the table, if it was asked for.
    seconds: how long the update took.
    skipped: None, or the reason why the mixture did not move.
    notes: zero gradients, rewards that sum to 0 or less.
    noise: {dataset: standard error of its reward}, if it was estimated.
    signal: how much of the evidence that the rule uses is not noise, 0 to 1; NaN if unknown.
    drift: total variation between the mixture and the prior: 0 is the prior, 1 shares nothing with it.
    learned: the same between the mixture and the one that the rule would have if all rewards were the same.
    unlearned: the same between that one and the prior: how far the anchor, or the rule's own drift, goes by itself.
    before, prior: {dataset: probability} before this update, and where the training began.

    As a string it is one line, such as `step 500  python 80→67%  markdown 16→25%`.
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
    unlearned: float = 0.0
    before: dict[str, float] = field(default_factory=dict)
    prior: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        if self.skipped is not None:
            return f"step {self.step:,}  no update: {self.skipped}"
        moved = changes(self.mixture, self.before) if self.before else [shares(self.mixture)]
        return f"step {self.step:,}  " + ("  ".join(moved) or f"unchanged: {shares(self.mixture, 4)}")

    def __repr__(self) -> str:
        facts = "" if math.isnan(self.signal) else f"; signal {self.signal:.2f}"
        return f"Update({self}{facts}; {self.drift:.2f} from the prior, {self.learned:.2f} of it learned)"

    def facts(self) -> dict[str, float]:
        """What describes the update as a whole: {"signal": 0.9, "drift": 0.3, ...}; distances if the prior is known."""
        found = {} if math.isnan(self.signal) else {"signal": self.signal}
        if self.prior:
            found |= {"drift": self.drift, "learned": self.learned, "unlearned": self.unlearned}
        return found

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
        """The groups as one flat dict: {"mixture/az": 0.1, "reward/az": 0.3, ...}; the name follows the first '/'.

        more: further groups, such as passes={"az": 1.5}, which become "passes/az".

        Numbers for the update as a whole are "balance/signal", "balance/drift" and so on. With more than 64 datasets,
        those are kept that have moved furthest from the prior; with more than 64 dev sets, the first.
        """
        groups: dict[str, Mapping[str, float]] = {**self.groups(), **more}
        shown = self.movers()
        flat = {f"balance/{word}": value for word, value in self.facts().items()}
        for group, values in groups.items():
            few = len(values) <= MOST
            names = list(values) if few else [name for name in shown if name in values] or list(values)[:MOST]
            flat |= {f"{group}/{name}": float(values[name]) for name in names}
        return flat

    def movers(self, most: int = MOST) -> list[str]:
        """Up to `most` datasets, in their order; if there are more, those that have moved furthest from the prior."""
        if len(self.mixture) <= most:
            return list(self.mixture)
        return movers(self.mixture, self.prior or self.before or dict.fromkeys(self.mixture, 0.0), most)
