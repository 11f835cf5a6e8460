"""What the dev sets want of a model now: the direction v in which their weighted loss grows.

v is the sum of their gradients, each times its priority, averaged over looks, and balanced between parameters if that
is asked for. The rewards of single examples are slopes along it.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from ..gradients.vectors import Gradient, added, norm
from ..probes.probe_sources import ProbeSources
from ..probes.prober import Numbered, Prober
from ..rewards.dev_weights import DevWeights
from .replay_buffer import RecentDirection


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

    def __init__(
        self,
        owner: str,
        prober: Prober,
        dev: Mapping[str, Any],
        batches: int,
        direction: str,
        average: RecentDirection,
    ) -> None:
        if not dev:
            raise ValueError(f"{owner}: there must be at least one dev set.")
        if direction not in ("balanced", "gradient"):
            raise ValueError(f"{owner}: direction must be 'balanced' or 'gradient', but it is {direction!r}.")
        self._balanced, self._average = direction == "balanced", average
        self._owner, self._prober, self._names, self._batches = owner, prober, tuple(dev), batches
        self._sources = ProbeSources(owner, {"dev": dev}, prober.seed)
        self.weights = DevWeights(owner, dev)
        self.looks = 0

    def agreed(self) -> dict[str, Any]:
        """{what: value} that must be the same on every rank."""
        return {
            **self.weights.agreed(),
            "seeds, batches or numbers of updates": (self._prober.seed, self._batches, self.looks),
        }

    def look(self) -> Wanted:
        """The K gradients of the dev sets that count, each added to one vector and forgotten. Inside `invisible`."""
        batches = self._drawn()
        ranking = self.weights.ranking(partial(self._loss, batches))
        weights = self.weights.weights(ranking, self._prober.replicas)
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
        vector = self._average.averaged(vector)
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
        if not self.weights.ranks_by_probe:
            return lazily
        with self._prober.replicas.raise_on_all_ranks():
            return {name: list(batches) for name, batches in lazily.items()}

    def _loss(self, batches: Mapping[str, Iterable[Numbered]], name: str) -> float:
        return self._prober.loss(("dev", name, self.looks), batches[name], self._total)

    def state_dict(self) -> dict[str, Any]:
        return {
            "seed": self._prober.seed,
            "looks": self.looks,
            **self.weights.state_dict(),
            **self._sources.state_dict(),
        }

    def tensors(self) -> dict[str, Tensor]:
        """What of the state is not plain values."""
        return self._average.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self._sources.load_state_dict({"dev": state["dev"]}, state["seed"])
        self.weights.load_state_dict(state)
        self._average.load_state_dict(tensors, self._prober.params)
        self._prober.seed, self.looks = state["seed"], int(state["looks"])


def balanced(part: Tensor) -> Tensor:
    """One parameter's part of a direction with a root mean square of 1: no few sharp parameters drown the others."""
    length = norm([part])
    return part * (math.sqrt(part.numel()) / length) if length else part
