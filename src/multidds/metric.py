"""Training gradients in the metric of Adam: the step that the optimizer would really take, not the raw slope."""

import torch

from .probing import Gradient, Prober


class AdamMetric:
    """Divides a gradient by the root of Adam's second moment. Reads the optimizer, never writes it."""

    def __init__(self, optimizer: torch.optim.Optimizer, prober: Prober) -> None:
        if not isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam)):
            kind = type(optimizer).__name__
            raise TypeError(f"Balancer: the optimizer's metric needs Adam's second moment, which {kind} does not have.")
        self._optimizer, self._params = optimizer, prober.params
        groups = {p: group for group in optimizer.param_groups for p in group["params"]}
        for p, name in zip(prober.params, prober.names, strict=True):
            if p not in groups:
                raise ValueError(f"Balancer: the optimizer does not have the parameter {name!r}.")
        self._groups = groups

    def applied(self, gradient: Gradient) -> Gradient:
        """gradient / (sqrt(second moment) + eps), bias-corrected; parameters never stepped stay as they are."""
        result: Gradient = []
        for p, g in zip(self._params, gradient, strict=True):
            state, group = self._optimizer.state.get(p, {}), self._groups[p]
            if g is None or "exp_avg_sq" not in state:
                result.append(g)
                continue
            correction = 1 - group["betas"][1] ** torch.as_tensor(state["step"], device=g.device, dtype=torch.float64)
            moment = state["exp_avg_sq"] / correction.to(state["exp_avg_sq"].dtype)
            result.append(g / (moment.sqrt() + group["eps"]))
        return result
