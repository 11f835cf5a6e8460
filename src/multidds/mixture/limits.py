"""Limits that every rule keeps: shares between bounds, and no more passes over a dataset than are allowed."""

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

from .._base.checks import by_name, check_names, check_state, is_count, is_number
from .mixture import Mixture

Bounds: TypeAlias = Mapping[str, tuple[float, float]]


class Limits:
    """The bounds of one training, and how much of each dataset it has drawn by the mixtures so far.

    bounds: {name: (low, high)}. sizes, examples, steps: {name: examples of a dataset}, and examples and optimizer steps
    of the whole training. max_passes: a number, or {name: number}.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        bounds: Bounds | None,
        sizes: Mapping[str, float] | None,
        examples: float | None,
        steps: int | None,
        max_passes: float | Mapping[str, float] | None,
        groups: Mapping[str, str] | None = None,
    ) -> None:
        """groups: {dataset: group}; bounds may then have names of groups, too."""
        self._groups = dict(groups or {})
        check_bounds("Balancer: bounds", names, bounds or {}, self._groups)
        if sizes is not None:
            check_names("Balancer: sizes", names, sizes)
        for name, number in {**(sizes or {}), "examples": 1.0 if examples is None else examples}.items():
            if not (number > 0 and math.isfinite(number)):
                raise ValueError(f"Balancer: sizes and examples must be positive, but {name!r} is {number}.")
        self._sizes, self._examples, self._steps = sizes, examples, steps
        datasets = set(names)
        self._bounds = {name: bound for name, bound in (bounds or {}).items() if name in datasets}
        self._of_groups = {name: bound for name, bound in (bounds or {}).items() if name not in datasets}
        self._max_passes: dict[str, float] = {}
        if max_passes is not None:
            if sizes is None or examples is None or steps is None:
                raise ValueError("Balancer: max_passes needs sizes, examples and steps, to count passes by.")
            given = max_passes if isinstance(max_passes, Mapping) else dict.fromkeys(names, max_passes)
            check_names("Balancer: max_passes", names, [*names, *given])
            if bad := [name for name, passes in given.items() if not passes > 0]:
                raise ValueError(f"Balancer: max_passes must be positive, but {bad[0]!r} is {given[bad[0]]}.")
            self._max_passes = dict(given)
        self._shares = dict.fromkeys(names, 0.0)  # the sum of each probability over the steps so far
        self._counted = 0  # the last step in it

    def count(self, step: int, mixture: Mixture) -> None:
        """The draws of this step were made with this mixture. Once for every step, however often it is called."""
        if self._max_passes and step > self._counted:
            self._counted = step
            for name, p in mixture.probabilities.items():
                self._shares[name] += p

    def applied(self, probabilities: Mapping[str, float], step: int) -> dict[str, float]:
        """The probabilities within the limits, for the steps behind this one."""
        bounds = dict(self._bounds)
        if self._max_passes:
            assert self._sizes is not None
            assert self._examples is not None
            assert self._steps is not None
            per_step = self._examples / self._steps
            drawn = {name: share * per_step for name, share in self._shares.items()}
            left = passes_left(self._sizes, self._max_passes, drawn, (self._steps - step) * per_step)
            for name, (_, most) in left.items():
                low, high = bounds.get(name, (0.0, 1.0))
                bounds[name] = (min(low, most), min(high, most))
        if self._of_groups:
            return within_groups(probabilities, bounds, self._groups, self._of_groups)
        return within(probabilities, bounds) if bounds else dict(probabilities)

    def state_dict(self) -> dict[str, Any]:
        return {"shares": dict(self._shares) if self._max_passes else {}, "counted": self._counted}

    def check_state(self, state: Mapping[str, Any]) -> None:
        check_state("Balancer: limits", state, shares=by_name(is_number), counted=is_count)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.check_state(state)
        self._shares = {name: float(state["shares"].get(name, 0.0)) for name in self._shares}
        self._counted = int(state["counted"])


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
    for name, (low, high) in bounds.items():
        if not 0 <= low <= high <= 1:
            raise ValueError(f"{where}: must be (low, high) with 0 <= low <= high <= 1, but {name!r} has {low, high}.")
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


def passes_left(
    sizes: Mapping[str, float], max_passes: Mapping[str, float], drawn: Mapping[str, float], left: float
) -> dict[str, tuple[float, float]]:
    """The bounds that keep every dataset within its passes if they hold for the `left` draws that are still to come."""
    if left <= 0:
        return {}
    allowed = {name: max(0.0, passes * sizes[name] - drawn[name]) for name, passes in max_passes.items()}
    return {name: (0.0, min(1.0, draws / left)) for name, draws in allowed.items()}
