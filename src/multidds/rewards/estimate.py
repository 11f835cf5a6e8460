"""One round of probes as values: the sets that it probed, and what it found."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..probes.alignment import Alignment
from .dev_batches import DrawnDevBatches


@dataclass(frozen=True)
class Round:
    """The sets of one round of probes.

    number: rounds before this one.
    datasets: the datasets that are probed.
    weights: {dev set: weight} of all dev sets, summing to 1.
    dev_sets: {dev set: weight} of those that are probed; of a part, divided by their inclusion probabilities, so that
        on average over a rotation they count as the priority says.
    ranking: {dev set: loss} by which the priority ranked the dev sets.
    dev_batches: the batches of the dev sets.
    """

    number: int
    datasets: tuple[str, ...]
    weights: dict[str, float]
    dev_sets: dict[str, float]
    ranking: Mapping[str, float]
    dev_batches: DrawnDevBatches


@dataclass(frozen=True)
class Estimate:
    """The findings of one round of probes.

    rewards: {dataset: reward} of the datasets that were probed.
    errors: {dataset: standard error of its reward}; empty if errors were not estimated.
    dev_losses, train_losses: {name: loss of the probe}.
    weights: {dev set: weight} of all dev sets.
    alignment: the table, if it was asked for.
    relevance: {dev set: {dataset: (cosine, standard error)}} of the sets that were probed, if halves were compared.
    trouble: the reason why the mixture must not move; None: there is none.
    notes: sentences for a reader of the update.
    degrees: degrees of freedom of each standard error; two halves have one.
    """

    rewards: dict[str, float]
    errors: dict[str, float]
    dev_losses: dict[str, float]
    train_losses: dict[str, float]
    weights: dict[str, float]
    trouble: str | None = None
    notes: tuple[str, ...] = ()
    degrees: float = 1.0
    alignment: Alignment | None = None
    relevance: dict[str, dict[str, tuple[float, float]]] | None = field(default=None, repr=False)
