"""Which rank takes which gradients of an update, and what the ranks then tell each other.

All ranks may take a gradient together: each its own batches, and the gradients are averaged. Or they share sets out:
one rank takes all batches of a set, and only numbers, sketches and one sum of gradients go over the wire.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

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


def alike_on_all(
    replicas: Ranks,
    names: Mapping[str, Sequence[str]],
    example: Callable[[str, str], Any],
    trial: Callable[[str, str], Any],
    talks: Callable[[str, str, Any], bool],
) -> dict[str, set[str]]:
    """{role: the sets that any rank can take}: all ranks draw the same from them, and no loss needs the other ranks.

    names: {role: sets}. example: (role, name) -> something to compare. trial: (role, name) -> a batch. talks: (role,
    name, batch) -> whether the loss of the batch needs other ranks; asked for one set of each role.
    """
    with replicas.raise_on_all_ranks():
        mine = {role: {name: digest(example(role, name)) for name in sets} for role, sets in names.items()}
    everyones = replicas.gathered(mine)
    alike = {
        role: {name for name in of if of[name] and all(each[role][name] == of[name] for each in everyones)}
        for role, of in mine.items()
    }
    heard = False
    with replicas.raise_on_all_ranks():
        for role, sets in names.items():
            for first in [name for name in sets if name in alike[role]][:1]:
                heard |= talks(role, first, trial(role, first))
    return {role: set() for role in names} if any(replicas.gathered(heard)) else alike


def digest(value: Any) -> str | None:
    """A few letters that are equal for equal values; None where it cannot be told what is in them, or nothing is."""
    if value is None:
        return None
    found = hashlib.blake2b(digest_size=16)
    try:
        for part in _contents(value):
            found.update(part)
    except (TypeError, ValueError, RuntimeError, RecursionError):
        return None
    return found.hexdigest()


def _contents(value: Any) -> Iterator[bytes]:
    if isinstance(value, Tensor):
        value = value.detach().cpu().contiguous()
        yield f"tensor {value.dtype} {tuple(value.shape)}".encode()
        yield value.reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
    elif hasattr(value, "tobytes") and hasattr(value, "dtype"):
        yield f"array {value.dtype} {value.shape}".encode() + value.tobytes()
    elif isinstance(value, Mapping):
        yield f"mapping {len(value)}".encode()
        for key, item in value.items():
            yield from _contents(key)
            yield from _contents(item)
    elif isinstance(value, (list, tuple)):
        yield f"list {len(value)}".encode()
        for item in value:
            yield from _contents(item)
    elif value is None or isinstance(value, (str, bytes, int, float)):
        yield f"{type(value).__name__} {value!r} ".encode("utf-8", "surrogatepass")
    elif hasattr(value, "__dict__"):
        yield type(value).__name__.encode()
        yield from _contents(vars(value))
    else:
        raise TypeError


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
