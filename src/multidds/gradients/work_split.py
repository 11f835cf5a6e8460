"""Which rank takes which gradients of an update, and what the ranks then tell each other.

All ranks may take a gradient together: each its own batches, and the gradients are averaged. Or they share sets out:
one rank takes all batches of a set, and only numbers, sketches and one sum of gradients go over the wire.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

import torch
from torch import Tensor

from .._base.ranks import Ranks
from .vectors import Gradient, wide

T = TypeVar("T")
_AT_ONCE = 64  # sketches that are sent together


def owners_of(names: Sequence[str], alike: Iterable[str], batches: int, ranks: int) -> dict[str, int]:
    """{name: the rank that takes all its batches}; the sets that are left out are taken together.

    names: the sets to be taken, in an order that all ranks have. alike: those that are the same on every rank. batches:
    of each set, over all ranks. As many sets as make full rounds over the ranks go to one rank after another. What is
    left would keep some ranks waiting, so it is taken together unless that takes longer.
    """
    alike = set(alike)
    shared = [name for name in names if name in alike]
    rest = len(shared) % ranks
    if batches > rest * -(-batches // ranks):
        shared = shared[: len(shared) - rest]
    return {name: place % ranks for place, name in enumerate(shared)}


class WorkSplit:
    """One update that the ranks have shared out.

    replicas: the ranks. owners: {"dev" or "train": {name: rank}}. params: what the gradients are of. alone: the context
    in which this rank takes gradients without the others.
    """

    def __init__(
        self,
        replicas: Ranks,
        owners: Mapping[str, Mapping[str, int]],
        params: Sequence[Tensor],
        alone: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._replicas, self._owners, self._params, self._alone = replicas, owners, params, alone

    def of(self, role: str) -> Mapping[str, int]:
        """The owners of the sets that are shared out."""
        return self._owners.get(role, {})

    def mine(self, role: str, names: Iterable[str]) -> list[str]:
        return [name for name in names if self.of(role).get(name) == self._replicas.rank]

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Around what this rank does alone; an error there is everyone's."""
        with self._replicas.raise_on_all_ranks(), self._alone():
            yield

    def gathered(self, value: T) -> list[T]:
        """The values of all ranks."""
        return self._replicas.gathered(value)

    def joined(self, values: Mapping[str, T]) -> dict[str, T]:
        """{name: value} of all ranks."""
        return {name: value for part in self.gathered(dict(values)) for name, value in part.items()}

    def summed(self, gradient: Gradient | None) -> Gradient:
        """The sum of the gradients of all ranks; None stands for zero."""
        parts = [None] * len(self._params) if gradient is None else gradient
        total = [
            torch.zeros_like(p, dtype=wide(p.dtype)) if g is None else g.to(wide(p.dtype))
            for p, g in zip(self._params, parts, strict=True)
        ]
        self._replicas.sum(total)
        return list(total)

    def sketches(self, role: str, mine: Mapping[str, Tensor], blank: Tensor) -> dict[str, Tensor]:
        """{name: sketch} of all that were shared out; blank: a sketch of zero."""
        found: dict[str, Tensor] = {}
        names = list(self.of(role))
        at_once = max(1, _AT_ONCE // self._replicas.size) * self._replicas.size
        for start in range(0, len(names), at_once):
            part = names[start : start + at_once]  # whole rounds over the ranks: each has as many, or one less
            own = [mine[name] for name in self.mine(role, part)]
            own += [blank] * (-(-len(part) // self._replicas.size) - len(own))
            stacked = self._replicas.stacked(torch.stack(own))  # [rank, round, bucket]
            for place, name in enumerate(part):
                found[name] = stacked[place % self._replicas.size, place // self._replicas.size]
        return found
