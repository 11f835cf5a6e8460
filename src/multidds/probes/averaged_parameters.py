"""A running average of a model's parameters, at which probes are taken.

At the parameters of a single step the component that all gradients share hides their differences: rewards of two
moments ten steps apart correlate between -0.91 and 0.86, at parameters averaged over 40 steps between 0.86 and 0.98.
It takes one more parameter-sized vector, and well under 1% of a step.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from .._base.state import check_tensors, not_negative, restored
from ..gradients.vectors import Whole, wide

_log = logging.getLogger("multidds")


class AveragedParameters:
    """The average of parameters over the last steps, with exponential weights.

    params, names: the parameters.
    layout: where their elements are; of shards, shards are averaged.
    steps: their mean age.

    It begins with the first step that is added: weights that are loaded into the model before it count.
    """

    def __init__(self, params: Sequence[Tensor], names: Sequence[str], layout: Whole, steps: int) -> None:
        self._params = list(params)
        self._names = list(names)
        self._layout = layout
        self._steps = steps
        self._updates = 0
        self._last = 0  # the step that was added last
        self._averages: list[Tensor] = []  # empty before the first step

    def _local(self) -> list[Tensor]:
        """Returns what this rank holds of the parameters."""
        return [self._layout.local(p.data).data for p in self._params]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Adds the parameters of a step, once: a plain mean of the first steps, then an exponential one."""
        if step == self._last:  # an update of the mixture has raised, and is made again
            return
        self._updates += 1
        self._last = step
        if not self._averages:
            self._averages = [p.to(wide(p.dtype), copy=True) for p in self._local()]
            return
        share = max(1 / self._steps, 1 / self._updates)
        current = [
            p if p.dtype == a.dtype else p.to(a.dtype) for p, a in zip(self._local(), self._averages, strict=True)
        ]
        torch._foreach_lerp_(self._averages, current, share)

    def forget_not_finite(self) -> None:
        """Begins anew, with the next step, if an element of the averages is inf or NaN; all ranks call it together."""
        if not self._averages:
            return
        finite = torch.stack([average.isfinite().all() for average in self._averages])
        if self._layout.total((~finite).sum()):
            _log.warning("Balancer: the averaged parameters were inf or NaN, so their average begins anew.")
            self._averages, self._updates, self._last = [], 0, 0

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Puts the averages in the place of the parameters; afterwards those are what they were, bit for bit."""
        self.forget_not_finite()
        here = self._local()
        saved = [p.clone() for p in here]
        try:
            for p, average in zip(here, self._averages or here, strict=True):
                p.copy_(average)
            torch.clear_autocast_cache()
            yield
        finally:
            for p, value in zip(here, saved, strict=True):
                p.copy_(value)
            torch.clear_autocast_cache()

    def tensors(self) -> dict[str, Tensor]:
        """Returns {"averaged.PARAMETER": copy}; of a sharded model, shards.

        Of shards there are always some: distributed checkpoints are loaded into the tensors of a state.
        """
        averages = self._averages
        if self._layout.sharded and not averages:
            averages = [p.to(wide(p.dtype)) for p in self._local()]
        return {
            f"averaged.{self._names[i]}": self._layout.as_dtensor(i, average.clone())
            for i, average in enumerate(averages)
        }

    def state_dict(self) -> dict[str, int]:
        """Returns plain values; `tensors` has the rest. Averages that are not finite are forgotten before."""
        if not self._layout.sharded:  # those of shards are, at the next update: one rank alone may save
            self.forget_not_finite()
        return {"updates": self._updates, "last": self._last}

    def load_state_dict(self, state: Mapping[str, int] | None, tensors: Mapping[str, Tensor]) -> None:
        """Continues from the averages of a state. One that does not fit raises an error and changes nothing.

        state: None: the average begins anew.
        """
        where = "Balancer: the state: 'averaged'"
        counts = {"updates": 0, "last": 0}
        if state is not None:
            counts = restored(where, counts, state, dict.fromkeys(counts, not_negative))
        keys = [f"averaged.{name}" for name in self._names]
        if state is None and any(key in tensors for key in keys):
            raise ValueError(f"{where} is None, but there are averages in 'tensors'.")
        if counts["updates"] > counts["last"] or (not counts["updates"] and counts["last"]):
            raise ValueError(f"{where}: 'updates' and 'last' cannot be {counts['updates']} and {counts['last']}.")
        averages = []
        if counts["updates"]:
            shapes = {key: p.shape for key, p in zip(keys, self._params, strict=True)}
            check_tensors("Balancer: the state: 'tensors'", shapes, tensors)
            for i, (key, p) in enumerate(zip(keys, self._params, strict=True)):
                averages.append(self._layout.local_slice(i, tensors[key]).to(p.device, wide(p.dtype), copy=True))
        self._averages, self._updates, self._last = averages, counts["updates"], counts["last"]
