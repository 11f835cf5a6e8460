"""The direction in which the weighted loss of the dev sets grows; rewards of examples are slopes along it."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..gradients.vectors import Gradient, added, norm
from ..probes.prober import Prober
from ..rewards.dev_batches import DevBatches


@dataclass(frozen=True)
class DevDirection:
    """Settings of the direction v along which rewards are measured.

    balanced: whether the part of every parameter is scaled to a root mean square of 1, so that a few sharp parameters
        do not outweigh the others. False: v is the sum of the weighted dev gradients, as in the paper.
    decay: the share of the average over earlier updates that stays at an update, at least 0 and below 1. 0: v is that
        of each update alone, as in the paper.
    eps: the distance that parameters move for the slopes, as a share of the dev loss that this changes. None: by the
        precision of the parameters, 0.0008 in float32. With bfloat16 autocast take 0.1.
    """

    balanced: bool = True
    decay: float = 0.0
    eps: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise ValueError(f"DevDirection: decay must be at least 0 and below 1, but it is {self.decay!r}.")
        if self.eps is not None and not 0 < self.eps < 1:
            raise ValueError(f"DevDirection: eps must be a share between 0 and 1, but it is {self.eps!r}.")


@dataclass(frozen=True)
class EstimatedDirection:
    """One estimate of the direction.

    vector: any positive multiple of the direction.
    length: of the vector.
    steepness: the length of the gradient of the weighted dev loss at this update.
    losses: {dev set: loss}, of those that count.
    weights: {dev set: weight}.
    trouble: None, or why nothing must be learned from it.
    """

    vector: Gradient
    length: float
    steepness: float
    losses: dict[str, float]
    weights: dict[str, float]
    trouble: str | None

    @property
    def loss(self) -> float:
        """The weighted dev loss."""
        return math.fsum(self.weights[name] * loss for name, loss in self.losses.items())


class DirectionEstimator:
    """An estimator of the direction at every update, with its average over updates.

    updates: the number of estimates so far.
    """

    def __init__(self, settings: DevDirection, dev: DevBatches, prober: Prober) -> None:
        self._settings = settings
        self._prober = prober
        self._average: Gradient | None = None  # the sum of v_u * decay^(age of update u)
        self.dev = dev
        self.updates = 0

    def estimate(self, total: int) -> EstimatedDirection:
        """Returns the direction, from `total` batches of each dev set that counts. Inside `prober.invisible()`."""
        weighting = self.dev.weights
        drawn = self.dev.draw(self.updates, total, keep=weighting.ranks_by_probe)
        ranking = weighting.ranking(drawn.loss)
        weights = weighting.weights(ranking, self._prober.replicas)
        trouble = [f"the loss of dev set {name!r}" for name, loss in ranking.items() if not math.isfinite(loss)]
        vector = None
        losses = {}
        for name in self.dev.names:
            if weights[name]:
                gradient, losses[name] = drawn.gradient(name)
                if not math.isfinite(norm(gradient)):
                    trouble.append(f"the gradient of dev set {name!r}")
                vector = added(vector, gradient, weights[name])
        assert vector is not None
        self.updates += 1
        steepness = norm(vector)
        if trouble:
            return EstimatedDirection(vector, steepness, steepness, losses, weights, f"{trouble[0]} is not finite")
        vector = self._averaged(vector)
        if self._settings.balanced:
            vector = [None if part is None else _with_unit_rms(part) for part in vector]
        length = norm(vector)
        flat = "the gradients of the dev sets sum to zero" if length == 0 or steepness == 0 else None
        return EstimatedDirection(vector, length, steepness, losses, weights, flat)

    @contextmanager
    def put_back_on_error(self) -> Iterator[None]:
        """Undoes an estimate if the block raises: sources, the number of updates, the average."""
        before = self.updates, self._average
        try:
            with self.dev.put_back_on_error():
                yield
        except BaseException:
            self.updates, self._average = before
            raise

    def _averaged(self, vector: Gradient) -> Gradient:
        """Returns the average with this vector in it, up to a factor; nothing may write to it."""
        if not self._settings.decay:
            return vector
        old = self._average or []
        self._average = added([None if part is None else part * self._settings.decay for part in old] or None, vector)
        return list(self._average)

    def state_dict(self) -> dict[str, Any]:
        """Returns plain values, and under "tensors" the average."""
        parts = enumerate(self._average or [])
        tensors = {f"direction.{place}": part.clone() for place, part in parts if part is not None}
        return {"seed": self._prober.seed, "updates": self.updates, **self.dev.state_dict(), "tensors": tensors}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a state. A state that does not fit raises an error and changes nothing."""
        params = self._prober.params
        saved = [state["tensors"].get(f"direction.{place}") for place in range(len(params))]
        if any(t is not None and t.shape != p.shape for t, p in zip(saved, params, strict=True)):
            raise ValueError("ExampleScorer: the direction of the state is of other parameters.")
        parts = [None if t is None else t.to(p.device, copy=True) for t, p in zip(saved, params, strict=True)]
        updates = int(state["updates"])
        self.dev.load_state_dict(state, state["seed"])
        self._average = None if all(part is None for part in parts) else parts
        self._prober.seed = state["seed"]
        self.updates = updates


def _with_unit_rms(part: Tensor) -> Tensor:
    """Returns one parameter's part of a vector, scaled to a root mean square of 1; zeros stay zeros."""
    length = norm([part])
    return part * (math.sqrt(part.numel()) / length) if length else part
