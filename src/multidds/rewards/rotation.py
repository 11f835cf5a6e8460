"""Which of many sets an update looks at: in rotation, so that every one is seen regularly. Pure.

Systematic sampling: the sets lie on a line, each as long as its probability of being looked at, those of one group next
to each other; points one apart hit what is looked at. From update to update the points move on by 1/B, so that after B
updates, a turn, every set was hit that is not rarer than that; every turn has an order of its own. All of it is a
function of (seed, names, number of the update): there is nothing to save, and no order of the sets matters.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

from .._base.randomness import derive, point


@dataclass(frozen=True)
class Rotation:
    """The sets of one role, `count` of which are looked at in each update.

    role: separates the random numbers of datasets and dev sets. groups: {name: group}, those of which are looked at in
    proportion to their sizes; names that are not in it are one group.
    """

    seed: int
    role: str
    count: int
    groups: Mapping[str, str]

    def looked_at(self, weights: Mapping[str, float], update: int) -> dict[str, float]:
        """{name: how often it would be looked at in a long rotation, 0 to 1} of the sets of this update.

        weights: {name: how much it counts}: a set is looked at in proportion, those of weight 0 never. In the order of
        the names. What a set shows, divided by its probability, sums to what all sets would have shown: on average
        over the places that the points may take, exactly (Horvitz and Thompson 1952).
        """
        shares = inclusion(weights, self.count)
        if self.count >= len(shares):
            return shares
        turn, place = divmod(update, self.turn_of(len(shares)))
        line = sorted(shares, key=lambda name: self._place(turn, name))
        start = point(derive(self.seed, "rotation", self.role), turn)
        hit = hits([shares[name] for name in line], (start + place) / self.turn_of(len(shares)), self.count)
        found = {line[i] for i in hit}
        return {name: share for name, share in shares.items() if name in found}

    def turn_of(self, sets: int) -> int:
        """Updates after which every one of so many sets, that count the same, was looked at."""
        return math.ceil(sets / self.count)

    def _place(self, turn: int, name: str) -> tuple[int, int]:
        group = self.groups.get(name)
        among = 0 if group is None else derive(self.seed, "rotation", self.role, turn, "group", group)
        return among, derive(self.seed, "rotation", self.role, turn, name)


def inclusion(weights: Mapping[str, float], count: int) -> dict[str, float]:
    """{name: probability}, in proportion to the weights but at most 1, that sum to the count; of weights above 0."""
    left = {name: weight for name, weight in weights.items() if weight > 0}
    if count >= len(left):
        return dict.fromkeys(left, 1.0)
    found = dict(left)
    sure: set[str] = set()
    while True:
        total = math.fsum(weight for name, weight in left.items() if name not in sure)
        scale = (count - len(sure)) / total
        more = {name for name, weight in left.items() if name not in sure and weight * scale >= 1}
        if not more:
            return {name: 1.0 if name in sure else weight * scale for name, weight in found.items()}
        sure |= more


def hits(lengths: list[float], start: float, count: int) -> list[int]:
    """The stretches of a line, given by their lengths, on which the points start, start + 1, ... fall."""
    ends = list(accumulate(lengths))
    scale = ends[-1] / count  # 1, but for rounding
    return [bisect_right(ends, (start + i) * scale, 0, len(ends) - 1) for i in range(count)]
