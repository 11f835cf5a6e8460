"""The protocol of a rule, the training that it starts with, and the evidence that it gets.

A `Rule` is settings, which can be printed and shared; `start` makes its state for one training, which a balancer owns
and steps once per update. A rule sees numbers only: no model, no data.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

Relevance: TypeAlias = dict[str, dict[str, tuple[float, float]]]


@dataclass(frozen=True)
class Training:
    """The facts of a training before its first step.

    prior: {dataset: probability} of the given mixture.
    dev_weights: {dev set: weight}, by the priority; equal ones if it depends on losses.
    sizes: {dataset: number of examples}; None: unknown.
    draws: examples that the whole training draws; None: unknown.
    groups: {dataset: group}.
    """

    prior: Mapping[str, float]
    dev_weights: Mapping[str, float] = field(default_factory=dict)
    sizes: Mapping[str, float] | None = None
    draws: float | None = None
    groups: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Evidence:
    """The findings of an update.

    rewards: {dataset: reward}: of this update, or the posterior means if updates probe a part of the datasets.
    errors: {dataset: standard error of its reward}; empty if errors were not estimated.
    relevance: {dev set: {dataset: (cosine of their gradients, its standard error)}} of the sets that were probed; None
        if it was not measured.
    weights: {dev set: weight}, the priority now.
    train_losses, dev_losses: {name: loss of the probe}.
    passes: {dataset: passes over it so far}; empty if sizes are not known.
    """

    rewards: dict[str, float]
    errors: dict[str, float] = field(default_factory=dict)
    relevance: Relevance | None = None
    weights: dict[str, float] = field(default_factory=dict)
    train_losses: dict[str, float] = field(default_factory=dict)
    dev_losses: dict[str, float] = field(default_factory=dict)
    passes: dict[str, float] = field(default_factory=dict)


class RuleState(Protocol):
    """The state of a rule for one training."""

    @property
    def signal(self) -> float:
        """The share of the evidence that is not noise, 0 to 1; NaN if the rule does not estimate it."""

    @property
    def mixture(self) -> dict[str, float]:
        """The probabilities now; before the first step, those at which training starts."""

    def step(self, evidence: Evidence) -> dict[str, float] | None:
        """Returns the new probabilities; None, with nothing changed, if the evidence gives no finite ones."""

    def relevance(self) -> Relevance | None:
        """Returns {dev set: {dataset: (relevance, standard error)}}; None if the rule does not estimate it."""

    def notes(self, evidence: Evidence) -> tuple[str, ...]:
        """Returns sentences that a reader of the update should see."""

    def state_dict(self) -> dict[str, Any]:
        """Returns plain values that survive JSON."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues where the other state was; a state of another rule is an error."""


class Rule(Protocol):
    """The settings of a rule."""

    @property
    def needs_errors(self) -> bool:
        """Whether probes are compared by halves: standard errors and relevance take two batches of each set."""

    def start(self, training: Training) -> RuleState:
        """Returns the state for one training."""
