"""Limits that every rule keeps: shares between bounds, and no more passes over a dataset than are allowed. Pure."""

import math
from collections.abc import Mapping

from .checks import check_names

Bounds = Mapping[str, tuple[float, float]]


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
        small, large = (middle, large) if math.fsum(scaled(middle).values()) < 1 else (small, middle)
    found = scaled(large)
    total = math.fsum(found.values())
    return {name: p / total for name, p in found.items()}


def check_bounds(where: str, names: tuple[str, ...], bounds: Bounds) -> None:
    check_names(where, names, [*names, *bounds])
    for name, (low, high) in bounds.items():
        if not 0 <= low <= high <= 1:
            raise ValueError(f"{where}: must be (low, high) with 0 <= low <= high <= 1, but {name!r} has {low, high}.")
    if (total := math.fsum(low for low, _ in bounds.values())) > 1:
        raise ValueError(f"{where}: the lower bounds sum to {total:g}, which is more than 1.")
    if len(bounds) == len(names) and (total := math.fsum(high for _, high in bounds.values())) < 1:
        raise ValueError(f"{where}: the upper bounds sum to {total:g}, which is less than 1.")


def passes_left(
    sizes: Mapping[str, float], max_passes: Mapping[str, float], drawn: Mapping[str, float], left: float
) -> dict[str, tuple[float, float]]:
    """The bounds that keep every dataset within its passes if they hold for the `left` draws that are still to come."""
    if left <= 0:
        return {}
    return {
        name: (0.0, min(1.0, max(0.0, passes * sizes[name] - drawn[name]) / left))
        for name, passes in max_passes.items()
    }
