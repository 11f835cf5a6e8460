"""The direction in which the weighted loss of the dev sets grows; rewards of examples are slopes along it."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor

from ..gradients.vectors import Gradient, added, norm
from ..probes.probe import Probe
from ..probes.round import Round


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

    probe: takes the gradients of the dev sets.
    """

    def __init__(self, settings: DevDirection, probe: Probe) -> None:
        self._settings = settings
        self._probe = probe
        self._average: Gradient | None = None  # the sum of v_u * decay^(age of update u)

    def estimate(self, step: int) -> EstimatedDirection:
        """Returns the direction. Inside `Probe.open`, with which it is undone if something raises later."""
        probe = self._probe
        weights = probe.dev_weights()
        vector, steepness = probe.direction(Round(probe.rounds, step, (), weights, weights), unit=False)
        losses, trouble = probe.losses("dev"), probe.trouble()
        if trouble is not None:
            return EstimatedDirection(vector, steepness, steepness, losses, weights, trouble)
        vector = self._averaged(vector)
        if self._settings.balanced:
            vector = [None if part is None else _with_unit_rms(part) for part in vector]
        length = norm(vector)
        flat = "the gradients of the dev sets sum to zero" if length == 0 or steepness == 0 else None
        return EstimatedDirection(vector, length, steepness, losses, weights, flat)

    @contextmanager
    def put_back_on_error(self) -> Iterator[None]:
        """Puts the average back if the block raises."""
        before = self._average
        try:
            yield
        except BaseException:
            self._average = before
            raise

    def _averaged(self, vector: Gradient) -> Gradient:
        """Returns the average with this vector in it, up to a factor; nothing may write to it."""
        if not self._settings.decay:
            return vector
        old = self._average or []
        self._average = added([None if part is None else part * self._settings.decay for part in old] or None, vector)
        return list(self._average)

    def tensors(self) -> dict[str, Tensor]:
        """Returns the average, {"direction.3": copy} by the place of the parameter."""
        parts = enumerate(self._average or [])
        return {f"direction.{place}": part.clone() for place, part in parts if part is not None}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Continues with the average of a state. One that does not fit raises an error and changes nothing."""
        params = self._probe.model.params
        saved = [tensors.get(f"direction.{place}") for place in range(len(params))]
        if any(t is not None and t.shape != p.shape for t, p in zip(saved, params, strict=True)):
            raise ValueError("ExampleScorer: the direction of the state is of other parameters.")
        parts = [None if t is None else t.to(p.device, copy=True) for t, p in zip(saved, params, strict=True)]
        self._average = None if all(part is None for part in parts) else parts


def _with_unit_rms(part: Tensor) -> Tensor:
    """Returns one parameter's part of a vector, scaled to a root mean square of 1; zeros stay zeros."""
    length = norm([part])
    return part * (math.sqrt(part.numel()) / length) if length else part
