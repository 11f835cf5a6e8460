"""Training gradients in the metric of Adam: the step that the optimizer would really take, not the raw slope."""

from typing import Any

import torch
from torch import Tensor

from ..gradients.vectors import Gradient
from .prober import Prober


class AdamMetric:
    """Divides a gradient as Adam would if it came next. Reads the optimizer, never writes it."""

    def __init__(self, optimizer: torch.optim.Optimizer, prober: Prober) -> None:
        if not isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW)):
            kind = type(optimizer).__name__
            raise TypeError(f"Balancer: the optimizer's metric needs Adam's second moment, which {kind} does not have.")
        self._optimizer, self._params, self._layout = optimizer, prober.params, prober.layout
        for p, name in zip(prober.params, prober.names, strict=True):
            if p not in self._groups():
                raise ValueError(f"Balancer: the optimizer does not have the parameter {name!r}.")

    def _groups(self) -> dict[Tensor, dict[str, Any]]:
        return {p: group for group in self._optimizer.param_groups for p in group["params"]}

    def applied(self, gradient: Gradient) -> Gradient:
        """gradient / (sqrt(second moment) + eps), the moment with this gradient in it and bias-corrected."""
        result: Gradient = []
        groups = self._groups()
        for p, g in zip(self._params, gradient, strict=True):
            if g is None:
                result.append(None)
                continue
            state, beta = self._optimizer.state.get(p, {}), float(groups[p]["betas"][1])
            g = g.to(torch.promote_types(g.dtype, torch.float32))
            moment = (1 - beta) * g.square()
            if "exp_avg_sq" in state:
                moment += beta * self._layout.local(state["exp_avg_sq"])
            moment /= 1 - beta ** (float(state.get("step", 0)) + 1)
            result.append(g / (moment.sqrt_() + float(groups[p]["eps"])))
        return result
