"""The division of an update's gradients among the ranks.

All ranks may compute a gradient together: each its own batches, and the gradients are averaged. Or they divide the
sets: one rank computes all batches of a set, and only numbers, sketches and one sum of gradients are sent.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

import torch
from torch import Tensor

from .._base.ranks import Ranks
from .vectors import Gradient, wide

T = TypeVar("T")
_SKETCHES_AT_ONCE = 64  # sent in one collective


def owners_of(names: Sequence[str], splittable: Iterable[str], batches: int, ranks: int) -> dict[str, int]:
    """Returns {name: the rank that computes all its batches}; the sets left out are computed together.

    As many sets as make full rounds over the ranks go to one rank after another. The rest would keep some ranks
    waiting, so it is computed together unless that takes longer.

    names: the sets of the update, in an order that all ranks have.
    splittable: those that any rank may compute.
    batches: of each set, over all ranks.
    ranks: number of ranks.
    """
    splittable = set(splittable)
    divided = [name for name in names if name in splittable]
    rest = len(divided) % ranks
    if batches > rest * -(-batches // ranks):
        divided = divided[: len(divided) - rest]
    return {name: place % ranks for place, name in enumerate(divided)}


class WorkSplit:
    """One update whose sets are divided among the ranks.

    ranks: the ranks.
    owners: {"dev" or "train": {name: rank}}.
    params: the parameters of the gradients.
    alone: the context in which this rank computes gradients without the others.
    """

    def __init__(
        self,
        ranks: Ranks,
        owners: Mapping[str, Mapping[str, int]],
        params: Sequence[Tensor],
        alone: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._ranks, self._owners, self._params, self._alone = ranks, owners, params, alone

    def of(self, role: str) -> Mapping[str, int]:
        """Returns the owners of the sets of a role that are divided."""
        return self._owners.get(role, {})

    def mine(self, role: str, names: Iterable[str]) -> list[str]:
        return [name for name in names if self.of(role).get(name) == self._ranks.rank]

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Surrounds the work of this rank alone; an error there is raised on all ranks."""
        with self._ranks.raise_on_all_ranks(), self._alone():
            yield

    def gather(self, value: T) -> list[T]:
        """Returns the values of all ranks."""
        return self._ranks.gather(value)

    def gather_dict(self, values: Mapping[str, T]) -> dict[str, T]:
        """Returns {name: value} of all ranks."""
        return {name: value for part in self.gather(dict(values)) for name, value in part.items()}

    def sum(self, gradient: Gradient | None) -> Gradient:
        """Returns the sum of the gradients of all ranks; None stands for zero."""
        parts = [None] * len(self._params) if gradient is None else gradient
        total = [
            torch.zeros_like(p, dtype=wide(p.dtype)) if g is None else g.to(wide(p.dtype))
            for p, g in zip(self._params, parts, strict=True)
        ]
        self._ranks.sum(total)
        return list(total)

    def gather_sketches(self, role: str, mine: Mapping[str, Tensor], blank: Tensor) -> dict[str, Tensor]:
        """Returns {name: sketch} of all sets that are divided; blank: a sketch of zero."""
        sketches: dict[str, Tensor] = {}
        names, size = list(self.of(role)), self._ranks.size
        at_once = max(1, _SKETCHES_AT_ONCE // size) * size
        for start in range(0, len(names), at_once):
            part = names[start : start + at_once]  # whole rounds over the ranks: each has as many, or one less
            own = [mine[name] for name in self.mine(role, part)]
            own += [blank] * (-(-len(part) // size) - len(own))
            gathered = self._ranks.gather_tensors(torch.stack(own))  # [rank, round, bucket]
            for place, name in enumerate(part):
                sketches[name] = gathered[place % size, place // size]
        return sketches
