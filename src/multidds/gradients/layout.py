"""The elements of gradients that a rank holds: all of them, or its shards of FSDP2 (`fully_shard`).

A gradient is a list of plain tensors, one per parameter: the part that this rank holds. `Whole` and `Shards` add what
is missing for inner products and sketches: for shards, one sum over ranks.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from .._base.ranks import Ranks
from . import vectors


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
        return vectors.dot(a, b)

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
        return self._group.total(vectors.dot(a, b))
