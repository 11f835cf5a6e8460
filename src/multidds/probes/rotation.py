"""Rotation over many sets: every update probes a part of them, by systematic sampling. Pure.

The sets lie on a line, each as long as its inclusion probability. Points one apart hit the sets of an update. From
update to update the points move on by 1/B. So after a turn of B updates every set was hit that is not rarer than that.
Every turn has an order of its own. All of it is a function of (seed, names, number of the update): there is nothing to
save, and no order of the sets matters.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate

from .._base.randomness import derive, point


def rotated(seed: int, role: str, weights: Mapping[str, float], count: int, update: int) -> dict[str, float]:
    """Returns {name: inclusion probability} of the sets of this update, in the order of the weights.

    role: separates the random numbers of datasets and dev sets.
    weights: {name: weight}: the probabilities are in proportion to them; a set of weight 0 is never probed. Values of
        the sets, divided by their probabilities, sum to the sum over all sets on average over the places of the points,
        exactly (Horvitz and Thompson 1952).
    count: number of sets.
    """
    shares = inclusion(weights, count)
    if count >= len(shares):
        return shares
    updates = turn_of(len(shares), count)
    turn, place = divmod(update, updates)
    line = sorted(shares, key=lambda name: derive(seed, "rotation", role, turn, name))
    start = point(derive(seed, "rotation", role), turn)
    chosen = {line[i] for i in hits([shares[name] for name in line], (start + place) / updates, count)}
    return {name: share for name, share in shares.items() if name in chosen}


def turn_of(sets: int, count: int) -> int:
    """Returns the number of updates after which each of `sets` sets of equal weights was probed."""
    return math.ceil(sets / count)


def inclusion(weights: Mapping[str, float], count: int) -> dict[str, float]:
    """Returns {name: probability} of the weights above 0: in proportion to them, at most 1, summing to the count."""
    left = {name: weight for name, weight in weights.items() if weight > 0}
    if count >= len(left):
        return dict.fromkeys(left, 1.0)
    sure: set[str] = set()
    while True:
        total = math.fsum(weight for name, weight in left.items() if name not in sure)
        scale = (count - len(sure)) / total
        more = {name for name, weight in left.items() if name not in sure and weight * scale >= 1}
        if not more:
            return {name: 1.0 if name in sure else weight * scale for name, weight in left.items()}
        sure |= more


def hits(lengths: list[float], start: float, count: int) -> list[int]:
    """Returns the intervals of a line, given by their lengths, that the points start, start + 1, ... hit."""
    ends = list(accumulate(lengths))
    scale = ends[-1] / count  # 1, but for rounding
    return [bisect_right(ends, (start + i) * scale, 0, len(ends) - 1) for i in range(count)]
