"""The slope of every example's loss along one vector: the inner products of all their gradients with it, at once.

    <grad l(x), v> / |v|  =  (l(x; theta + eps u) - l(x; theta - eps u)) / 2 eps,    u = v / |v|

Two forward passes with the same dropout masks, whatever the kernels of the model; no example's gradient is ever made.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..gradients.vectors import Gradient, wide
from .probed_model import ProbedModel

ExampleLosses: TypeAlias = Callable[[Any, Any], Tensor]


def refuse_model(owner: str, model: ProbedModel) -> None:
    """Raises a ValueError for sharded models and for parameters narrower than float32."""
    if model.layout.sharded:
        raise ValueError(f"{owner}: a sharded model is not supported; use DistributedDataParallel.")
    refuse_narrow(owner, model)


def refuse_narrow(owner: str, model: ProbedModel) -> None:
    """theta + eps u rounds back to theta where theta has eight bits."""
    for p, name in zip(model.params, model.names, strict=True):
        if wide(p.dtype) != p.dtype:
            raise ValueError(
                f"{owner}: small steps are lost in rounding: the parameter {name!r} is {p.dtype}. "
                "Keep parameters in float32 and use autocast."
            )


def step_size(model: ProbedModel, steepness: float, dev_loss: float, eps: float | None) -> float:
    """How far to go along the unit vector, so that both errors are small: that of the curve, and that of rounding.

    As far as changes the dev loss by a share `eps` of itself, by default 0.0008 in float32: less than the cube root of
    the precision, which smooth curves want, because a ReLU has kinks. Between what the parameters can represent and a
    share eps of their length.
    """
    precision = max(torch.finfo(p.dtype).eps for p in model.params)
    share = precision**0.45 if eps is None else eps
    length = model.layout.norm([model.layout.local(p.detach()) for p in model.params])
    return min(max(share * abs(dev_loss) / steepness, 32 * precision * length), share * max(length, 1.0))


def slopes(
    model: ProbedModel, losses: ExampleLosses, batch: Any, vector: Gradient, length: float, step: float, number: int
) -> tuple[Tensor, Tensor]:
    """(slopes, losses) of the examples of a batch, in float64; inside `model.invisible()`. # [B], [B]

    losses(model, batch) -> [B]. number: of the update, which seeds what is random in both passes.
    """

    def at(distance: float) -> Tensor:
        with model.moved(vector, -distance / length):
            return model.forward(("train", "examples", number), batch, losses).double()

    ahead, behind = at(step), at(-step)
    return (ahead - behind) / (2 * step), (ahead + behind) / 2


def one_per_example(owner: str, what: str, values: object, count: int | None = None) -> Tensor:
    """The values, if they are a tensor [B]."""
    if not isinstance(values, Tensor):
        raise TypeError(f"{owner}: {what} must return a tensor [B], got {type(values).__name__}.")
    if values.ndim != 1 or len(values) == 0 or (count is not None and len(values) != count):
        wanted = "one number per example" + ("" if count is None else f", {count} of them")
        raise ValueError(f"{owner}: {what} must return {wanted}, but the shape is {tuple(values.shape)}.")
    return values


def first_not_finite(values: Tensor) -> int | None:
    """The place of the first value that is not finite."""
    bad = (~values.detach().isfinite()).nonzero()
    return None if len(bad) == 0 else int(bad[0])
