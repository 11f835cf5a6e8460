"""The network that scores an example by numbers that describe it: features that the caller gives, and its own loss.

`Standard` keeps the running mean and variance by which the numbers are made comparable; it is updated with the scorer,
never in between, so that a score depends on nothing but the state and the example.
"""

import math

import torch
from torch import Tensor, nn

from .._base.randomness import derive

_HIDDEN = 16
_BOUND = 4.0  # of a score: weights within a batch differ by e^8 at most
_FARTHEST = 5.0  # standard deviations: an outlier says no more than that it is one


class Standard(nn.Module):
    """Running mean and variance of F numbers: an average with weights 1, decay, decay^2, ... from the newest back."""

    total: Tensor
    first: Tensor
    second: Tensor

    def __init__(self, count: int, decay: float = 0.98) -> None:
        super().__init__()
        self.decay = decay
        self.register_buffer("total", torch.zeros((), dtype=torch.float64))  # examples, discounted
        self.register_buffer("first", torch.zeros(count, dtype=torch.float64))  # sums of the numbers
        self.register_buffer("second", torch.zeros(count, dtype=torch.float64))  # and of their squares

    def add(self, sums: Tensor) -> None:
        """Of one batch, as `sums_of` returns them, over all processes."""
        self.total.mul_(self.decay).add_(sums[0, 0])
        self.first.mul_(self.decay).add_(sums[1])
        self.second.mul_(self.decay).add_(sums[2])

    def forward(self, rows: Tensor) -> Tensor:  # [B, F] -> [B, F]
        if self.total == 0:
            return rows.double() * 0
        mean = self.first / self.total
        variance = self.second / self.total - mean**2
        rows = rows.double() - mean
        # A number that is the same everywhere says nothing: rounding errors must not be blown up.
        told = variance > 1e-12 * (self.second / self.total)
        return (rows * told / variance.where(told, 1).sqrt()).clamp(-_FARTHEST, _FARTHEST)


def sums_of(rows: Tensor) -> Tensor:
    """How many rows, their sums, the sums of their squares. # [3, F]"""
    rows = rows.double()
    return torch.stack([torch.full_like(rows[0], len(rows)), rows.sum(0), (rows**2).sum(0)])


class FeatureNetwork(nn.Module):
    """One hidden layer over standardised numbers. It begins with the score 0 for all; 0 is the middle of all examples.

    updates: how many it has learned from.
    """

    middle: Tensor
    updates: Tensor

    def __init__(self, count: int, seed: int) -> None:
        super().__init__()
        self.standard = Standard(count)
        generator = torch.Generator().manual_seed(derive(seed, "network"))
        self.inner = nn.Parameter(torch.randn(count, _HIDDEN, generator=generator) / math.sqrt(count))
        self.shift = nn.Parameter(torch.zeros(_HIDDEN))
        self.outer = nn.Parameter(torch.zeros(_HIDDEN))
        self.register_buffer("middle", torch.zeros(()))  # the median of scores, as they were before it was taken off
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    def learned(self, rows: Tensor) -> None:
        """After an update: count it, and let 0 be the middle of the scores of these examples. # [M, F]"""
        with torch.no_grad():
            self.updates += 1
            self.middle += self(rows).median()

    def forward(self, rows: Tensor) -> Tensor:  # [B, F] -> [B]
        # In float64: a score must not depend, by its last bits, on how many others are computed with it.
        hidden = torch.tanh(self.standard(rows) @ self.inner.double() + self.shift)
        return (_BOUND * torch.tanh(hidden @ self.outer.double() / _BOUND) - self.middle).to(self.inner.dtype)
