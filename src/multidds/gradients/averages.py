"""Averages of gradients over updates: of n datasets, as DDS kept them (appendix A.1: n gradients of memory), or of the
one vector that the dev sets want, where an update looks at a part of them.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from .._base.checks import are, by_name, check_state, is_count
from .layout import Whole
from .vectors import Gradient, wide


class MovingAverages:
    """The mean of a dataset's gradients with weights 1, decay, decay^2, ... from the newest back."""

    def __init__(self, params: Mapping[str, Tensor], decay: float, layout: Whole, names: Iterable[str] = ()) -> None:
        """params: what the gradients are of; layout: where their elements are. names: of datasets whose averages are
        there from the beginning, as zero, so that a state has one form at any time.
        """
        if not 0 <= decay < 1:
            raise ValueError(f"Balancer: decay must be at least 0 and below 1, but it is {decay}.")
        self._params, self._decay, self._layout = dict(params), decay, layout
        self._averages: dict[str, list[Tensor]] = {}
        self._counts: dict[str, Tensor] = {}  # finite gradients so far
        self._observed: set[str] = set()
        for name in names:
            self._begin(name)

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
            self._begin(name)
        averages = self._averages[name]
        sums = [g.sum(dtype=a.dtype) for g, a in zip(gradient, averages, strict=True) if g is not None]
        finite = self._layout.total(torch.stack([each.to(sums[0].device) for each in sums])).isfinite().all()
        count = self._counts[name].add_(finite.to(self._counts[name].device))
        # The share of the newest that keeps the weights summing to 1: 1 at first, 1 - decay in the long run.
        share = (1 - self._decay) / (1 - self._decay ** count.clamp(min=1).to(averages[0].dtype))
        for average, g in zip(averages, gradient, strict=True):
            value = torch.zeros_like(average) if g is None else g.detach().to_dense().to(average.dtype)
            # lerp from a to a is a, bit for bit; a NaN times a weight of 0 would not be.
            average.lerp_(torch.where(finite.to(average.device), value, average), share.to(average))

    def _begin(self, name: str) -> None:
        self._averages[name] = [
            torch.zeros_like(self._layout.local(p), dtype=wide(p.dtype)) for p in self._params.values()
        ]
        self._counts[name] = torch.zeros((), dtype=torch.int64, device=self._averages[name][0].device)

    def state_dict(self) -> dict[str, Any]:
        """The plain values; `tensors` are the rest."""
        return {
            "observed": sorted(self._observed),
            "counts": {name: int(self._counts[name]) for name in sorted(self._counts)},
        }

    def tensors(self) -> dict[str, Tensor]:
        """{"average.3.PARAMETER": copy}, where 3 is the place of the dataset among the sorted names of the counts.

        Of a sharded model, shards: DTensors that are laid out as its parameters are.
        """
        return {
            f"average.{place}.{key}": self._layout.like(i, average.clone())
            for place, name in enumerate(sorted(self._averages))
            for i, (key, average) in enumerate(zip(self._params, self._averages[name], strict=True))
        }

    def carried(
        self, state: Mapping[str, Any], tensors: Mapping[str, Tensor], names: Iterable[str]
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """(state, tensors) without the averages of datasets that are not among the names."""
        kept = set(names)
        before = sorted(state["counts"])
        after = [name for name in before if name in kept]
        renamed = {
            f"average.{place}.{key}": tensors[f"average.{before.index(name)}.{key}"]
            for place, name in enumerate(after)
            for key in self._params
        }
        observed = [name for name in state["observed"] if name in kept]
        return {"observed": observed, "counts": {name: state["counts"][name] for name in after}}, renamed

    def check_state(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        check_state("Balancer: averages", state, counts=by_name(is_count), observed=are(lambda n: isinstance(n, str)))
        wanted = {
            f"average.{place}.{key}": p.shape
            for place in range(len(state["counts"]))
            for key, p in self._params.items()
        }
        if {name: tensor.shape for name, tensor in tensors.items()} != wanted:
            raise ValueError("Balancer: the moving averages of the state are of other parameters.")

    def load_state_dict(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self.check_state(state, tensors)
        averages, names = {}, sorted(state["counts"])
        for place, name in enumerate(names):
            averages[name] = [
                self._layout.part(i, tensors[f"average.{place}.{key}"]).to(p.device, wide(p.dtype), copy=True)
                for i, (key, p) in enumerate(self._params.items())
            ]
        self._averages, self._observed = averages, set(state["observed"])
        self._counts = {name: torch.tensor(state["counts"][name], device=a[0].device) for name, a in averages.items()}


class MeanDirection:
    """What the dev sets have wanted so far: the mean of the vectors of updates 1, 2, ..., u with weights 1, 2, ..., u.

    Where an update sees a few examples of the dev sets its vector is mostly noise. It is noise that all rewards of the
    update share, so that no average over looks at datasets is rid of it as fast; and it fades as `shrinkage` fades.
    """

    def __init__(self, params: Mapping[str, Tensor], layout: Whole) -> None:
        self._params, self._layout = dict(params), layout
        self._mean = [torch.zeros_like(layout.local(p), dtype=wide(p.dtype)) for p in self._params.values()]
        self.updates = 0

    def with_vector(self, vector: Gradient) -> list[Tensor]:
        """The mean with one vector more, in the memory of that. Nothing is kept of it before `keep`."""
        share = 2 / (self.updates + 2)
        return [
            mean * (1 - share) if v is None else v.mul_(share).add_(mean, alpha=1 - share)
            for v, mean in zip(vector, self._mean, strict=True)
        ]

    def keep(self, mean: list[Tensor]) -> None:
        """The update that has made this mean counts."""
        self._mean, self.updates = mean, self.updates + 1

    def tensors(self) -> dict[str, Tensor]:
        """{"direction.PARAMETER": copy}; of a sharded model, shards."""
        means = enumerate(zip(self._params, self._mean, strict=True))
        return {f"direction.{name}": self._layout.like(i, mean.clone()) for i, (name, mean) in means}

    def check_state(self, updates: object, tensors: Mapping[str, Tensor]) -> None:
        wanted = {f"direction.{name}": p.shape for name, p in self._params.items()}
        if not is_count(updates) or {name: tensor.shape for name, tensor in tensors.items()} != wanted:
            raise ValueError("Balancer: the direction of the dev sets in the state is of other parameters, or missing.")

    def load_state_dict(self, updates: int, tensors: Mapping[str, Tensor]) -> None:
        self.check_state(updates, tensors)
        self._mean = [
            self._layout.part(i, tensors[f"direction.{name}"]).to(p.device, wide(p.dtype), copy=True)
            for i, (name, p) in enumerate(self._params.items())
        ]
        self.updates = updates
