"""Priorities: pure functions from dev losses to weights of the dev sets that sum to 1. Section 5.4 of the paper.

`low` serves the dev sets that do worst, `high` those that do best; perplexity grows with the loss, so losses rank them.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

Priority: TypeAlias = str | Mapping[str, float] | Callable[[dict[str, float]], Mapping[str, float]]


_MOST = 1e100  # of a weight, so that sums are finite


def regular(dev_losses: Mapping[str, float]) -> dict[str, float]:
    """Gives every dev set of dev_losses, {dev set: loss}, the same weight."""
    return dict.fromkeys(dev_losses, 1.0 / len(dev_losses))


def low(dev_losses: Mapping[str, float]) -> dict[str, float]:
    """Gives equal weights to the half (rounded up) of the dev sets with the highest dev_losses; ties by name."""
    return _on_half(sorted(dev_losses, key=lambda name: (-dev_losses[name], name)))


def high(dev_losses: Mapping[str, float]) -> dict[str, float]:
    """Gives equal weights to the half (rounded up) of the dev sets with the lowest dev_losses; ties by name."""
    return _on_half(sorted(dev_losses, key=lambda name: (dev_losses[name], name)))


NAMED = {"regular": regular, "low": low, "high": high}


def check(priority: Priority, names: Iterable[str]) -> None:
    """Refuses a priority that can be refused before any loss is there; names: the dev sets."""
    if isinstance(priority, str):
        if priority not in NAMED:
            raise ValueError(
                f"priority: expected {', '.join(map(repr, NAMED))}, weights or a function, got {priority!r}."
            )
    elif isinstance(priority, Mapping):
        _normalised(priority, tuple(names))
    elif not callable(priority):
        raise TypeError(f"priority: expected a name, weights or a function, got {type(priority).__name__}.")


def needs_losses(priority: Priority) -> bool:
    """Returns whether the weights under this priority depend on dev losses."""
    return callable(priority) or priority in ("low", "high")


def weights_of(priority: Priority, dev_losses: Mapping[str, float]) -> dict[str, float]:
    """Returns the weight of every dev set under a priority: a name, a dict or a function of dev_losses."""
    if isinstance(priority, str):
        return NAMED[priority](dev_losses)
    given = priority if isinstance(priority, Mapping) else priority(dict(dev_losses))
    if not isinstance(given, Mapping):
        raise TypeError(
            f"priority: the function must return {{dev set: weight}}, but it returned {type(given).__name__}."
        )
    return _normalised(given, tuple(dev_losses))


def _on_half(ranked: list[str]) -> dict[str, float]:
    half = math.ceil(len(ranked) / 2)
    return {name: 1.0 / half if place < half else 0.0 for place, name in enumerate(ranked)}


def _normalised(weights: Mapping[str, float], names: tuple[str, ...]) -> dict[str, float]:
    known = set(names)
    for name, weight in weights.items():
        if name not in known:
            raise ValueError(f"priority: there is no dev set {name!r}; there are {', '.join(map(repr, names))}.")
        if not (hasattr(weight, "__float__") and 0 <= weight < _MOST):
            raise ValueError(f"priority: weights must be numbers from 0 to below 1e100, but {name!r} is {weight!r}.")
    total = math.fsum(weights.values())
    if total == 0:
        raise ValueError("priority: at least one dev set needs a weight above 0.")
    return {name: weights.get(name, 0.0) / total for name in names}
