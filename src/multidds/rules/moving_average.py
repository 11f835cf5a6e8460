"""The moving average of DDS (appendix A.1 of the paper): a reward that keeps one gradient per dataset."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .._base.checks import check_names
from .._base.state import check_keys, check_tensors, not_negative, restored, restored_part
from ..gradients.vectors import Gradient, wide
from ..probes.probe import Probe
from ..probes.round import Round


@dataclass
class MovingAverage:
    """The reward of DDS: as `Cosine`, with moving averages of the datasets' gradients: n gradients of memory.

    decay: the weight of an average relative to the next newer gradient, 0 to below 1. Default 0.9.

    The averages are over the gradients that `Balancer.observe` was given; over those of probes, for a dataset that it
    was not given. Settings only, until `begin` makes a copy that holds the averages.
    """

    decay: float = 0.9
    _model: Any = field(init=False, repr=False, compare=False, default=None)
    _names: tuple[str, ...] = field(init=False, repr=False, compare=False, default=())
    _averages: dict[str, list[Tensor]] = field(init=False, repr=False, compare=False, default_factory=dict)
    _counts: dict[str, Tensor] = field(init=False, repr=False, compare=False, default_factory=dict)
    _observed: set[str] = field(init=False, repr=False, compare=False, default_factory=set)

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise ValueError(f"MovingAverage: decay must be at least 0 and below 1, but it is {self.decay}.")

    def begin(self, probe: Probe) -> "MovingAverage":
        """Returns a copy with averages for the model of this probe."""
        begun = MovingAverage(self.decay)
        begun._model = probe.model
        begun._names = probe.names("train")
        begun.forget()
        return begun

    def forget(self) -> None:
        """Begins all averages anew, for the parameters that the model has now."""
        self._averages, self._counts, self._observed = {}, {}, set()
        if self._model.layout.sharded:  # the states of all ranks have the same tensors
            for name in self._names:
                self._begin(name)

    def _begin(self, name: str) -> None:
        layout = self._model.layout
        zeros = [torch.zeros_like(layout.local(p), dtype=wide(p.dtype)) for p in self._model.params]
        self._averages[name] = zeros
        self._counts[name] = torch.zeros((), dtype=torch.int64, device=zeros[0].device)

    def __call__(self, probe: Probe, round_: Round) -> dict[str, float]:
        """Returns {dataset: the cosine of its average with the gradient of the weighted dev loss}."""
        v, length = probe.direction(round_, unit=False)
        layout, rewards = probe.model.layout, {}
        for name in round_.datasets:
            if name not in self._observed:
                self.add(name, probe.gradient("train", name, round_))
            average = list(self._averages[name])
            norm = layout.norm(average)
            rewards[name] = layout.dot(average, v) / norm / length if norm and length else 0.0
        return probe.agreed(rewards)

    def observe(self, name: str) -> None:
        """Adds what backward has left in .grad to the average of the dataset `name`.

        Nothing is synchronised. A gradient that is not finite changes nothing.
        """
        if self._model.replicas.size > 1:
            raise ValueError(
                "Balancer.observe: gradients averaged over ranks may mix datasets. Leave the call out: the moving "
                "average is then over the probe gradients of successive updates."
            )
        gradient = [p.grad for p in self._model.params]
        if all(g is None for g in gradient):
            raise ValueError(f"Balancer.observe({name!r}): there are no gradients; call it after backward().")
        self.add(name, gradient)
        self._observed.add(name)

    def add(self, name: str, gradient: Gradient) -> None:
        """Adds a gradient to the average of the dataset `name`, unless an element of it is not finite."""
        if name not in self._averages:
            self._begin(name)
        averages = self._averages[name]
        sums = [g.sum(dtype=a.dtype) for g, a in zip(gradient, averages, strict=True) if g is not None]
        total = torch.stack([each.to(sums[0].device) for each in sums])
        finite = self._model.layout.total(total).isfinite().all()
        count = self._counts[name].add_(finite.to(self._counts[name].device))
        # The share of the newest that keeps the weights summing to 1: 1 at first, 1 - decay in the long run.
        share = (1 - self.decay) / (1 - self.decay ** count.clamp(min=1).to(averages[0].dtype))
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
        return {
            f"average.{place}.{parameter}": self._model.layout.as_dtensor(i, value.clone())
            for place, name in enumerate(sorted(self._averages))
            for i, (parameter, value) in enumerate(zip(self._model.names, self._averages[name], strict=True))
        }

    def load_state_dict(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Continues with the averages of a state. One that does not fit raises an error and changes nothing."""
        where = "MovingAverage: the state"
        check_keys(where, state, "observed", "counts")
        counts = restored_part(f"{where}: 'counts'", self._names, state["counts"], 0)
        not_negative(f"{where}: 'counts'", counts)
        observed = restored(f"{where}: 'observed'", [], state["observed"])
        check_names(f"{where}: 'observed'", counts, [*counts, *map(str, observed)])
        names, model = sorted(counts), self._model
        params = list(zip(model.names, model.params, strict=True))
        shapes = {f"average.{place}.{name}": p.shape for place in range(len(names)) for name, p in params}
        check_tensors(f"{where}: 'tensors'", shapes, tensors)
        averages = {
            dataset: [
                model.layout.local_slice(i, tensors[f"average.{place}.{name}"]).to(p.device, wide(p.dtype), copy=True)
                for i, (name, p) in enumerate(params)
            ]
            for place, dataset in enumerate(names)
        }
        for dataset, values in averages.items():
            if not all(value.isfinite().all() for value in values):
                raise ValueError(f"{where}: 'tensors': the average of {dataset!r} has values that are not finite.")
        self._averages, self._observed = averages, set(observed)
        self._counts = {name: torch.tensor(counts[name], device=values[0].device) for name, values in averages.items()}
