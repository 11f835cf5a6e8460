"""`Limits`: bounds of shares and of passes that every rule keeps."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from .._base.checks import check_names
from .._base.state import check_keys
from .mixture import Mixture

Bounds: TypeAlias = Mapping[str, tuple[float, float]]
_ANY = (0.0, 1.0)


@dataclass(frozen=True)
class Limits:
    """Limits of a mixture that every rule keeps.

    bounds: {name: (low, high)}: limits of shares. A name is that of a dataset, or of a group: then it limits the sum of
        the shares of its datasets. Default None: no bounds.
    max_passes: passes of training over a dataset, at most: a number, or {name: number}. It needs the sizes of the
        datasets and the length of the training. Default None: any number.

    >>> limits = Limits(bounds={"web": (0.0, 0.75)}, max_passes=4)
    >>> tracker = limits.tracker(["web", "books"], sizes={"web": 9000, "books": 100}, draws=1000, steps=10)
    >>> Mixture(tracker.applied({"web": 0.9, "books": 0.1}, step=0))
    Mixture(web 75%, books 25%)
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
        """Returns the limits applied to one training; an error if no mixture can keep them.

        names: of the datasets.
        groups: {dataset: group}, if bounds have names of groups.
        sizes: {dataset: number of examples}; `max_passes` needs it.
        draws: examples that the whole training draws; `max_passes` needs it.
        steps: optimizer steps of the whole training; `max_passes` needs it.
        """
        bounds, groups = self.bounds or {}, groups or {}
        _check_bounds(names, bounds, groups)
        if self.max_passes is None:
            return LimitTracker(names, bounds, groups, {}, 0.0, 0)
        given = {"sizes": sizes, "draws": draws, "steps": steps}
        missing = [word for word, value in given.items() if value is None]
        if sizes is None or draws is None or steps is None:
            raise ValueError(f"Limits: max_passes needs sizes, draws and steps, but there are no {', '.join(missing)}.")
        passes = self.max_passes if isinstance(self.max_passes, Mapping) else dict.fromkeys(names, self.max_passes)
        check_names("Limits: max_passes", names, [*names, *passes])
        most_draws = {name: most * sizes[name] for name, most in passes.items()}
        return LimitTracker(names, bounds, groups, most_draws, draws / steps, steps)


class LimitTracker:
    """The limits of one training, and the draws of each dataset so far; `Limits.tracker` makes it."""

    def __init__(
        self,
        names: Sequence[str],
        bounds: Bounds,
        groups: Mapping[str, str],
        most_draws: Mapping[str, float],
        draws_per_step: float,
        steps: int,
    ) -> None:
        datasets = set(names)
        self._bounds = {name: bound for name, bound in bounds.items() if name in datasets}
        self._group_bounds = {name: bound for name, bound in bounds.items() if name not in datasets}
        self._groups = groups
        self._most_draws = most_draws  # {dataset: draws that its passes allow}, of datasets with such a limit
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
        """Returns the probabilities within the limits, for the steps after this one."""
        bounds = dict(self._bounds)
        draws_left = (self._steps - step) * self._draws_per_step
        if self._most_draws and draws_left > 0:
            for name, most_draws in self._most_draws.items():
                drawn = self._shares[name] * self._draws_per_step
                most = min(1.0, max(0.0, most_draws - drawn) / draws_left)
                low, high = bounds.get(name, _ANY)
                bounds[name] = (min(low, most), min(high, most))
        if self._group_bounds:
            return within_groups(probabilities, bounds, self._groups, self._group_bounds)
        return within(probabilities, bounds) if bounds else dict(probabilities)

    def state_dict(self) -> dict[str, Any]:
        return {"shares": dict(self._shares), "counted": self._counted}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues with the draws that the other tracker has counted."""
        check_keys("Limits", state, "shares", "counted")
        if self._most_draws:
            check_names("Limits: state", self._shares, state["shares"])
            self._shares, self._counted = dict(state["shares"]), state["counted"]


def within(probabilities: Mapping[str, float], bounds: Bounds) -> dict[str, float]:
    """Returns the probabilities, each within its bounds, with the others scaled by one common factor.

    If the upper bounds leave no room for a sum of 1, they are all exceeded by one common factor; if they leave none at
    all, nothing changes.
    """
    low = {name: bounds.get(name, _ANY)[0] for name in probabilities}
    high = {name: bounds.get(name, _ANY)[1] for name in probabilities}
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
    shares = scaled(large)
    total = math.fsum(shares.values())
    return {name: p / total for name, p in shares.items()}


def within_groups(
    probabilities: Mapping[str, float], bounds: Bounds, groups: Mapping[str, str], group_bounds: Bounds
) -> dict[str, float]:
    """Returns the probabilities, each within its bounds, and the sum of each group within those of the group.

    First the sums of groups are scaled by one common factor, as far as their bounds and those of their datasets allow;
    then the datasets of each within its sum. Datasets of groups without bounds are one group.

    groups: {dataset: group}.
    group_bounds: {group: (low, high)}.
    """
    members = _members(probabilities, groups, group_bounds)
    sums = {group: math.fsum(probabilities[name] for name in names) for group, names in members.items()}
    rooms = {}
    for group, names in members.items():
        low, high = group_bounds.get(group, _ANY)
        least, most = _room(names, bounds)
        most = min(high, most)
        rooms[group] = (min(max(low, least), most), most)
    new_sums = within(sums, rooms)
    shares: dict[str, float] = {}
    for group, names in members.items():
        total = new_sums[group]
        if total <= 0 or sums[group] <= 0:
            shares |= dict.fromkeys(names, total / len(names))
            continue
        relative = {
            name: (bounds[name][0] / total, min(1.0, bounds[name][1] / total)) for name in names if name in bounds
        }
        parts = within({name: probabilities[name] / sums[group] for name in names}, relative)
        shares |= {name: total * p for name, p in parts.items()}
    return {name: shares[name] for name in probabilities}


def _members(names: Iterable[str], groups: Mapping[str, str], group_bounds: Bounds) -> dict[str, list[str]]:
    """Returns {group: its datasets}; those of groups without bounds are together under ""."""
    members: dict[str, list[str]] = {}
    for name in names:
        group = groups.get(name, "")
        members.setdefault(group if group in group_bounds else "", []).append(name)
    return members


def _room(names: Iterable[str], bounds: Bounds) -> tuple[float, float]:
    """Returns the sums of the lower and of the upper bounds of datasets."""
    own = [bounds.get(name, _ANY) for name in names]
    return math.fsum(low for low, _ in own), math.fsum(high for _, high in own)


def _check_bounds(names: Sequence[str], bounds: Bounds, groups: Mapping[str, str]) -> None:
    """Raises a ValueError unless some mixture is within the bounds of datasets and groups together."""
    known = (*names, *sorted(set(groups.values())))
    check_names("Limits: bounds", known, [*known, *bounds])
    datasets = set(names)
    group_bounds = {name: bound for name, bound in bounds.items() if name not in datasets}
    least = most = 0.0
    for group, inside in _members(names, groups, group_bounds).items():
        low, high = group_bounds.get(group, (0.0, math.inf))
        room = _room(inside, bounds)
        if room[0] > high or room[1] < low:
            raise ValueError(
                f"Limits: bounds: the group {group!r} has {low, high}, but those of its datasets leave it "
                f"{room[0]:g} to {room[1]:g}."
            )
        least, most = least + max(low, room[0]), most + min(high, room[1])
    if least > 1 + 1e-9:
        raise ValueError(f"Limits: bounds: the lower bounds sum to {least:g}, which is more than 1.")
    if most < 1 - 1e-9:
        raise ValueError(f"Limits: bounds: the upper bounds sum to {most:g}, which is less than 1.")
