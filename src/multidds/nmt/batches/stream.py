"""The training batches of a run: an endless sequence of steps that follows the mixture.

Batches are cut from a pool of draws sorted by length. A pool is made for a given number of steps, which never reaches
past the next update of the mixture, so that every batch is drawn with the mixture of its moment.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from multidds import Mixture
from multidds._base.errors import UserError
from multidds.sampling import Draws

from .batch import Batch, assemble, cut
from .pair_selection import Chances, Selection
from .sentences import Item, Sentences

_SHELF = 20  # batches of a shelf, or one pass if that is less

LeftOut = Mapping[str, list[int]]  # {language pair: places in its order}


class Stream:
    """The training batches of one run: an endless sequence of steps, each a list of batches.

    All ranks draw the same pool and divide the sentences of each step, so that a step is the same for any number of
    processes: rank r of W takes every W-th batch; if their number is no multiple of W, they are cut anew.

    data: the training sets, by language pair.
    mixture: its present probabilities are used whenever a pool is filled.
    tokens: of a step, over all ranks.
    accumulate: batches of a step, over all ranks.
    pool: steps of a pool, at most.
    mixing: "example": a language pair per sentence (Algorithm 1); "batch": per batch (section 2 of the paper).
    seed: of the run.
    rank, world_size: of the processes.
    chances: returns the probabilities of sentence pairs to be trained on when drawn; None: all are.
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
        self._accumulate, self._pool, self._seed = accumulate, pool, seed
        self._rank, self._world_size = rank, world_size
        self._sizes = {name: len(sentences) for name, sentences in data.items()}
        draw = _MixedBatches if mixing == "example" else _UnmixedBatches
        self._draw: _MixedBatches | _UnmixedBatches = draw(data, mixture, tokens / accumulate, seed, chances)
        self._steps: list[list[list[Item]]] = []  # of the pool: [step][batch][sentence]
        self._taken = 0
        self._before = self._draw.state_dict()

    def next(self, steps_left: int) -> tuple[list[Batch], int, int]:
        """Returns the next step: (batches of this rank, sentences of all ranks, target tokens of all ranks).

        steps_left: steps until the mixture may change, this one included.
        """
        if self._taken == len(self._steps):
            pools = -(-steps_left // self._pool)  # of about equal size: a short one would be mostly padding
            self._fill(-(-steps_left // pools))
        step = self._steps[self._taken]
        self._taken += 1
        sentences = sum(len(items) for items in step)
        tokens = sum(s.sizes(i)[1] for items in step for s, i in items)
        return [assemble(items) for items in self._divided(step)[self._rank :: self._world_size]], sentences, tokens

    def _divided(self, step: list[list[Item]]) -> list[list[Item]]:
        """Returns the sentences of a step in batches, equally many for every rank."""
        ranks = self._world_size
        if len(step) % ranks == 0:
            return step
        items = [item for batch in step for item in batch]
        if len(items) < ranks:
            raise UserError(
                f"[train] tokens: a step has {len(items)} sentence pairs, which {ranks} processes cannot share. Raise "
                "tokens, or start fewer processes."
            )
        return cut(items, min(-(-len(step) // ranks), len(items) // ranks) * ranks)

    @property
    def passes(self) -> dict[str, float]:
        """Passes over each language pair by the steps taken so far."""
        counts = Counter(self._before["examples"])
        counts.update(s.name for step in self._steps[: self._taken] for items in step for s, _ in items)
        return {name: counts[name] / size for name, size in self._sizes.items()}

    def state_dict(self) -> dict[str, Any]:
        """Returns the draws before the pool, its length in steps, and the steps taken from it."""
        if self._taken == len(self._steps):  # used up: the mixture may have moved since it was drawn
            return {"before": self._draw.state_dict(), "steps": 0, "taken": 0, "left_out": {}}
        left_out = self._draw.left_out
        return {"before": self._before, "steps": len(self._steps), "taken": self._taken, "left_out": left_out}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues exactly there."""
        self._draw.load_state_dict(state["before"])
        self._steps, self._taken, self._before = [], 0, self._draw.state_dict()
        if state["steps"]:  # the same draws: the mixture does not move inside a pool
            self._fill(state["steps"], state["left_out"])
            self._taken = state["taken"]

    def _fill(self, steps: int, left_out: LeftOut | None = None) -> None:
        self._before = self._draw.state_dict()
        drawn = self._draw.batches(steps * self._accumulate, left_out)
        batches = _shuffled(drawn, self._seed, sum(self._before["examples"].values()))
        self._steps = [batches[i : i + self._accumulate] for i in range(0, len(batches), self._accumulate)]
        self._taken = 0


class _MixedBatches:
    """Batches with a language pair per sentence."""

    def __init__(
        self, data: Mapping[str, Sentences], mixture: Mixture, tokens: float, seed: int, chances: Chances | None
    ) -> None:
        self._data, self._mixture, self._tokens = data, mixture, tokens
        self._draws = Draws(mixture, seed)
        self._selections = {name: Selection(sentences, chances, seed) for name, sentences in data.items()}

    def batches(self, number: int, left_out: LeftOut | None = None) -> list[list[Item]]:
        """Draws batches. left_out: if they were drawn before, the places left out then."""
        self._draws.use(self._mixture)
        for name, selection in self._selections.items():
            selection.begin(selection.place, None if left_out is None else left_out.get(name, ()))
        return cut(_until(self._items(), number * self._tokens, number), number)

    def _items(self) -> Iterator[Item]:
        while True:
            name, _ = self._draws.draw()
            yield self._data[name], self._selections[name].next()

    @property
    def left_out(self) -> dict[str, list[int]]:
        return {name: selection.left_out for name, selection in self._selections.items() if selection.left_out}

    def state_dict(self) -> dict[str, Any]:
        places = {name: selection.place for name, selection in self._selections.items()}
        return {"examples": dict(self._draws.counts), "draws": self._draws.state_dict(), "places": places}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._draws.load_state_dict(state["draws"])
        for name, selection in self._selections.items():
            selection.begin(state["places"][name])


class _UnmixedBatches:
    """Batches of one language pair each."""

    def __init__(
        self, data: Mapping[str, Sentences], mixture: Mixture, tokens: float, seed: int, chances: Chances | None
    ) -> None:
        self._mixture, self._draws = mixture, Draws(mixture, seed)  # of batches
        self._shelves = {name: _Shelf(sentences, tokens, seed, chances) for name, sentences in data.items()}

    def batches(self, number: int, left_out: LeftOut | None = None) -> list[list[Item]]:
        """Draws batches. left_out: if they were drawn before, the places left out then."""
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

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._draws.load_state_dict(state["draws"])
        for name, shelf in self._shelves.items():
            shelf.load_state_dict(state["shelves"][name])


class _Shelf:
    """Batches of one language pair, cut ahead of time: its own order does not depend on the mixture."""

    def __init__(self, sentences: Sentences, tokens: float, seed: int, chances: Chances | None) -> None:
        self._sentences, self._tokens, self._seed = sentences, tokens, seed
        self._selection = Selection(sentences, chances, seed)
        self._count = max(1, min(_SHELF, int(sentences.all_tokens / tokens)))
        self._before = 0  # the place before these batches
        self._batches: list[list[Item]] = []
        self._gaps: list[int] = []  # places that were left out of these batches
        self._taken = 0
        self.examples = 0

    def begin(self, left_out: list[int] | None) -> None:
        """Begins another pool. left_out: if it was drawn before, the places left out then."""
        self._selection.begin(self._selection.place, left_out)

    @property
    def left_out(self) -> list[int]:
        """The places left out since the pool began."""
        return self._selection.left_out

    def next(self) -> list[Item]:
        if self._taken == len(self._batches):
            self._fill()
        batch = self._batches[self._taken]
        self._taken += 1
        self.examples += len(batch)
        return batch

    def _fill(self) -> None:
        self._before = self._selection.place
        drawn = _until(self._items(), self._count * self._tokens, self._count)
        self._gaps = [place for place in self.left_out if place >= self._before]
        self._batches, self._taken = _shuffled(cut(drawn, self._count), self._seed, self._before), 0

    def _items(self) -> Iterator[Item]:
        while True:
            yield self._sentences, self._selection.next()

    def state_dict(self) -> dict[str, Any]:
        taken = self._taken if self._batches else None
        return {"before": self._before, "taken": taken, "examples": self.examples, "left_out": self._gaps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._selection.begin(state["before"], state["left_out"])
        self._before, self._batches, self._gaps, self._taken = state["before"], [], [], 0
        if state["taken"] is not None:
            self._fill()
            self._taken = state["taken"]
        self.examples = state["examples"]


def _until(items: Iterator[Item], tokens: float, least: int) -> list[Item]:
    """Returns sentences until they have so many tokens, and at least `least` of them."""
    taken: list[Item] = []
    total = 0
    while total < tokens or len(taken) < least:
        taken.append(next(items))
        sentences, i = taken[-1]
        total += max(sentences.sizes(i))
    return taken


def _shuffled(batches: list[list[Item]], seed: int, position: int) -> list[list[Item]]:
    return [batches[i] for i in np.random.default_rng([seed, position]).permutation(len(batches))]
