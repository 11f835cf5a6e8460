"""The sequence of draws: the dataset at each position, and how many times it was drawn before.

The sequence is a function of the seed, the position and the mixtures that take effect at given positions; it does not
depend on who reads it, or when. `Draws` is a position in it, `Order` the order of the examples of one dataset.
"""

import copy
import math
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from .._base.checks import check_names
from .._base.randomness import Permutation, derive, point, points
from .._base.state import VERSION, check_keys, check_version
from ..mixture.mixture import Mixture, check_mixture

_SKIP_AT_ONCE = 1 << 16  # draws that are skipped in one array


class Draws:
    """A position in the endless sequence of draws from a mixture, with the counts of all datasets so far.

    A mixture that moves changes nothing until `use` is called. A reader that reads ahead keeps a `fork` for what was
    consumed, calls `use` on both, and saves the fork.

    mixture: probabilities of the first draws.
    seed: equal seeds give equal draws.

    >>> draws = Draws(Mixture({"a": 0.5, "b": 0.5}), seed=1)
    >>> draws.draw(), draws.draw(), draws.draw(), draws.draw()
    (('b', 0), ('b', 1), ('a', 0), ('a', 1))
    >>> draws.position, draws.counts
    (4, {'a': 2, 'b': 2})
    """

    def __init__(self, mixture: Mixture, seed: int = 0) -> None:
        check_mixture("Draws", mixture)
        # The object that the last mixture was copied from, and its version; None after loading a state.
        self._last_used: tuple[Mixture, int] | None = (mixture, mixture.version)
        self._set(seed, 0, dict.fromkeys(mixture.names, 0), [(0, Mixture(mixture.probabilities))])

    def _set(self, seed: int, position: int, counts: dict[str, int], mixtures: list[tuple[int, Mixture]]) -> None:
        self.seed, self._key = seed, derive(seed, "draws")
        self.position = position  # draws so far
        self.counts = counts  # {name: draws so far}
        self._mixtures = deque(mixtures)  # (from position, mixture); the first one is in effect here
        self._next_change: float = -math.inf  # position at which `_change_mixture` is due

    def draw(self) -> tuple[str, int]:
        """Returns the dataset at this position, and how many times it was drawn before."""
        position = self.position
        if position >= self._next_change:
            self._change_mixture()
        name = self._at(point(self._key, position))
        count = self.counts[name]
        self.counts[name] = count + 1
        self.position = position + 1
        return name, count

    def draw_for(self, rank: int, world_size: int, rounds: int = 1) -> list[tuple[str, int]]:
        """Draws `rounds` times for each of the `world_size` processes, and returns the draws of `rank`."""
        if rounds == world_size == 1:
            return [self.draw()]
        key, counts, drawn = self._key, self.counts, []
        mine, end = self.position + rank, self.position + rounds * world_size
        for position in range(self.position, end):
            if position >= self._next_change:
                self.position = position
                self._change_mixture()
            name = self._at(point(key, position))
            count = counts[name]
            counts[name] = count + 1
            if position == mine:
                drawn.append((name, count))
                mine += world_size
        self.position = end
        return drawn

    def skip_to(self, position: int) -> None:
        """Moves forward to this position without returning the draws, which costs a tenth of drawing them."""
        while self.position < position:
            if self.position >= self._next_change:
                self._change_mixture()
            end = int(min(position, self._next_change, self.position + _SKIP_AT_ONCE))
            names, edges = self._edges
            # `Mixture.at`, for all positions up to the end.
            places = np.searchsorted(edges[:-1], points(self._key, self.position, end) * edges[-1], "right")
            counts = np.bincount(places)
            for place in np.flatnonzero(counts).tolist():
                self.counts[names[place]] += int(counts[place])
            self.position = end

    def _change_mixture(self) -> None:
        while len(self._mixtures) > 1 and self._mixtures[1][0] <= self.position:
            self._mixtures.popleft()
        mixture = self._mixtures[0][1]
        self._next_change = self._mixtures[1][0] if len(self._mixtures) > 1 else math.inf
        self._at = mixture.at
        self._edges = tuple(mixture.edges), np.array(list(mixture.edges.values()))

    def use(self, mixture: Mixture, from_position: int | None = None, anyway: bool = False) -> bool:
        """Lets the mixture as it is now take effect; returns False if it already does.

        mixture: a copy of its probabilities is kept.
        from_position: the first draw that it makes; by default the next one. If an earlier mixture is still to take
            effect, this one follows it.
        anyway: add it even if it is in effect already, so that later ones follow this position.
        """
        if (mixture, mixture.version) == self._last_used and not anyway:
            return False
        start = self.position if from_position is None else from_position
        if start < self.position:
            raise ValueError(f"Draws: from_position must be at least {self.position}, but it is {start}.")
        (last_start, last), now = self._mixtures[-1], mixture.probabilities
        in_loaded_state = self._last_used is None and last.probabilities == now
        self._last_used = mixture, mixture.version
        if in_loaded_state and not anyway:
            return False
        self._mixtures.append((max(start, last_start), Mixture(now)))
        self._next_change = min(self._next_change, self._mixtures[-1][0])
        return True

    @property
    def waiting(self) -> int:
        """The number of mixtures that take effect at later positions."""
        return sum(start > self.position for start, _ in self._mixtures)

    def fork(self) -> "Draws":
        """Returns an independent copy at the same position."""
        twin = copy.copy(self)
        twin.counts, twin._mixtures = dict(self.counts), self._mixtures.copy()
        return twin

    def state_dict(self) -> dict[str, Any]:
        """Returns numbers, strings, lists and dicts only, so that it fits into JSON."""
        in_effect = list(self._mixtures)[-1 - self.waiting :]
        # The start of the first one does not matter any more: equal positions have equal states.
        mixtures = [[max(start, self.position), mixture.probabilities] for start, mixture in in_effect]
        return {
            "version": VERSION,
            "seed": self.seed,
            "position": self.position,
            "counts": dict(self.counts),
            "mixtures": mixtures,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues exactly there; the next `use` counts unless the state ends with the same probabilities."""
        check_version("Draws", state)
        check_keys("Draws", state, "seed", "position", "counts", "mixtures")
        check_names("Draws: state", self.counts, state["counts"])
        mixtures = [(start, Mixture(probabilities)) for start, probabilities in state["mixtures"]]
        self._set(state["seed"], state["position"], dict(state["counts"]), mixtures)
        self._last_used = None


class Order:
    """The order in which the examples of a dataset are drawn: `order[i]` is the index of the i-th draw.

    Passes follow each other without end, each in an order of its own that depends on (seed, name, pass). The order is
    computed per example: nothing as large as the dataset is stored.

    seed: of the draws.
    name: of the dataset.
    size: number of examples of the dataset.

    >>> order = Order(seed=1, name="a", size=4)
    >>> [order[i] for i in range(8)]
    [3, 0, 1, 2, 3, 2, 0, 1]
    """

    def __init__(self, seed: int, name: str, size: int) -> None:
        self._key, self._size = (seed, "order", name), size
        self._pass = -1  # the pass of the permutation that is kept

    def __getitem__(self, drawn: int) -> int:
        number, place = divmod(drawn, self._size)
        if number != self._pass:
            self._permutation = Permutation(derive(*self._key, number), self._size)
            self._pass = number
        return self._permutation[place]
