"""What the dev sets want of a model now: the direction v in which their weighted loss grows.

v is the sum of their gradients, each times its priority, and balanced between parameters if that is asked for. The
rewards of single examples are slopes along it.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from . import priorities
from .checks import check_names
from .gradients import Gradient, added, norm
from .probing import Numbered, Prober
from .sources import ProbeSources


@dataclass(frozen=True)
class Wanted:
    """One look at the dev sets."""

    vector: Gradient  # any multiple of the direction
    length: float  # of the vector
    steepness: float  # of the dev loss: the length of its gradient now
    losses: dict[str, float]  # of the dev sets that count
    weights: dict[str, float]
    trouble: str | None  # why nothing must be learned from it

    @property
    def loss(self) -> float:
        return math.fsum(self.weights[name] * loss for name, loss in self.losses.items())


class DevSets:
    """Named sources of dev batches, their priority, and how often they were looked at."""

    def __init__(self, owner: str, prober: Prober, dev: Mapping[str, Any], batches: int, direction: str) -> None:
        if not dev:
            raise ValueError(f"{owner}: there must be at least one dev set.")
        if direction not in ("balanced", "gradient"):
            raise ValueError(f"{owner}: direction must be 'balanced' or 'gradient', but it is {direction!r}.")
        self._balanced = direction == "balanced"
        self._owner, self._prober, self._names, self._batches = owner, prober, tuple(dev), batches
        self._sources = ProbeSources(owner, {"dev": dev}, prober.seed)
        self._priority: priorities.Priority = "regular"
        self._losses: dict[str, float] | None = None
        self.looks = 0

    @property
    def priority(self) -> priorities.Priority:
        return self._priority

    @priority.setter
    def priority(self, priority: priorities.Priority) -> None:
        priorities.check(priority, self._names)
        self._priority = dict(priority) if isinstance(priority, Mapping) else priority

    @property
    def losses(self) -> dict[str, float] | None:
        """Of the last full validation, by which priorities rank; None: by a pass over the batches of each look."""
        return self._losses

    @losses.setter
    def losses(self, losses: Mapping[str, float] | None) -> None:
        if losses is not None:
            check_names(f"{self._owner}.dev_losses", self._names, losses)
            if bad := [name for name in losses if not math.isfinite(losses[name])]:
                raise ValueError(
                    f"{self._owner}.dev_losses: losses must be finite, but {bad[0]!r} is {losses[bad[0]]}."
                )
        self._losses = None if losses is None else {name: float(losses[name]) for name in self._names}

    def agreed(self) -> dict[str, Any]:
        """{what: value} that must be the same on every rank."""
        return {
            "dev sets, or another order of them": self._names,
            "priorities": "a function" if callable(self._priority) else self._priority,
            "dev_losses (set them on every rank)": self._losses,
            "seeds, batches or numbers of updates": (self._prober.seed, self._batches, self.looks),
        }

    def look(self) -> Wanted:
        """The K gradients of the dev sets that count, each added to one vector and forgotten. Inside `invisible`."""
        batches = self._drawn()
        ranking = self._ranking(batches)
        weights = self._weights(ranking)
        trouble = [f"the loss of dev set {name!r}" for name, loss in ranking.items() if not math.isfinite(loss)]
        vector, losses = None, {}
        for name in (name for name in self._names if weights[name]):
            gradient, losses[name] = self._prober.gradient(("dev", name, self.looks), batches[name], self._total)
            if not math.isfinite(norm(gradient)):
                trouble.append(f"the gradient of dev set {name!r}")
            vector = added(vector, gradient, weights[name])
        assert vector is not None
        self.looks += 1
        steepness = norm(vector)
        if trouble:
            return Wanted(vector, steepness, steepness, losses, weights, f"{trouble[0]} is not finite")
        if self._balanced:
            vector = [None if v is None else balanced(v) for v in vector]
        length = norm(vector)
        flat = "the gradients of the dev sets sum to zero" if length == 0 or steepness == 0 else None
        return Wanted(vector, length, steepness, losses, weights, flat)

    @property
    def _total(self) -> int:
        """Batches of a dev set, over all replicas."""
        return self._batches * self._prober.replicas.size

    def _drawn(self) -> dict[str, Iterable[Numbered]]:
        """One dev set at a time, or kept where a ranking needs them twice."""
        numbers = self._prober.numbers(self._total)
        lazily: dict[str, Iterable[Numbered]] = {
            name: self._sources.batches("dev", name, self.looks, numbers, self._total) for name in self._names
        }
        if not self._ranks_by_probe():
            return lazily
        with self._prober.replicas.failing_together():
            return {name: list(batches) for name, batches in lazily.items()}

    def _ranks_by_probe(self) -> bool:
        return priorities.needs_losses(self._priority) and self._losses is None

    def _ranking(self, batches: Mapping[str, Iterable[Numbered]]) -> dict[str, float]:
        if not self._ranks_by_probe():
            return self._losses or dict.fromkeys(self._names, 0.0)
        return {name: self._prober.loss(("dev", name, self.looks), batches[name], self._total) for name in self._names}

    def _weights(self, ranking: Mapping[str, float]) -> dict[str, float]:
        finite = all(map(math.isfinite, ranking.values()))  # if not, nothing will be learned
        with self._prober.replicas.failing_together():
            weights = priorities.weights_of(self._priority if finite else "regular", ranking)
        weights = self._prober.replicas.gathered(weights)[0]
        return {name: weights[name] for name in self._names}

    def state_dict(self) -> dict[str, Any]:
        return {
            "seed": self._prober.seed,
            "looks": self.looks,
            "priority": None if callable(self._priority) else self._priority,
            "dev_losses": self._losses,
            **self._sources.state_dict(),
        }

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Refuse a state that `load_state_dict` could not go on from."""
        self._sources.check_state(state)
        if state["priority"] is None and not callable(self._priority):
            raise ValueError(f"{self._owner}: the priority of the state was a function; give it at construction again.")
        if state["priority"] is not None:
            priorities.check(state["priority"], self._names)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Where the state does not fit, an error, and nothing has changed."""
        self.check_state(state)
        sources = self._sources.loaded(state, state["seed"])
        self.losses = state["dev_losses"]
        self._prober.seed, self._sources, self.looks = state["seed"], sources, int(state["looks"])
        if state["priority"] is not None:
            self.priority = state["priority"]


def balanced(part: Tensor) -> Tensor:
    """One parameter's part of a direction with a root mean square of 1: no few sharp parameters drown the others."""
    length = norm([part])
    return part * (math.sqrt(part.numel()) / length) if length else part
