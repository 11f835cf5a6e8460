"""The algebra of gradients: inner products, norms and sums of lists of tensors, one per parameter.

A gradient is a list in the order of the parameters; None stands for zero. All sums are in float32 at least.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import TypeAlias

import torch
from torch import Tensor

Gradient: TypeAlias = list[Tensor | None]
_PIECE = 2**16  # elements of one float32 sum


def dot(a: Sequence[Tensor | None], b: Sequence[Tensor | None]) -> float:
    """Returns the inner product, summed in pieces: one float32 sum of millions is wrong in the third digit."""
    parts: list[Tensor] = []
    for x, y in zip(a, b, strict=True):  # a transformer has dozens of small parameters: few calls for each
        if x is None or y is None:
            continue
        same = x is y
        if not x.dtype == y.dtype == wide(x.dtype):
            dtype = wide(torch.promote_types(x.dtype, y.dtype))
            x, y = x.to(dtype), y.to(dtype)
        x = x.reshape(-1)
        y = x if same else y.reshape(-1)
        if x.numel() <= _PIECE:
            parts.append(torch.dot(x, y))
        else:
            pieces = torch.split(x, _PIECE)
            parts += map(torch.dot, pieces, pieces if same else torch.split(y, _PIECE))
    if not parts:
        return 0.0
    device = parts[0].device
    if any(part.device != device for part in parts):
        parts = [part.to(device) for part in parts]
    values: list[float] = torch.stack(parts).tolist()  # one synchronisation
    return sum(values)


def norm(a: Sequence[Tensor | None]) -> float:
    return math.sqrt(dot(a, a))


def added(total: Gradient | None, gradient: Gradient, scale: float = 1.0) -> Gradient:
    """Returns total + scale * gradient, in the memory of the total if there is one."""
    if total is None:
        total = [None] * len(gradient)
    for i, g in enumerate(gradient):
        if g is not None:
            total[i] = g.to(wide(g.dtype)) * scale if total[i] is None else total[i].add_(g, alpha=scale)  # type: ignore[union-attr]
    return total


@cache
def wide(dtype: torch.dtype) -> torch.dtype:
    """Returns the type in which sums are made: float32, or a wider type that is already there."""
    return torch.promote_types(dtype, torch.float32)
