"""The sequence of draws as one value: which dataset stands at a position, and how often it was drawn before.

It is a function of seed, position and the mixtures that rule from given positions on, whoever reads it and when.
`Draws` is a place in it, `Order` the order in which the examples of one dataset come. When a mixture rules, who reads
ahead and what training has consumed is for `sampling`, `mixed_dataset` and the application to say.
"""

import copy
import math
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from .._base.carrying import HINT
from .._base.checks import are, by_name, check_names, check_state, is_count, is_number, is_whole
from .._base.randomness import Permutation, derive, point, points
from ..mixture.mixture import Mixture, check_mixture

_AT_ONCE = 1 << 16  # draws that are skipped in one array


class Draws:
    """A position in the endless sequence of draws from `mixture`, with the number of draws of each dataset so far.

    Equal values of `seed` give equal draws. A mixture that moves changes nothing until `rule` says from which position
    on. A reader that reads ahead keeps a `fork` for what was consumed, tells both of a new mixture, and saves the fork.

    >>> draws = Draws(Mixture({"a": 0.5, "b": 0.5}), seed=1)
    >>> draws.draw(), draws.draw(), draws.draw(), draws.draw()
    (('b', 0), ('b', 1), ('a', 0), ('a', 1))
    >>> draws.position, draws.counts
    (4, {'a': 2, 'b': 2})
    """

    def __init__(self, mixture: Mixture, seed: int = 0) -> None:
        check_mixture("Draws", mixture)
        # The object that the last rule was copied from, and its version.
        self._seen: tuple[Mixture, int] | None = (mixture, mixture.version)
        self._begin(seed, 0, dict.fromkeys(mixture.names, 0), [(0, Mixture(mixture.probabilities))])

    def _begin(self, seed: int, position: int, counts: dict[str, int], rules: list[tuple[int, Mixture]]) -> None:
        self.seed, self._key = seed, derive(seed, "draws")
        self.position = position  # draws so far
        self.counts = counts  # {name: draws so far}
        self._rules = deque(rules)  # (from position, mixture); the first one rules here
        self._until: float = -math.inf  # where the next rule begins

    def draw(self) -> tuple[str, int]:
        """The dataset at this position, and how many times it was drawn before."""
        position = self.position
        if position >= self._until:
            self._turn()
        name = self._at(point(self._key, position))
        count = self.counts[name]
        self.counts[name] = count + 1
        self.position = position + 1
        return name, count

    def draw_for(self, rank: int, world_size: int, rounds: int = 1) -> list[tuple[str, int]]:
        """Draw `rounds` times for each of the `world_size` processes, and return the draws of `rank`."""
        if rounds == world_size == 1:
            return [self.draw()]
        key, counts, drawn = self._key, self.counts, []
        mine, end = self.position + rank, self.position + rounds * world_size
        for position in range(self.position, end):
            if position >= self._until:
                self.position = position
                self._turn()
            name = self._at(point(key, position))
            count = counts[name]
            counts[name] = count + 1
            if position == mine:
                drawn.append((name, count))
                mine += world_size
        self.position = end
        return drawn

    def skip_to(self, position: int) -> None:
        """Move forward to this position without returning the draws, which costs a tenth of drawing them."""
        while self.position < position:
            if self.position >= self._until:
                self._turn()
            end = int(min(position, self._until, self.position + _AT_ONCE))
            names, edges = self._edges
            # What `Mixture.at` does, for all positions up to the end.
            places = np.searchsorted(edges[:-1], points(self._key, self.position, end) * edges[-1], "right")
            found = np.bincount(places)
            for place in np.flatnonzero(found).tolist():
                self.counts[names[place]] += int(found[place])
            self.position = end

    def _turn(self) -> None:
        """The rule of this position."""
        while len(self._rules) > 1 and self._rules[1][0] <= self.position:
            self._rules.popleft()
        mixture = self._rules[0][1]
        self._until = self._rules[1][0] if len(self._rules) > 1 else math.inf
        self._at = mixture.at
        self._edges = tuple(mixture.edges), np.array(list(mixture.edges.values()))

    def rule(self, mixture: Mixture, start: int | None = None, anyway: bool = False) -> bool:
        """Let the mixture as it is now take effect from position `start` on (default: here). False: it already does.

        It takes effect after all earlier ones: if one of them is still to come, this one waits for it. `anyway`: do so
        even if it is already in effect, so that later ones wait for this position.
        """
        if (mixture, mixture.version) == self._seen and not anyway:
            return False
        start = self.position if start is None else start
        if start < self.position:
            raise ValueError(f"Draws: no mixture can rule from position {start} on: {self.position} draws were made.")
        last, now = self._rules[-1], mixture.probabilities
        known = self._seen is None and last[1].probabilities == now  # a loaded state ends with it
        self._seen = mixture, mixture.version
        if known and not anyway:
            return False
        self._rules.append((max(start, last[0]), Mixture(now)))
        self._until = min(self._until, self._rules[-1][0])
        return True

    @property
    def waiting(self) -> int:
        """How many mixtures are waiting to take effect at later positions."""
        return sum(start > self.position for start, _ in self._rules)

    def fork(self) -> "Draws":
        """A copy at the same position; from now on the two are independent."""
        twin = copy.copy(self)
        twin.counts, twin._rules = dict(self.counts), self._rules.copy()
        return twin

    def state_dict(self) -> dict[str, Any]:
        """Numbers, strings, lists and dicts only, so it fits into JSON."""
        ruling = list(self._rules)[-1 - self.waiting :]
        # Since when the first one rules does not matter: equal places, equal states.
        rules = [[max(start, self.position), mixture.probabilities] for start, mixture in ruling]
        return {"seed": self.seed, "position": self.position, "counts": dict(self.counts), "rules": rules}

    def load_state_dict(self, state: Mapping[str, Any], changed: Mixture | None = None) -> None:
        """The next call of `rule` counts even if the mixture has not moved, unless the state ends with that mixture.

        changed: the mixture from here on, if datasets were added or left out; the others keep their counts. If none
            were, all goes on exactly, mixtures that are waiting included.
        """
        check_state("Draws", state, seed=is_whole, position=is_count, counts=by_name(is_count), rules=are(_is_rule))
        if changed is not None and set(changed.names) != state["counts"].keys():
            names = changed.names
            counts = {name: state["counts"].get(name, 0) for name in names}
            state = {**state, "counts": counts, "rules": [[state["position"], changed.probabilities]]}
            self.counts = dict.fromkeys(names, 0)
        check_names("Draws: state", self.counts, state["counts"], HINT)
        rules = [(int(start), Mixture(probabilities)) for start, probabilities in state["rules"]]
        for _, mixture in rules:
            check_names("Draws: state: rules", self.counts, mixture)
        starts = [start for start, _ in rules]
        counted = sum(state["counts"].values())
        if not rules or starts != sorted(starts) or starts[0] > state["position"] or counted > state["position"]:
            raise ValueError(
                f"Draws: the state is damaged: at position {state['position']}, {counted} draws are counted, and "
                f"mixtures rule from {starts} on."
            )
        self._begin(state["seed"], int(state["position"]), dict(state["counts"]), rules)
        self._seen = None


def _is_rule(rule: object) -> bool:
    """[from which position on, {name: probability}]."""
    pair = isinstance(rule, list | tuple) and len(rule) == 2
    return pair and is_count(rule[0]) and by_name(is_number)(rule[1])  # type: ignore[index]


class Order:
    """The order in which the examples of a dataset are drawn: `order[i]` is the index of the example after i others.

    size: how many examples the dataset has. Passes follow each other without end, each in an order of its own that
    depends on (seed, name, pass). The order is computed per example: nothing as large as the dataset is stored.
    """

    def __init__(self, seed: int, name: str, size: int) -> None:
        self._key, self._size = (seed, "order", name), size
        self._pass = -1  # the one whose permutation is at hand

    def __getitem__(self, drawn: int) -> int:
        number, place = divmod(drawn, self._size)
        if number != self._pass:
            self._permutation = Permutation(derive(*self._key, number), self._size)
            self._pass = number
        return self._permutation[place]
