"""The protocol of a rule, and the evidence that it gets.

A `Rule` is settings, which can be printed and shared; `start` makes its state for one mixture, which a balancer owns
and steps once per update. A rule sees numbers only: no model, no data.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from ..rewards.memory import Posterior

Relevance: TypeAlias = dict[str, dict[str, tuple[float, float]]]


@dataclass(frozen=True)
class Evidence:
    """The rewards of all datasets after an update.

    rewards: {dataset: reward}: of this update, or the posterior means if updates probe a part of the datasets.
    errors: {dataset: standard error of its reward}; empty if errors were not estimated.
    posterior: the reward memory's view of all datasets, if there is one; None: every update stands alone.
    relevance: {dev set: {dataset: (cosine of their gradients, its standard error)}}, if the table was measured.
    """

    rewards: dict[str, float]
    errors: dict[str, float] = field(default_factory=dict)
    posterior: Posterior | None = None
    relevance: Relevance | None = None


class RuleState(Protocol):
    """The state of a rule for one mixture."""

    @property
    def signal(self) -> float:
        """The share of the evidence that is not noise, 0 to 1; NaN if the rule does not estimate it."""

    def step(self, evidence: Evidence, plan: Mapping[str, float]) -> dict[str, float] | None:
        """Returns the new probabilities; None, with nothing changed, if the evidence gives no finite ones.

        evidence: of all datasets of the mixture. plan: the mixture that is good without any learning.
        """

    def notes(self, evidence: Evidence) -> tuple[str, ...]:
        """Returns sentences that a reader of the update should see."""

    def state_dict(self) -> dict[str, Any]:
        """Returns plain values that survive JSON."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues where the other state was; a state of another rule is an error."""


class Rule(Protocol):
    """The settings of a rule, and the requirements that follow from them."""

    @property
    def needs_errors(self) -> bool:
        """Whether probes are compared by halves, which takes two batches of each dataset and dev set."""

    @property
    def uses_plan(self) -> bool:
        """Whether training starts at the plan, if sizes and length are given, instead of the given mixture."""

    def start(self, prior: Mapping[str, float]) -> RuleState:
        """Returns the state for one mixture. prior: {dataset: probability} at the start."""
