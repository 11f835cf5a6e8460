"""New mixtures for the workers of a loader, through shared memory.

A worker has a copy of the draws, made when it was started. It finds here the mixtures that came later, and the
positions at which they take effect.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..mixture.mixture import Mixture
from .draws import Draws


class SharedMixtures:
    """The last `capacity` mixtures and the positions at which they take effect; the process that learns adds them."""

    def __init__(self, names: Sequence[str], capacity: int) -> None:
        self._names = tuple(names)
        self._rows = shared_zeros(capacity, 1 + len(names), dtype=torch.float64)  # a ring of [position, *shares]
        self._total = shared_zeros(1, dtype=torch.int64)

    def add(self, position: int, probabilities: Mapping[str, float]) -> int:
        """Adds a mixture, and returns how many there have been with it."""
        total = int(self._total.item())
        row = [float(position), *(probabilities[name] for name in self._names)]
        self._rows[total % len(self._rows)] = torch.tensor(row, dtype=torch.float64)
        self._total += 1  # last, so that a reader never sees half a row
        return total + 1

    def bring_up_to_date(self, draws: Draws, used: int) -> int:
        """Lets draws that use the first `used` mixtures use the later ones, and returns how many they use then."""
        total = int(self._total.item())
        assert total - used <= len(self._rows), "a reader fell behind the mixtures that are kept"
        for number in range(used, total):
            start, *values = self._rows[number % len(self._rows)].tolist()
            draws.use(Mixture(dict(zip(self._names, values, strict=True))), int(start))
        return total


def shared_zeros(*shape: int, dtype: torch.dtype) -> Tensor:
    """Returns zeros in memory that all processes of a loader share."""
    return torch.zeros(shape, dtype=dtype, device="cpu").share_memory_()  # type: ignore[no-untyped-call,no-any-return]
