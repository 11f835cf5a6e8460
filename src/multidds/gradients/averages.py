"""Running averages of gradients over updates, with one form of state.

`MovingAverages` are those of DDS (appendix A.1 of the paper): one for each of n datasets, n gradients of memory.
`MeanDirection` averages the one vector of the dev sets, for updates that probe a part of them.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from .layout import Whole
from .vectors import Gradient, wide


class _Averages:
    """Tensors like the parameters, and their state: {"PREFIX.PARAMETER": copy}; of a sharded model, shards.

    params: {name: parameter}, of the gradients.
    layout: the elements of them that this rank holds.
    """

    def __init__(self, params: Mapping[str, Tensor], layout: Whole) -> None:
        self._params, self._layout = dict(params), layout

    def _zeros(self) -> list[Tensor]:
        return [torch.zeros_like(self._layout.local(p), dtype=wide(p.dtype)) for p in self._params.values()]

    def _saved(self, prefix: str, values: list[Tensor]) -> dict[str, Tensor]:
        by_name = enumerate(zip(self._params, values, strict=True))
        return {f"{prefix}.{name}": self._layout.as_dtensor(i, value.clone()) for i, (name, value) in by_name}

    def _loaded(self, prefixes: Iterable[str], tensors: Mapping[str, Tensor]) -> list[list[Tensor]]:
        prefixes = list(prefixes)
        shapes = {f"{prefix}.{name}": p.shape for prefix in prefixes for name, p in self._params.items()}
        if {name: tensor.shape for name, tensor in tensors.items()} != shapes:
            raise ValueError("Balancer: the averages of gradients in the state are of other parameters.")
        params = list(enumerate(self._params.items()))
        return [
            [
                self._layout.local_slice(i, tensors[f"{prefix}.{name}"]).to(p.device, wide(p.dtype), copy=True)
                for i, (name, p) in params
            ]
            for prefix in prefixes
        ]


class MovingAverages(_Averages):
    """The mean of each dataset's gradients, with weights 1, decay, decay^2, ... from the newest back.

    params, layout: the parameters, and the elements of them that this rank holds.
    decay: the weight of a gradient relative to the next newer one, at least 0 and below 1.
    names: datasets whose averages exist from the beginning, as zero, so that a state always has the same tensors.
    """

    def __init__(self, params: Mapping[str, Tensor], decay: float, layout: Whole, names: Iterable[str] = ()) -> None:
        super().__init__(params, layout)
        self._decay = decay
        self._averages: dict[str, list[Tensor]] = {}
        self._counts: dict[str, Tensor] = {}  # finite gradients so far
        self._observed: set[str] = set()
        for name in names:
            self._begin(name)

    def _begin(self, name: str) -> None:
        self._averages[name] = self._zeros()
        self._counts[name] = torch.zeros((), dtype=torch.int64, device=self._averages[name][0].device)

    def __getitem__(self, name: str) -> Gradient:
        return list(self._averages[name])

    def observed(self, name: str) -> bool:
        """Whether the average is over gradients of training; if not, it is over probes."""
        return name in self._observed

    def observe(self, name: str) -> None:
        """Adds what backward has left in .grad. Nothing is synchronised; a non-finite gradient changes nothing."""
        gradient = [p.grad for p in self._params.values()]
        if all(g is None for g in gradient):
            raise ValueError(f"Balancer.observe({name!r}): there are no gradients; call it after backward().")
        self.add(name, gradient)
        self._observed.add(name)

    def add(self, name: str, gradient: Gradient) -> None:
        """Adds a gradient to the average of a dataset, unless an element of it is not finite."""
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

    def state_dict(self) -> dict[str, Any]:
        """Returns the plain values; `tensors` has the rest."""
        counts = {name: int(self._counts[name]) for name in sorted(self._counts)}
        return {"observed": sorted(self._observed), "counts": counts}

    def tensors(self) -> dict[str, Tensor]:
        """Returns {"average.3.PARAMETER": copy}, 3 being the place of the dataset among the sorted names."""
        places = enumerate(sorted(self._averages))
        parts = [self._saved(f"average.{place}", self._averages[name]) for place, name in places]
        return {key: tensor for part in parts for key, tensor in part.items()}

    def load_state_dict(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        names = sorted(state["counts"])
        averages = self._loaded([f"average.{place}" for place in range(len(names))], tensors)
        self._averages, self._observed = dict(zip(names, averages, strict=True)), set(state["observed"])
        devices = {name: self._averages[name][0].device for name in names}
        self._counts = {name: torch.tensor(state["counts"][name], device=devices[name]) for name in names}


class MeanDirection(_Averages):
    """The mean of the dev sets' vectors of updates 1, 2, ..., u, with weights 1, 2, ..., u.

    The vector of an update that sees a few examples of the dev sets is mostly noise. All rewards of the update share
    this noise, so that it does not average out over probes of datasets as fast.

    updates: number of vectors in the mean.
    """

    def __init__(self, params: Mapping[str, Tensor], layout: Whole) -> None:
        super().__init__(params, layout)
        self._mean = self._zeros()
        self.updates = 0

    def with_vector(self, vector: Gradient) -> list[Tensor]:
        """Returns the mean with one vector more, in the memory of that vector. `keep` makes it the mean."""
        share = 2 / (self.updates + 2)
        return [
            mean * (1 - share) if v is None else v.mul_(share).add_(mean, alpha=1 - share)
            for v, mean in zip(vector, self._mean, strict=True)
        ]

    def keep(self, mean: list[Tensor]) -> None:
        """Replaces the mean by what `with_vector` returned, and counts the update."""
        self._mean, self.updates = mean, self.updates + 1

    def tensors(self) -> dict[str, Tensor]:
        """Returns {"direction.PARAMETER": copy}."""
        return self._saved("direction", self._mean)

    def load_state_dict(self, updates: int, tensors: Mapping[str, Tensor]) -> None:
        (self._mean,) = self._loaded(["direction"], tensors)
        self.updates = updates
