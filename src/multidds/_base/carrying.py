"""What is carried over when a training goes on with datasets or dev sets added or left out. Pure.

A new dataset starts at its prior share; the others keep what they learned, relative to each other.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

# What a refusal of other data ends with.
HINT = "Where the data were changed on purpose, load_state_dict(state, changed=True) goes on with them."
# The same from a callback, whose user calls no load_state_dict.
CALLBACK_HINT = "Where the data were changed on purpose, changed_data=True goes on with them."


@contextmanager
def advising(hint: str) -> Iterator[None]:
    """A refusal of other data in the block ends with this hint instead."""
    try:
        yield
    except ValueError as error:
        if HINT not in str(error):
            raise
        raise ValueError(str(error).replace(HINT, hint)) from None


def carried_shares(old: Mapping[str, float], own: Mapping[str, float]) -> dict[str, float]:
    """{dataset: share} of the datasets there are now. old: of those there were. own: what they would start with."""
    if old.keys() == own.keys():  # bit for bit
        return {name: old[name] for name in own}
    new = sum(share for name, share in own.items() if name not in old)
    kept = sum(old[name] for name in own if name in old)
    if not kept > 0:
        raise ValueError("Balancer: none of the datasets of the state is still there; begin a new training.")
    return {name: old[name] / kept * (1 - new) if name in old else share for name, share in own.items()}


def places_of(names: Sequence[str], before: Sequence[str]) -> list[int | None]:
    """Where each name was before; None: it is new."""
    at = {name: place for place, name in enumerate(before)}
    return [at.get(name) for name in names]


def carried(values: Sequence[T], places: Sequence[int | None], new: T) -> list[T]:
    """The values at their new places; `new` where there was none."""
    return [new if place is None else values[place] for place in places]
