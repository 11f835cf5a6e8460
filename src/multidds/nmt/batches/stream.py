"""The training batches of a run: an endless sequence of steps that follows the mixture.

Batches are cut from a pool of draws sorted by length. A pool is made for a given number of steps, which never reaches
past the next update of the mixture, so every batch is drawn with the mixture of its moment.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import Any

import numpy as np

from multidds import Mixture
from multidds.sampling import Draws, Order

from ..common.errors import UserError
from .batch import Batch, assemble, cut
from .pair_selection import Chances, Selection, Selections
from .sentences import Item, Sentences


class Stream:
    """The training batches of one run: an endless sequence of steps, each a list of batches.

    All ranks draw the same pool and share the sentences of each of its steps, so that a step is the same for any number
    of processes: rank r of W takes every W-th batch; where their number does not go up, they are cut anew.
    """

    def __init__(
        self,
        data: Mapping[str, Sentences],
        mixture: Mixture,
        *,
        tokens: int,
        accumulate: int,
        pool: int,
        mixing: str,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        chances: Chances | None = None,
    ) -> None:
        """chances: of sentence pairs, to be trained on when their turn comes; None: all are."""
        self._accumulate, self._pool, self._seed = accumulate, pool, seed
        self._rank, self._world_size = rank, world_size
        self._sizes = {name: len(sentences) for name, sentences in data.items()}
        draw = _MixedBatches if mixing == "example" else _UnmixedBatches
        self._draw: _MixedBatches | _UnmixedBatches = draw(dict(data), mixture, tokens / accumulate, seed, chances)
        self._steps: list[list[list[Item]]] = []  # of the pool: [step][batch][sentence]
        self._taken = 0
        self._before = self._draw.state_dict()

    def next(self, steps_left: int) -> tuple[list[Batch], int, int]:
        """(batches of this rank, sentences and target tokens of all ranks) of the next step.

        `steps_left`: how many steps, this one included, may still be drawn with the mixture of this moment.
        """
        if self._taken == len(self._steps):
            pools = -(-steps_left // self._pool)  # as equal as can be: a stub would be mostly padding
            self._fill(-(-steps_left // pools))
        step = self._steps[self._taken]
        self._taken += 1
        sentences = sum(len(items) for items in step)
        tokens = sum(s.sizes(i)[1] for items in step for s, i in items)
        return [assemble(items) for items in self._shares(step)[self._rank :: self._world_size]], sentences, tokens

    def _shares(self, step: list[list[Item]]) -> list[list[Item]]:
        """The sentences of a step in batches of which every rank gets as many."""
        among = self._world_size
        if len(step) % among == 0:
            return step
        items = [item for batch in step for item in batch]
        if len(items) < among:
            raise UserError(
                f"[train] tokens: a step has {len(items)} sentence pairs, which {among} processes cannot share. Raise "
                "tokens, or start fewer processes."
            )
        return cut(items, min(-(-len(step) // among), len(items) // among) * among)

    @property
    def passes(self) -> dict[str, float]:
        """How often each language pair has been gone through by the steps taken so far."""
        counts = Counter(self._before["examples"])
        counts.update(s.name for step in self._steps[: self._taken] for items in step for s, _ in items)
        return {name: counts[name] / size for name, size in self._sizes.items()}

    def state_dict(self) -> dict[str, Any]:
        """The draws as they were before the pool, its length in steps, and the steps taken from it."""
        if self._taken == len(self._steps):  # used up: the mixture may have moved since it was drawn
            return {"before": self._draw.state_dict(), "steps": 0, "taken": 0}
        left_out = self._draw.left_out
        return {"before": self._before, "steps": len(self._steps), "taken": self._taken, "left_out": left_out}

    def load_state_dict(self, state: Mapping[str, Any], changed: bool = False) -> None:
        """Go on exactly there. changed: with other data, from where the pool began: it cannot be drawn again, and some
        of its sentences are seen twice.
        """
        self._draw.load_state_dict(state["before"], changed)
        self._steps, self._taken, self._before = [], 0, self._draw.state_dict()
        if state["steps"] and not changed:
            # The same draws: no update of the mixture comes inside a pool, and what was left out is known.
            self._fill(int(state["steps"]), state.get("left_out"))
            self._taken = int(state["taken"])

    def _fill(self, steps: int, left_out: Mapping[str, list[int]] | None = None) -> None:
        self._before = self._draw.state_dict()
        count = steps * self._accumulate
        drawn = self._draw.batches(count, left_out)
        batches = _shuffled(drawn, self._seed, sum(self._before["examples"].values()))
        self._steps = [batches[i * self._accumulate : (i + 1) * self._accumulate] for i in range(steps)]
        self._taken = 0


class _MixedBatches:
    """A language pair per sentence: Algorithm 1."""

    def __init__(
        self, data: dict[str, Sentences], mixture: Mixture, tokens: float, seed: int, chances: Chances | None
    ) -> None:
        self._data, self._mixture, self._tokens = data, mixture, tokens
        self._draws = Draws(mixture, seed)
        self._orders = {name: Order(seed, name, len(sentences)) for name, sentences in data.items()}
        self._selections = None if chances is None else Selections(data, chances, seed)

    def batches(self, number: int, left_out: Mapping[str, list[int]] | None = None) -> list[list[Item]]:
        """left_out: of the same draws, when they were made before."""
        self._draws.use(self._mixture)
        if self._selections is not None:
            self._selections.begin(left_out)
        return cut(_drawn(self._items(), number * self._tokens, number), number)

    def _items(self) -> Iterator[Item]:
        while True:
            name, drawn = self._draws.draw()
            chosen = self._orders[name][drawn] if self._selections is None else self._selections[name].next()
            yield self._data[name], chosen

    @property
    def left_out(self) -> dict[str, list[int]]:
        return {} if self._selections is None else self._selections.left_out

    def state_dict(self) -> dict[str, Any]:
        places = {} if self._selections is None else {"places": self._selections.places}
        return {"examples": dict(self._draws.counts), "draws": self._draws.state_dict(), **places}

    def load_state_dict(self, state: Mapping[str, Any], changed: bool) -> None:
        self._draws.load_state_dict(state["draws"])
        if self._selections is not None:
            self._selections.move(state["places"])


class _UnmixedBatches:
    """A language pair per batch: section 2 of the paper."""

    def __init__(
        self, data: dict[str, Sentences], mixture: Mixture, tokens: float, seed: int, chances: Chances | None
    ) -> None:
        self._mixture, self._draws = mixture, Draws(mixture, seed)  # of batches
        self._shelves = {name: _Shelf(sentences, tokens, seed, chances) for name, sentences in data.items()}

    def batches(self, number: int, left_out: Mapping[str, list[int]] | None = None) -> list[list[Item]]:
        """left_out: of the same draws, when they were made before."""
        self._draws.use(self._mixture)
        for name, shelf in self._shelves.items():
            shelf.begin(None if left_out is None else left_out.get(name, []))
        return [self._shelves[self._draws.draw()[0]].next() for _ in range(number)]

    @property
    def left_out(self) -> dict[str, list[int]]:
        return {name: shelf.left_out for name, shelf in self._shelves.items() if shelf.left_out}

    def state_dict(self) -> dict[str, Any]:
        return {
            "examples": {name: shelf.examples for name, shelf in self._shelves.items()},
            "draws": self._draws.state_dict(),
            "shelves": {name: shelf.state_dict() for name, shelf in self._shelves.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any], changed: bool) -> None:
        self._draws.load_state_dict(state["draws"])
        shelves = state["shelves"]
        for name, shelf in self._shelves.items():
            if name in shelves or not changed:
                shelf.load_state_dict(shelves[name], changed)


class _Shelf:
    """Batches of one language pair, cut ahead of time: its own order does not depend on the mixture."""

    _AHEAD = 20  # batches, or one pass where that is less

    def __init__(self, sentences: Sentences, tokens: float, seed: int, chances: Chances | None) -> None:
        self._sentences, self._tokens, self._seed = sentences, tokens, seed
        self._selection = None if chances is None else Selection(sentences, chances, seed)
        self._count = max(1, min(self._AHEAD, int(sentences.all_tokens / tokens)))
        self._order = Order(seed, sentences.name, len(sentences))
        self._before = self._drawn = 0  # sentences, before these batches and with them
        self._batches: list[list[Item]] = []
        self._gaps: list[int] = []  # places that were left out of these batches
        self._taken = 0
        self.examples = 0

    def begin(self, left_out: list[int] | None) -> None:
        """Another pool. left_out: of its draws, where they were made before."""
        if self._selection is not None:
            self._selection.begin(self._drawn, left_out)

    @property
    def left_out(self) -> list[int]:
        """Since the pool began."""
        return [] if self._selection is None else self._selection.left_out

    def next(self) -> list[Item]:
        if self._taken == len(self._batches):
            self._fill()
        batch = self._batches[self._taken]
        self._taken += 1
        self.examples += len(batch)
        return batch

    def _fill(self) -> None:
        drawn = _drawn(self._items(), self._count * self._tokens, self._count)
        self._before = self._drawn
        self._drawn = self._drawn + len(drawn) if self._selection is None else self._selection.place
        self._gaps = [place for place in self.left_out if place >= self._before]
        self._batches, self._taken = _shuffled(cut(drawn, self._count), self._seed, self._before), 0

    def _items(self) -> Iterator[Item]:
        for i in count(self._drawn):
            yield self._sentences, self._order[i] if self._selection is None else self._selection.next()

    def state_dict(self) -> dict[str, Any]:
        gaps = {} if self._selection is None else {"left_out": self._gaps}
        taken = self._taken if self._batches else None
        return {"before": self._before, "taken": taken, "examples": self.examples, **gaps}

    def load_state_dict(self, state: Mapping[str, Any], changed: bool) -> None:
        self._before = self._drawn = int(state["before"])
        self._batches, self._gaps, self._taken = [], [], 0
        self.begin(state.get("left_out"))
        if state["taken"] is not None and not changed:
            self._fill()
            self._taken = int(state["taken"])
        self.examples = int(state["examples"])


def _drawn(items: Iterable[Item], tokens: float, least: int) -> list[Item]:
    """Sentences until there are so many tokens, and at least `least`."""
    taken: list[Item] = []
    total = 0
    for sentences, i in items:
        taken.append((sentences, i))
        total += max(sentences.sizes(i))
        if total >= tokens and len(taken) >= least:
            break
    return taken


def _shuffled(batches: list[list[Item]], seed: int, position: int) -> list[list[Item]]:
    return [batches[i] for i in np.random.default_rng([seed, position]).permutation(len(batches))]
