"""Gradients: inner products, norms and sums, and the part of them that a rank holds.

A gradient is a list of plain tensors in the order of the parameters; None stands for zero. All sums are in float32 at
least. A rank holds whole gradients, or its shards of FSDP2 (`fully_shard`). `Whole` and `Shards` add what is missing
for inner products and sketches: for shards, one sum over ranks.
"""

import math
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, TypeAlias

import torch
from torch import Tensor

from .._base.ranks import Ranks

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


class Whole:
    """The layout of gradients that every rank holds whole.

    place: in its methods, the index of a parameter.
    """

    sharded = False

    def local(self, tensor: Tensor) -> Tensor:
        """Returns the part of a parameter, or of anything laid out like one, that this rank holds; the same memory."""
        return tensor

    def total(self, values: Tensor) -> Tensor:
        """Makes sums over the elements that this rank holds sums over all elements, in place."""
        return values

    def flat_slices(self, place: int, values: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Yields (index of its first element in the flat parameter, slice) of what this rank holds."""
        yield 0, values

    def as_dtensor(self, place: int, values: Tensor) -> Tensor:
        """Returns what this rank holds as a part of the whole tensor, for saving; a DTensor if there are shards."""
        return values

    def local_slice(self, place: int, tensor: Tensor) -> Tensor:
        """Returns the part of a saved tensor that this rank holds."""
        return tensor

    def dot(self, a: Sequence[Tensor | None], b: Sequence[Tensor | None]) -> float:
        return dot(a, b)

    def norm(self, a: Sequence[Tensor | None]) -> float:
        return math.sqrt(self.dot(a, a))


class Shards(Whole):
    """The layout of gradients of which every rank holds a shard, a DTensor; all have one placement on one mesh."""

    sharded = True

    def __init__(self, params: Sequence[Any]) -> None:
        mesh, placements = params[0].device_mesh, params[0].placements
        shards = len(placements) - 1  # the dimension of the mesh over which they are sharded: the last
        self._params = params
        self._group = Ranks(params[0].device, mesh.get_group(shards))
        self._bounds = [self._bounds_of(p.shape, p.placements[shards].dim) for p in params]

    def _bounds_of(self, shape: Sequence[int], dim: int) -> tuple[int, int, int]:
        """Returns (dimension, first, length) of this rank's chunk of a parameter, as torch.chunk makes them."""
        chunk = -(-shape[dim] // self._group.size)
        first = min(self._group.rank * chunk, shape[dim])
        return dim, first, min(chunk, shape[dim] - first)

    def local(self, tensor: Any) -> Tensor:
        with torch.no_grad():
            local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            return local

    def total(self, values: Tensor) -> Tensor:
        total = values.to(self._params[0].device)  # where the backend can reduce it
        self._group.sum([total])
        return values.copy_(total)

    def flat_slices(self, place: int, values: Tensor) -> Iterator[tuple[int, Tensor]]:
        dim, first, _ = self._bounds[place]
        shape = self._params[place].shape
        rows, width = math.prod(shape[:dim]), math.prod(shape[dim + 1 :])
        if values.numel():
            for row, part in enumerate(values.reshape(rows, -1)):
                yield (row * shape[dim] + first) * width, part

    def as_dtensor(self, place: int, values: Tensor) -> Tensor:
        from torch.distributed.tensor import DTensor

        p = self._params[place]
        return DTensor.from_local(values, p.device_mesh, p.placements, shape=p.shape, stride=p.stride())

    def local_slice(self, place: int, tensor: Any) -> Tensor:
        if not hasattr(tensor, "to_local"):
            part: Tensor = tensor.narrow(*self._bounds[place])
            return part
        p = self._params[place]
        if tensor.device_mesh == p.device_mesh and tensor.placements == p.placements:
            return self.local(tensor)
        return self.local(tensor.redistribute(p.device_mesh, p.placements))

    def dot(self, a: Sequence[Tensor | None], b: Sequence[Tensor | None]) -> float:
        return self._group.total(dot(a, b))
