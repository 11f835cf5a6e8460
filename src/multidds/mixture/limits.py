"""Limits that every rule keeps: shares between bounds, and no more passes over a dataset than are allowed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from .._base.checks import check_names
from .._base.state import check_keys
from .mixture import Mixture

Bounds: TypeAlias = Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class Limits:
    """Limits of a mixture that every rule keeps.

    bounds: {name: (low, high)}: limits of shares. A name is that of a dataset, or of a group: then it limits the sum of
        the shares of its datasets. None: no bounds.
    max_passes: how many times training may pass through a dataset: a number, or {name: number}. It needs the sizes of
        the datasets and the length of the training. None: any number.
    """

    bounds: Bounds | None = None
    max_passes: float | Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        for name, (low, high) in (self.bounds or {}).items():
            if not 0 <= low <= high <= 1:
                raise ValueError(
                    f"Limits: bounds must be (low, high) with 0 <= low <= high <= 1, but {name!r} has {low, high}."
                )
        given = self.max_passes if isinstance(self.max_passes, Mapping) else {"all": self.max_passes}
        for name, passes in given.items():
            if passes is not None and not passes > 0:
                raise ValueError(f"Limits: max_passes must be positive, but {name!r} is {passes}.")

    def tracker(
        self,
        names: Sequence[str],
        groups: Mapping[str, str] | None = None,
        sizes: Mapping[str, float] | None = None,
        draws: float | None = None,
        steps: int | None = None,
    ) -> "LimitTracker":
        """Applies the limits to one training; an error if no mixture can keep them.

        names: of the datasets.
        groups: {dataset: group}; bounds may then have names of groups, too.
        sizes: {dataset: number of examples}. draws: examples that the whole training draws. steps: its optimizer steps.
            `max_passes` needs all three.
        """
        check_bounds("Limits: bounds", tuple(names), self.bounds or {}, groups)
        if self.max_passes is None:
            return LimitTracker(names, self.bounds or {}, groups or {}, {}, 0.0, 0)
        given = {"sizes": sizes, "draws": draws, "steps": steps}
        missing = [word for word, value in given.items() if value is None]
        if missing or sizes is None or draws is None or steps is None:
            raise ValueError(f"Limits: max_passes needs sizes, draws and steps, but there are no {', '.join(missing)}.")
        by_name = self.max_passes if isinstance(self.max_passes, Mapping) else dict.fromkeys(names, self.max_passes)
        check_names("Limits: max_passes", names, [*names, *by_name])
        most_draws = {name: passes * sizes[name] for name, passes in by_name.items()}
        return LimitTracker(names, self.bounds or {}, groups or {}, most_draws, draws / steps, steps)


class LimitTracker:
    """The limits of one training, and the draws that its mixtures have made so far."""

    def __init__(
        self,
        names: Sequence[str],
        bounds: Bounds,
        groups: Mapping[str, str],
        most_draws: Mapping[str, float],
        draws_per_step: float,
        steps: int,
    ) -> None:
        """most_draws: {dataset: draws that its passes allow}, without those that have no such limit."""
        datasets = set(names)
        self._bounds = {name: bound for name, bound in bounds.items() if name in datasets}
        self._of_groups = {name: bound for name, bound in bounds.items() if name not in datasets}
        self._groups, self._most_draws = groups, most_draws
        self._draws_per_step, self._steps = draws_per_step, steps
        self._shares = dict.fromkeys(names, 0.0) if most_draws else {}  # the sum of each probability over the steps
        self._counted = 0  # the last step in it

    def count(self, step: int, mixture: Mixture) -> None:
        """Counts the draws of a step, which this mixture made: once, however often it is called."""
        if self._most_draws and step > self._counted:
            self._counted = step
            for name, p in mixture.probabilities.items():
                self._shares[name] += p

    def applied(self, probabilities: Mapping[str, float], step: int) -> dict[str, float]:
        """The probabilities within the limits, for the steps after this one."""
        bounds = dict(self._bounds)
        if self._most_draws:
            drawn = {name: share * self._draws_per_step for name, share in self._shares.items()}
            left = passes_left(self._most_draws, drawn, (self._steps - step) * self._draws_per_step)
            for name, most in left.items():
                low, high = bounds.get(name, (0.0, 1.0))
                bounds[name] = (min(low, most), min(high, most))
        if self._of_groups:
            return within_groups(probabilities, bounds, self._groups, self._of_groups)
        return within(probabilities, bounds) if bounds else dict(probabilities)

    def state_dict(self) -> dict[str, Any]:
        return {"shares": dict(self._shares), "counted": self._counted}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_keys("Limits", state, "shares", "counted")
        if self._most_draws:
            check_names("Limits: state", self._shares, state["shares"])
            self._shares, self._counted = dict(state["shares"]), state["counted"]


def within_groups(
    probabilities: Mapping[str, float], bounds: Bounds, groups: Mapping[str, str], of_groups: Bounds
) -> dict[str, float]:
    """The probabilities, each within its bounds and the sum of each group within those of the group.

    First the groups: their shares are scaled by one common factor where their bounds, and those of their datasets,
    allow; then the datasets of each, within its share. Datasets without a group with bounds are one group.
    """
    members: dict[str | None, dict[str, float]] = {}
    for name, p in probabilities.items():
        group = groups.get(name)
        members.setdefault(group if group in of_groups else None, {})[name] = p
    rooms: dict[str, tuple[float, float]] = {}
    for group, shares in members.items():
        low, high = (0.0, 1.0) if group is None else of_groups[group]
        room = [math.fsum(bounds.get(name, (0.0, 1.0))[side] for name in shares) for side in (0, 1)]
        most = min(high, room[1])
        rooms[group or ""] = (min(max(low, room[0]), most), most)
    totals = within({group or "": math.fsum(shares.values()) for group, shares in members.items()}, rooms)
    found: dict[str, float] = {}
    for group, shares in members.items():
        total, sum_now = totals[group or ""], math.fsum(shares.values())
        if total <= 0 or sum_now <= 0:
            found |= dict.fromkeys(shares, total / len(shares))
            continue
        relative = {
            name: (bounds[name][0] / total, min(1.0, bounds[name][1] / total)) for name in shares if name in bounds
        }
        within_one = within({name: p / sum_now for name, p in shares.items()}, relative)
        found |= {name: total * p for name, p in within_one.items()}
    return {name: found[name] for name in probabilities}


def within(probabilities: Mapping[str, float], bounds: Bounds) -> dict[str, float]:
    """The probabilities, each within its bounds, with the others scaled by one common factor.

    Where the upper bounds leave no room for a sum of 1, they are all exceeded by one common factor; where they leave
    none at all, nothing changes.
    """
    low = {name: bounds.get(name, (0.0, 1.0))[0] for name in probabilities}
    high = {name: bounds.get(name, (0.0, 1.0))[1] for name in probabilities}
    room = math.fsum(high.values())
    if room <= 1:
        return {name: value / room for name, value in high.items()} if room else dict(probabilities)

    def scaled(factor: float) -> dict[str, float]:
        return {name: min(max(factor * p, low[name]), high[name]) for name, p in probabilities.items()}

    # The sum grows with the factor, from that of the lower bounds to that of the upper ones: bisection.
    small, large = 0.0, 1.0
    while math.fsum(scaled(large).values()) < 1 and large < 1e300:
        large *= 2
    for _ in range(200):
        middle = (small + large) / 2
        if middle in (small, large):  # no number is between them
            break
        small, large = (middle, large) if math.fsum(scaled(middle).values()) < 1 else (small, middle)
    found = scaled(large)
    total = math.fsum(found.values())
    return {name: p / total for name, p in found.items()}


def check_bounds(where: str, names: tuple[str, ...], bounds: Bounds, groups: Mapping[str, str] | None = None) -> None:
    """groups: {dataset: group}; bounds may then have names of groups, too."""
    known = (*names, *sorted(set((groups or {}).values())))
    check_names(where, known, [*known, *bounds])
    datasets = set(names)
    own = {name: bound for name, bound in bounds.items() if name in datasets}
    if (total := math.fsum(low for low, _ in own.values())) > 1:
        raise ValueError(f"{where}: the lower bounds sum to {total:g}, which is more than 1.")
    if len(own) == len(names) and (total := math.fsum(high for _, high in own.values())) < 1:
        raise ValueError(f"{where}: the upper bounds sum to {total:g}, which is less than 1.")
    if len(own) < len(bounds):
        _check_groups(where, names, own, {name: b for name, b in bounds.items() if name not in own}, groups or {})


def _check_groups(
    where: str, names: tuple[str, ...], own: Bounds, of_groups: Bounds, groups: Mapping[str, str]
) -> None:
    """That some mixture is within the bounds of groups and of datasets together."""
    least = most = 0.0
    members: dict[str | None, list[str]] = {}
    for name in names:
        members.setdefault(groups.get(name) if groups.get(name) in of_groups else None, []).append(name)
    for group, inside in members.items():
        low, high = (0.0, 1.0) if group is None else of_groups[group]
        room = [math.fsum(own.get(name, (0.0, 1.0))[side] for name in inside) for side in (0, 1)]
        if room[0] > high or room[1] < low:
            raise ValueError(
                f"{where}: the group {group!r} has {low, high}, but the bounds of its datasets leave it "
                f"{room[0]:g} to {room[1]:g}."
            )
        least, most = least + max(low, room[0]), most + min(high, room[1])
    if least > 1 + 1e-9:
        raise ValueError(f"{where}: the lower bounds, groups included, sum to {least:g}, which is more than 1.")
    if most < 1 - 1e-9:
        raise ValueError(f"{where}: the upper bounds, groups included, sum to {most:g}, which is less than 1.")


def passes_left(most_draws: Mapping[str, float], drawn: Mapping[str, float], left: float) -> dict[str, float]:
    """The largest shares that keep every dataset within its draws if they hold for the `left` draws still to come."""
    if left <= 0:
        return {}
    return {name: min(1.0, max(0.0, most - drawn[name]) / left) for name, most in most_draws.items()}
