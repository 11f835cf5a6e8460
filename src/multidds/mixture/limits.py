"""`Limits`: bounds of shares and of passes that every rule keeps."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from .._base.checks import check_names

Bounds: TypeAlias = Mapping[str, tuple[float, float]]
_ANY = (0.0, 1.0)


@dataclass(frozen=True)
class Limits:
    """Limits of a mixture that every rule keeps.

    bounds: {name: (low, high)}: limits of shares. A name is that of a dataset, or of a group: then it limits the sum of
        the shares of its datasets. Default None: no bounds.
    max_passes: passes of training over a dataset, at most: a number, or {name: number}. It needs the sizes of the
        datasets and the length of the training. Default None: any number.
    groups: {dataset: group}, for bounds on groups. Default None: there are none.

    >>> from multidds import Mixture
    >>> limits = Limits(bounds={"web": (0.0, 0.75)}, max_passes=4)
    >>> sizes = {"web": 9000, "books": 100}
    >>> Mixture(limits.applied({"web": 0.9, "books": 0.1}, sizes, drawn={"web": 0, "books": 0}, left=1000))
    Mixture(web 75%, books 25%)
    """

    bounds: Bounds | None = None
    max_passes: float | Mapping[str, float] | None = None
    groups: Mapping[str, str] | None = None

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
        for name, group in (self.groups or {}).items():
            if not isinstance(group, str) or not group:
                raise ValueError(f"Limits: groups must be {{dataset: group}}, but {name!r} is in {group!r}.")

    def check(
        self,
        names: Sequence[str],
        sizes: Mapping[str, float] | None = None,
        draws: float | None = None,
        steps: int | None = None,
    ) -> None:
        """Raises a ValueError if names are unknown, if no mixture can keep the bounds, or if a length is missing.

        names: of the datasets.
        sizes: {dataset: number of examples}; `max_passes` needs it.
        draws: examples that the whole training draws; `max_passes` needs it.
        steps: optimizer steps of the whole training; `max_passes` needs it.
        """
        groups = self.groups or {}
        check_names("Limits: groups", names, [*names, *groups])
        if clash := sorted(set(groups.values()) & set(names)):
            raise ValueError(f"Limits: the group {clash[0]!r} has the name of a dataset. Rename the group.")
        _check_bounds(names, self.bounds or {}, groups)
        if self.max_passes is None:
            return
        given = {"sizes": sizes, "draws": draws, "steps": steps}
        if missing := [word for word, value in given.items() if value is None]:
            raise ValueError(f"Limits: max_passes needs sizes, draws and steps, but there are no {', '.join(missing)}.")
        check_names("Limits: max_passes", names, [*names, *self._most_passes(names)])

    def _most_passes(self, names: Iterable[str]) -> Mapping[str, float]:
        if isinstance(self.max_passes, Mapping):
            return self.max_passes
        return {} if self.max_passes is None else dict.fromkeys(names, self.max_passes)

    def room(self, sizes: Mapping[str, float] | None, draws: float | None) -> float:
        """Returns the sum of the largest shares that `max_passes` leaves to the datasets; below 1 no mixture keeps it.

        sizes, draws: as in `check`. None: unknown, which leaves all room.
        """
        if sizes is None or draws is None:
            return math.inf
        passes = self._most_passes(sizes)
        return math.fsum(min(1.0, passes.get(name, math.inf) * size / draws) for name, size in sizes.items())

    def applied(
        self,
        probabilities: Mapping[str, float],
        sizes: Mapping[str, float] | None = None,
        drawn: Mapping[str, float] | None = None,
        left: float = 0.0,
    ) -> dict[str, float]:
        """Returns the probabilities within the limits.

        sizes: {dataset: number of examples}; `max_passes` needs it.
        drawn: {dataset: examples drawn so far}; `max_passes` needs it.
        left: draws of the training that are to come.
        """
        datasets, groups = set(probabilities), self.groups or {}
        bounds = {name: bound for name, bound in (self.bounds or {}).items() if name in datasets}
        group_bounds = {name: bound for name, bound in (self.bounds or {}).items() if name not in datasets}
        if left > 0 and sizes is not None and drawn is not None:
            for name, passes in self._most_passes(probabilities).items():
                most = min(1.0, max(0.0, passes * sizes[name] - drawn[name]) / left)
                low, high = bounds.get(name, _ANY)
                bounds[name] = (min(low, most), min(high, most))
        if group_bounds:
            return within_groups(probabilities, bounds, groups, group_bounds)
        return within(probabilities, bounds) if bounds else dict(probabilities)


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
