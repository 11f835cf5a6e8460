"""From what a round of probes has collected to rewards: of one dataset each, with their noise, the same on every rank.

`estimating` takes the gradients, `sweep` and `table` collect; here is what is then made of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .._base.ranks import Ranks
from ..probes.alignment import Alignment
from ..probes.alignment_table import Halves, Table
from ..probes.sweep import Direction, Losses, NonFinite
from .formulas import Reward, multidds, multidds_s, redraw_noise

# {name: does v sum the dev gradients themselves, or their directions?}
STABILIZED = {"multidds": False, "multidds-s": True, "moving-average": False}
_OF_TABLE: dict[str, Reward] = {"multidds": multidds, "multidds-s": multidds_s}


@dataclass(frozen=True)
class Estimate:
    """What one round of probes found."""

    rewards: dict[str, float]
    noise: dict[str, float]  # standard errors of the rewards; empty where they were not estimated
    dev_losses: dict[str, float]
    train_losses: dict[str, float]
    weights: dict[str, float]  # of the dev sets
    alignment: Alignment | None
    trouble: str | None  # why the mixture must not move
    notes: tuple[str, ...]
    degrees: float = 1.0  # of freedom that each standard error has: two halves have one


@dataclass(frozen=True)
class Swept:
    """What the collectors of one update have seen."""

    losses: Losses
    findings: NonFinite
    direction: Direction | None
    table: Table | None
    halves: Halves | None


def estimate_of(
    swept: Swept,
    reward: str | Reward,
    names: Sequence[str],
    weights: Mapping[str, float],
    counting: Mapping[str, float],
    replicas: Ranks,
) -> Estimate:
    """names: the datasets that were looked at. weights: of all dev sets; counting: of those that were looked at."""
    losses, findings, direction = swept.losses, swept.findings, swept.direction
    alignment = None if swept.table is None else swept.table.alignment(losses, names)
    with replicas.raise_on_all_ranks():
        found = direction.rewards if direction is not None else _custom(reward, names, alignment, weights)
        rewards: dict[str, float] = {name: found[name] for name in names}
    rewards = replicas.gathered(rewards)[0]
    findings.check("reward", "dataset", rewards)
    noise: dict[str, float] = {}
    if swept.halves is not None:
        first, second = swept.halves.alignments(losses, names)
        noise = replicas.gathered(_noise(reward, first, second, counting))[0]
    notes = [f"{what} is zero: its cosine counts as 0" for what in findings.zero]
    if direction is not None and direction.cancelled:
        notes.append("the gradients of the dev sets sum to zero: rewards count as 0")
    return Estimate(
        rewards, noise, losses.of_dev, losses.of_train, dict(weights), alignment, findings.trouble(), tuple(notes)
    )


def _noise(reward: str | Reward, first: Alignment, second: Alignment, weights: Mapping[str, float]) -> dict[str, float]:
    by = reward if callable(reward) else _OF_TABLE[reward]
    # A table may have dev sets of weight 0; without one they were not probed.
    given = torch.tensor([weights[name] for name in first.dev_names], dtype=torch.float64, device="cpu")
    return dict(zip(first.train_names, redraw_noise(by(first, given), by(second, given)).tolist(), strict=True))


def _custom(
    reward: str | Reward, names: Sequence[str], alignment: Alignment | None, weights: Mapping[str, float]
) -> dict[str, float]:
    assert callable(reward)
    assert alignment is not None
    given = torch.tensor(list(weights.values()), dtype=torch.float64, device="cpu")
    values = reward(alignment, given)
    if not isinstance(values, Tensor):
        raise TypeError(f"Balancer: the reward function must return a tensor, got {type(values).__name__}.")
    if values.shape != (len(names),):
        raise ValueError(
            f"Balancer: the reward function must return one number for each of the {len(names)} datasets, "
            f"but the shape is {tuple(values.shape)}."
        )
    return dict(zip(names, values.tolist(), strict=True))
