"""Moving averages of the gradients of n datasets, as DDS kept them: n gradients of memory (appendix A.1)."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .probing import Gradient


class MovingAverages:
    """average <- decay * average + (1 - decay) * gradient, for each dataset, starting from zero."""

    def __init__(self, names: Sequence[str], params: Mapping[str, Tensor], decay: float) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"Balancer: decay must be at least 0 and below 1, but it is {decay}.")
        self._params, self._decay = dict(params), decay
        self._averages: dict[str, list[Tensor]] = {}
        self._observed: set[str] = set()

    def __getitem__(self, name: str) -> Gradient:
        return list(self._averages[name])

    def observed(self, name: str) -> bool:
        """Whether gradients of training were seen; if not, the average is over probes."""
        return name in self._observed

    def observe(self, name: str) -> None:
        """Add what backward has left in .grad. Nothing is synchronised; a non-finite gradient changes nothing."""
        gradient = [p.grad for p in self._params.values()]
        if all(g is None for g in gradient):
            raise ValueError(f"Balancer.observe({name!r}): there are no gradients; call it after backward().")
        self.add(name, gradient)
        self._observed.add(name)

    def add(self, name: str, gradient: Gradient) -> None:
        if name not in self._averages:
            self._averages[name] = [
                torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32)) for p in self._params.values()
            ]
        sums = [
            g.sum(dtype=average.dtype)
            for g, average in zip(gradient, self._averages[name], strict=True)
            if g is not None
        ]
        finite = torch.stack([each.to(sums[0].device) for each in sums]).isfinite().all()
        for average, g in zip(self._averages[name], gradient, strict=True):
            here = finite.to(average.device)
            value = torch.zeros_like(average) if g is None else g.detach().to_dense().to(average.dtype)
            # lerp from a to a is a, bit for bit; a NaN times a weight of 0 would not be.
            average.lerp_(torch.where(here, value, average), 1 - self._decay)

    def state_dict(self) -> dict[str, Any]:
        return {
            "observed": sorted(self._observed),
            "averages": {
                name: dict(zip(self._params, tensors, strict=True)) for name, tensors in self._averages.items()
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        averages = {}
        for name, tensors in state["averages"].items():
            if list(tensors) != list(self._params):
                raise ValueError(f"Balancer: the moving average of {name!r} is of other parameters.")
            averages[name] = [
                tensors[key].to(p.device, torch.promote_types(p.dtype, torch.float32), copy=True)
                for key, p in self._params.items()
            ]
        self._averages, self._observed = averages, set(state["observed"])
