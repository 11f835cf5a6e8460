"""The division of an update's gradients among the ranks.

All ranks may compute a gradient together: each its own batches, and the gradients are averaged. Or they divide the
sets: one rank computes all batches of a set, and only numbers, sketches and one sum of gradients are sent.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from .._base.ranks import Ranks
from .vectors import Gradient, wide

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


def summed(ranks: Ranks, params: Sequence[Tensor], gradient: Gradient | None) -> Gradient:
    """Returns the sum of the gradients of all ranks; None stands for zero."""
    parts = [None] * len(params) if gradient is None else gradient
    total = [
        torch.zeros_like(p, dtype=wide(p.dtype)) if g is None else g.to(wide(p.dtype))
        for p, g in zip(params, parts, strict=True)
    ]
    ranks.sum(total)
    return list(total)


def gathered_sketches(
    ranks: Ranks, owners: Mapping[str, int], mine: Mapping[str, Tensor], blank: Tensor
) -> dict[str, Tensor]:
    """Returns {name: sketch} of all sets that are divided.

    owners: {name: rank}.
    mine: {name: sketch} of the sets of this rank.
    blank: a sketch of zero.
    """
    sketches: dict[str, Tensor] = {}
    names = list(owners)
    at_once = max(1, _SKETCHES_AT_ONCE // ranks.size) * ranks.size
    for start in range(0, len(names), at_once):
        part = names[start : start + at_once]  # whole rounds over the ranks: each has as many, or one less
        own = [mine[name] for name in part if owners[name] == ranks.rank]
        own += [blank] * (-(-len(part) // ranks.size) - len(own))
        gathered = ranks.gather_tensors(torch.stack(own))  # [rank, round, bucket]
        for place, name in enumerate(part):
            sketches[name] = gathered[place % ranks.size, place // ranks.size]
    return sketches
