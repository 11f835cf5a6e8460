"""The slope of every example's loss along one vector: the inner products of all their gradients with it, at once.

    <grad l(x), v> / |v|  =  (l(x; theta + eps u) - l(x; theta - eps u)) / 2 eps,    u = v / |v|

Two forward passes with the same dropout masks, whatever the kernels of the model; no example's gradient is ever made.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..gradients.vectors import Gradient, wide
from .prober import Numbered, Prober

ExampleLosses: TypeAlias = Callable[[Any, Any], Tensor]


def refuse_model(owner: str, prober: Prober) -> None:
    """What scorers of single examples cannot have: shards, which they do not know, and narrow parameters."""
    if prober.layout.sharded:
        raise ValueError(f"{owner}: a sharded model is not supported; use DistributedDataParallel.")
    refuse_narrow(owner, prober)


def refuse_narrow(owner: str, prober: Prober) -> None:
    """theta + eps u rounds back to theta where theta has eight bits."""
    for p, name in zip(prober.params, prober.names, strict=True):
        if wide(p.dtype) != p.dtype:
            raise ValueError(
                f"{owner}: small steps are lost in rounding: the parameter {name!r} is {p.dtype}. "
                "Keep parameters in float32 and use autocast."
            )


def step_size(prober: Prober, steepness: float, dev_loss: float, eps: float | None) -> float:
    """How far to go along the unit vector, so that both errors are small: that of the curve, and that of rounding.

    As far as changes the dev loss by a share `eps` of itself, by default 0.0008 in float32: less than the cube root of
    the precision, which smooth curves want, because a ReLU has kinks. Between what the parameters can represent and a
    share eps of their length.
    """
    precision = max(torch.finfo(p.dtype).eps for p in prober.params)
    share = precision**0.45 if eps is None else eps
    length = prober.layout.norm([prober.layout.local(p.detach()) for p in prober.params])
    return min(max(share * abs(dev_loss) / steepness, 32 * precision * length), share * max(length, 1.0))


def slopes(
    prober: Prober, losses: ExampleLosses, batch: Any, vector: Gradient, length: float, step: float, number: int
) -> tuple[Tensor, Tensor]:
    """(slopes, losses) of the examples of a batch, in float64; inside `prober.invisible()`. # [B], [B]

    losses(model, batch) -> [B]. number: of the update, which seeds what is random in both passes.
    """

    def at(distance: float) -> Tensor:
        with prober.moved(vector, -distance / length):
            return prober.forward(("train", "examples", number), batch, losses).double()

    ahead, behind = at(step), at(-step)
    return (ahead - behind) / (2 * step), (ahead + behind) / 2


NumberedSlopes: TypeAlias = tuple[int, Tensor, Tensor]  # of the batch of this number: slopes [B], losses [B]


def slopes_of(
    prober: Prober,
    losses: Callable[[int, Any, Any], Tensor],
    batches: Sequence[Numbered],
    vector: Gradient,
    length: float,
    step: float,
    update: int,
) -> list[NumberedSlopes]:
    """`slopes` of several batches, numbered over all replicas; the parameters are moved twice, not twice for each.

    losses(number, model, batch) -> [B]. A vector of length 0 gives slopes 0.
    """

    def at(distance: float) -> list[Tensor]:
        with prober.moved(vector, -distance / length if length else 0.0):
            return [
                prober.forward(("train", "mixed", update), batch, partial(losses, j), j).double()
                for j, batch in batches
            ]

    return [
        (j, (ahead - behind) / (2 * step), (ahead + behind) / 2)
        for (j, _), ahead, behind in zip(batches, at(step), at(-step), strict=True)
    ]


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
