"""One update of a mixture, and its numbers under the names that logs, records and pages use."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from .._base.text import changes, movers, shares

if TYPE_CHECKING:
    from ..probes.table import Table

MOST_NAMES = 64  # datasets or dev sets of a group that a log gets
Relevance: TypeAlias = dict[str, dict[str, tuple[float, float | None]]]  # {dev set: {dataset: (value, its error)}}


def moved_by(facts: Mapping[str, float]) -> str:
    """Returns 'the plan moved 41% of the draws, learning 16% more', from `Update.facts`; empty if they do not say.

    The share of the draws that goes elsewhere is the total variation between two mixtures.
    """
    if "learned" not in facts:
        return ""
    if facts["unlearned"] < 0.005:
        return f"learning moved {facts['learned']:.0%} of the draws"
    return f"the plan moved {facts['unlearned']:.0%} of the draws, learning {facts['learned']:.0%} more"


@dataclass(frozen=True)
class Update:
    """One change of the mixture, or the reason why there was none.

    step: the optimizer step after which it was made.
    mixture: {dataset: probability} after the update.
    rewards: {dataset: reward}.
    dev_losses: {dev set: loss of the probe}, of those that were probed.
    train_losses: {dataset: loss of the probe}, of those that were probed.
    weights: {dev set: weight}, the priority.
    alignment: the table of inner products, if it was asked for.
    seconds: the time that the update took.
    skipped: None, or the reason why the mixture did not move.
    notes: sentences about zero gradients, rewards that sum to 0 or less, or datasets held at a limit of passes.
    noise: {dataset: standard error of its reward}, if it was estimated.
    signal: the share of the evidence that is not noise, 0 to 1; NaN if unknown.
    drift: the total variation between the mixture and the prior: 0 is the prior, 1 shares nothing with it.
    learned: the total variation between the mixture and the plan.
    probed: the datasets whose rewards are new.
    unlearned: the total variation between the plan and the prior.
    before: {dataset: probability} before the update.
    prior: {dataset: probability} that the training was given.
    relevance: {dev set: {dataset: (relevance, standard error)}} by all evidence so far; None if it is not estimated.
        1 is the best dataset; below 0 are those of less use than the average one.
    worth: {dataset: (worth of one more pass in new examples, standard error)} of datasets with a dev set of their
        name. 1 is as good as new, 0 of no use, below 0 it harms.
    held: {dataset: passes over the whole training} of those whose shares a limit of passes holds.
    proposed: {dataset: probability} that the rule would set, if it only watches.

    As a string it is one line, such as `step 500  python 80→67%  markdown 16→25%`.
    """

    step: int
    mixture: dict[str, float]
    rewards: dict[str, float]
    dev_losses: dict[str, float]
    train_losses: dict[str, float]
    weights: dict[str, float]
    alignment: "Table | None"
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
    relevance: dict[str, dict[str, tuple[float, float]]] | None = None
    worth: dict[str, tuple[float, float]] = field(default_factory=dict)
    held: dict[str, float] = field(default_factory=dict)
    proposed: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        if self.skipped is not None:
            return f"step {self.step:,}  no update: {self.skipped}"
        if self.proposed:
            moved = changes(self.proposed, self.mixture) or [f"{shares(self.mixture, 4)}, as it is"]
            return f"step {self.step:,}  would be: " + "  ".join(moved)
        moved = changes(self.mixture, self.before) if self.before else [shares(self.mixture)]
        unchanged = "; ".join([f"unchanged: {shares(self.mixture, 4)}", *self.notes])
        return f"step {self.step:,}  " + ("  ".join(moved) or unchanged)

    def __repr__(self) -> str:
        signal = "" if math.isnan(self.signal) else f"; signal {self.signal:.2f}"
        moved = moved_by(self.facts())
        return f"Update({self}{signal}{moved and '; '}{moved})"

    def facts(self) -> dict[str, float]:
        """Returns the numbers of the update as a whole: {"signal": 0.9, "drift": 0.3, ...}, those that are known."""
        facts = {} if math.isnan(self.signal) else {"signal": self.signal}
        if self.prior:
            facts |= {"drift": self.drift, "learned": self.learned, "unlearned": self.unlearned}
        return facts

    def relevance_table(self) -> Relevance:
        """Returns what each dataset is worth to each dev set: the relevance by all evidence, with standard errors.

        Without it, the cosines of this update, if there is a table of them, without errors. Empty if neither is known,
        or if there are more than 4,096 entries.
        """
        if len(self.weights) * len(self.mixture) > MOST_NAMES**2:
            return {}
        if self.relevance is not None:
            return {
                dev: {name: (round(value, 5), round(error, 5)) for name, (value, error) in row.items()}
                for dev, row in self.relevance.items()
            }
        if (table := self.alignment) is None:
            return {}
        return {
            dev: {name: (round(cosine, 5), None) for name, cosine in zip(table.train_names, row, strict=True)}
            for dev, row in zip(table.dev_names, table.cosines().tolist(), strict=True)
        }

    def groups(self) -> dict[str, dict[str, float]]:
        """Returns {"mixture": {"az": 0.1, ...}, "reward": ...}, under the names that all logs use."""
        return {
            "mixture": self.mixture,
            "reward": self.rewards,
            "train_loss": self.train_losses,
            "dev_loss": self.dev_losses,
            "dev_weight": self.weights,
            "noise": self.noise,
            "worth": {name: worth for name, (worth, _) in self.worth.items()},
            "worth_error": {name: error for name, (_, error) in self.worth.items() if not math.isnan(error)},
            "held": self.held,
            "proposed": self.proposed,
        }

    def short_groups(self, **more: Mapping[str, float]) -> dict[str, dict[str, float]]:
        """Returns the groups with at most 64 names each: the datasets that moved furthest from the prior, or the first.

        more: further groups, such as passes={"az": 1.5}.
        """
        moved = self.movers()
        short = {}
        for group, values in {**self.groups(), **more}.items():
            names = list(values)
            if len(names) > MOST_NAMES:
                names = [name for name in moved if name in values] or names[:MOST_NAMES]
            short[group] = {name: float(values[name]) for name in names}
        return short

    def scalars(self, **more: Mapping[str, float]) -> dict[str, float]:
        """Returns the short groups as one flat dict: {"mixture/az": 0.1, ...}; the name follows the first '/'.

        more: further groups, such as passes={"az": 1.5}, which become "passes/az".

        Numbers for the update as a whole are "balance/signal", "balance/drift" and so on.
        """
        flat = {f"balance/{word}": value for word, value in self.facts().items()}
        for group, values in self.short_groups(**more).items():
            flat |= {f"{group}/{name}": value for name, value in values.items()}
        return flat

    def movers(self, most: int = MOST_NAMES) -> list[str]:
        """Returns all datasets in their order, or the `most` that moved furthest from the prior."""
        if len(self.mixture) <= most:
            return list(self.mixture)
        return movers(self.mixture, self.prior or self.before or dict.fromkeys(self.mixture, 0.0), most)
