"""The round of an update: the training it belongs to, and the sets that it probes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .probe import Probe


@dataclass(frozen=True)
class Training:
    """The facts of a training before its first step.

    prior: {dataset: probability} of the given mixture.
    dev_weights: {dev set: weight}, by the priority; equal ones if it depends on losses.
    sizes: {dataset: number of examples}; None: unknown.
    draws: examples that the whole training draws; None: unknown.
    probe: of this training, for states that keep vectors as large as the parameters.
    """

    prior: Mapping[str, float]
    dev_weights: Mapping[str, float] = field(default_factory=dict)
    sizes: Mapping[str, float] | None = None
    draws: float | None = None
    probe: "Probe | None" = field(default=None, repr=False)


@dataclass(frozen=True)
class Round:
    """The sets of one round of probes.

    number: rounds before this one; it seeds what is random in the round.
    step: optimizer steps before this round.
    datasets: the datasets that are probed.
    dev_sets: {dev set: weight} of those that are probed. If that is a subset, weights are divided by inclusion
        probabilities, so that on average over a rotation they count as the priority says.
    weights: {dev set: weight} of all dev sets, summing to 1.
    passes: {dataset: passes over it so far}; empty if sizes are not known.
    """

    number: int
    step: int
    datasets: tuple[str, ...]
    dev_sets: Mapping[str, float]
    weights: Mapping[str, float]
    passes: Mapping[str, float] = field(default_factory=dict)
