"""Linear sketches of gradients: a few thousand numbers that keep inner products.

Every coordinate of a parameter goes to one of `buckets` sums with a random sign. Place and sign are computed from the
parameter's name and the coordinate's index, so ranks and shards agree and nothing is stored per coordinate. Linear: the
sketch of an average is the average of the sketches (ranks), the sketch of a concatenation is the sum of the sketches of
its parts (shards).

A block of `buckets` neighbouring coordinates is multiplied by one sequence of random signs, then by a random sign and
rotated by a random amount of its own, and folded onto the sums: one read of the gradient, at memory speed.
The error of a cosine c is about (1 - c^2) / sqrt(buckets).
"""

import hashlib
from collections.abc import Iterator
from typing import TypeAlias

import torch
from torch import Tensor

_Plan: TypeAlias = tuple[list[int], list[list[int]]]  # sizes of slices of the values, and the place of each


class Sketcher:
    """A maker of sketches of one length; equal `buckets` and `seed` make comparable sketches on any machine."""

    def __init__(self, buckets: int | str, seed: int = 0) -> None:
        if not isinstance(buckets, int) or isinstance(buckets, bool) or buckets < 1:
            raise ValueError(
                f"sketch: the number of buckets must be a whole number of at least 1, but it is {buckets!r}."
            )
        self.buckets = buckets
        self._seed = seed
        generator = torch.Generator().manual_seed(seed)
        self._signs = torch.randint(0, 2, (buckets,), generator=generator, device="cpu").mul_(2).sub_(1)
        self._signs_on: dict[tuple[torch.device, torch.dtype], Tensor] = {}
        self._plans: dict[tuple[str, int, int], _Plan] = {}  # of every parameter: making one costs as much as using it

    def new(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
        """Returns a sketch of zero."""
        return torch.zeros(self.buckets, dtype=dtype, device=device)

    def add(self, sketch: Tensor, name: str, values: Tensor, start: int = 0) -> None:
        """Adds one parameter's gradient, or the part of it that begins at flat index `start`, to a sketch in place."""
        values = values.reshape(-1)
        kind = (sketch.device, sketch.dtype)
        if kind not in self._signs_on:
            self._signs_on[kind] = self._signs.to(device=sketch.device, dtype=sketch.dtype)
        signs = self._signs_on[kind]
        sizes, folds = self._plan(name, values.numel(), start)
        for part, (at, first, sign) in zip(torch.split(values, sizes), folds, strict=True):
            length = part.numel()
            if part.dtype != sketch.dtype:
                part = part.to(sketch.dtype)
            sketch[at : at + length].addcmul_(part, signs[first : first + length], value=sign)

    def _plan(self, name: str, count: int, start: int) -> _Plan:
        key = (name, count, start)
        if key not in self._plans:
            folds = list(self._folds(name, count, start))
            self._plans[key] = [size for size, *_ in folds], [fold for _, *fold in folds]
        return self._plans[key]

    def _folds(self, name: str, count: int, start: int) -> Iterator[tuple[int, int, int, int]]:
        """Yields (length, place in the sums, place in the signs, sign) of one slice of the values after another."""
        m, done = self.buckets, 0
        while done < count:
            block, first = divmod(start + done, m)  # the slice is in this block, from this place on
            length = min(m - first, count - done)
            rotation, sign = self._place(name, block)
            bucket = (first + rotation) % m
            head = min(length, m - bucket)  # up to the end of the sums, then again from their beginning
            yield head, bucket, first, sign
            if head < length:
                yield length - head, 0, first + head, sign
            done += length

    def _place(self, name: str, block: int) -> tuple[int, int]:
        """Returns (rotation, sign) of a block."""
        digest = hashlib.blake2b(f"{self._seed}\x1f{name}\x1f{block}".encode(), digest_size=8).digest()
        number = int.from_bytes(digest, "little")
        return (number >> 1) % self.buckets, 1 if number & 1 else -1
