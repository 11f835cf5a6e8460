"""New mixtures for readers in other processes, through shared memory.

The workers of a loader have copies of what draws, made when they began. Here they find the mixtures that came later,
and where these begin to rule; what they draw with them is `draws`'.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..mixture.mixture import Mixture
from .draws import Draws


class SharedMixtures:
    """The last `capacity` mixtures and the positions from which on they rule; the process that learns adds them."""

    def __init__(self, names: Sequence[str], capacity: int) -> None:
        self._names = tuple(names)
        self._rows = shared(capacity, 1 + len(names), dtype=torch.float64)  # a ring
        self._total = shared(1, dtype=torch.int64)

    def add(self, position: int, probabilities: Mapping[str, float]) -> int:
        """How many there have been, this one included."""
        total = int(self._total.item())
        row = [float(position), *(probabilities[name] for name in self._names)]
        self._rows[total % len(self._rows)] = torch.tensor(row, dtype=torch.float64)
        self._total += 1  # last, so that a reader never sees half a row
        return total + 1

    def tell(self, draws: Draws, known: int) -> int:
        """Tell draws that know the first `known` of the others; how many they know then."""
        total = int(self._total.item())
        assert total - known <= len(self._rows), "a reader fell behind the mixtures that are kept"
        for number in range(known, total):
            start, *values = self._rows[number % len(self._rows)].tolist()
            draws.rule(Mixture(dict(zip(self._names, values, strict=True))), int(start))
        return total


def shared(*shape: int, dtype: torch.dtype) -> Tensor:
    """Zeros that all processes of a loader see."""
    return torch.zeros(shape, dtype=dtype, device="cpu").share_memory_()  # type: ignore[no-untyped-call,no-any-return]
