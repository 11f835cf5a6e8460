"""Rotation over many sets: every update probes a part of them, by systematic sampling. Pure.

The sets lie on a line, each as long as its inclusion probability, those of one group next to each other; points one
apart hit the sets of an update. From update to update the points move on by 1/B, so that after B updates, a turn, every
set was hit that is not rarer than that; every turn has an order of its own. All of it is a function of (seed, names,
number of the update): there is nothing to save, and no order of the sets matters.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

from .._base.randomness import derive, point


@dataclass(frozen=True)
class Rotation:
    """The sets of one role, `count` of which are probed in each update.

    role: separates the random numbers of datasets and dev sets. groups: {name: group}, which are probed in proportion
    to their sizes; names that are not in it are one group.
    """

    seed: int
    role: str
    count: int
    groups: Mapping[str, str]

    def sets_of(self, weights: Mapping[str, float], update: int) -> dict[str, float]:
        """Returns {name: inclusion probability} of the sets of this update, in the order of the weights.

        weights: {name: weight}: the probabilities are in proportion to them; a set of weight 0 is never probed. Values
        of the sets, divided by their probabilities, sum to the sum over all sets on average over the places of the
        points, exactly (Horvitz and Thompson 1952).
        """
        shares = inclusion(weights, self.count)
        if self.count >= len(shares):
            return shares
        turn, place = divmod(update, self.turn_of(len(shares)))
        line = sorted(shares, key=lambda name: self._place(turn, name))
        start = point(derive(self.seed, "rotation", self.role), turn)
        hit = hits([shares[name] for name in line], (start + place) / self.turn_of(len(shares)), self.count)
        chosen = {line[i] for i in hit}
        return {name: share for name, share in shares.items() if name in chosen}

    def turn_of(self, sets: int) -> int:
        """Returns the updates after which each of so many sets of equal weights was probed."""
        return math.ceil(sets / self.count)

    def _place(self, turn: int, name: str) -> tuple[int, int]:
        group = self.groups.get(name)
        among = 0 if group is None else derive(self.seed, "rotation", self.role, turn, "group", group)
        return among, derive(self.seed, "rotation", self.role, turn, name)


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
