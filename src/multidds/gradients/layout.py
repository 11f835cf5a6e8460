"""Where the elements of gradients are: whole on every rank, or in shards of which every rank holds one.

A gradient is a list of plain tensors, one per parameter: what this rank holds of it. `Whole` and `Shards` know what is
missing for inner products and sketches. For the shards of FSDP2 (`fully_shard`) that is one sum over ranks.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from .._base.ranks import Ranks
from . import vectors as gradients
from .vectors import Gradient


class Whole:
    """Every rank holds whole gradients."""

    sharded = False

    def local(self, tensor: Tensor) -> Tensor:
        """What this rank holds of a parameter, or of anything that is laid out like one; the same memory."""
        return tensor

    def total(self, values: Tensor) -> Tensor:
        """Sums over the elements that this rank holds, made sums over all elements in place."""
        return values

    def stretches(self, place: int, values: Tensor) -> Iterator[tuple[int, Tensor]]:
        """(index of its first element in the flat parameter, part) of what this rank holds; place: of the parameter."""
        yield 0, values

    def like(self, place: int, values: Tensor) -> Tensor:
        """What this rank holds as the tensor of which it is a part, to be saved; place: of the parameter."""
        return values

    def part(self, place: int, tensor: Tensor) -> Tensor:
        """What this rank holds of a tensor that was saved; place: of its parameter."""
        return tensor

    def dot(self, a: Sequence[Tensor | None], b: Sequence[Tensor | None]) -> float:
        return gradients.dot(a, b)

    def norm(self, a: Sequence[Tensor | None]) -> float:
        return math.sqrt(self.dot(a, a))


class Shards(Whole):
    """Every rank holds a shard of each parameter, a DTensor; all are laid out alike over one mesh."""

    sharded = True

    def __init__(self, params: Sequence[Any]) -> None:
        mesh, placements = params[0].device_mesh, params[0].placements
        shards = len(placements) - 1  # the dimension of the mesh over which they are sharded: the last
        self._params = params
        self._group = Ranks(params[0].device, mesh.get_group(shards))
        self._cuts = [self._cut(p.shape, p.placements[shards].dim) for p in params]

    def _cut(self, shape: Sequence[int], dim: int) -> tuple[int, int, int]:
        """(dimension, first, length): what this rank holds of a parameter, in chunks as torch.chunk makes them."""
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

    def stretches(self, place: int, values: Tensor) -> Iterator[tuple[int, Tensor]]:
        dim, first, _ = self._cuts[place]
        shape = self._params[place].shape
        rows, width = math.prod(shape[:dim]), math.prod(shape[dim + 1 :])
        if values.numel():
            for row, part in enumerate(values.reshape(rows, -1)):
                yield (row * shape[dim] + first) * width, part

    def like(self, place: int, values: Tensor) -> Tensor:
        from torch.distributed.tensor import DTensor

        p = self._params[place]
        return DTensor.from_local(values, p.device_mesh, p.placements, shape=p.shape, stride=p.stride())

    def part(self, place: int, tensor: Any) -> Tensor:
        if not hasattr(tensor, "to_local"):
            part: Tensor = tensor.narrow(*self._cuts[place])
            return part
        p = self._params[place]
        if tensor.device_mesh == p.device_mesh and tensor.placements == p.placements:
            return self.local(tensor)
        return self.local(tensor.redistribute(p.device_mesh, p.placements))

    def dot(self, a: Gradient | Sequence[Tensor | None], b: Gradient | Sequence[Tensor | None]) -> float:
        return self._group.total(gradients.dot(a, b))
