"""The round of an update: the training it belongs to, the sets that it probes, and what was measured in it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from .probe import Probe

Measured: TypeAlias = list[tuple[str, str, str, float]]  # (what, role, name, value), in the order of the probes
KINDS = {"train": "dataset", "dev": "dev set"}  # by role


@dataclass(frozen=True)
class Training:
    """The facts of a training before its first step.

    prior: {dataset: probability} of the given mixture.
    dev_weights: {dev set: weight}, by the priority; equal ones if it depends on losses.
    sizes: {dataset: number of examples}; None: unknown.
    draws: examples that the whole training draws; None: unknown.
    probe: of this training, for states that keep vectors as large as the parameters.
    """

    prior: Mapping[str, float]
    dev_weights: Mapping[str, float] = field(default_factory=dict)
    sizes: Mapping[str, float] | None = None
    draws: float | None = None
    probe: "Probe | None" = field(default=None, repr=False)


@dataclass(frozen=True)
class Round:
    """The sets of one round of probes.

    number: rounds before this one; it seeds what is random in the round.
    step: optimizer steps before this round.
    datasets: the datasets that are probed.
    dev_sets: {dev set: weight} of those that are probed. If that is a subset, weights are divided by inclusion
        probabilities, so that on average over a rotation they count as the priority says.
    weights: {dev set: weight} of all dev sets, summing to 1.
    passes: {dataset: passes over it so far}; empty if sizes are not known.
    """

    number: int
    step: int
    datasets: tuple[str, ...]
    dev_sets: Mapping[str, float]
    weights: Mapping[str, float]
    passes: Mapping[str, float] = field(default_factory=dict)


def losses_of(measured: Measured, role: str, names: Sequence[str]) -> dict[str, float]:
    """Returns {name: loss of the probe} of the sets of a role that were probed, in the order of the names."""
    found: dict[str, list[float]] = {}
    for what, of, name, value in measured:
        if of == role and what in ("loss", "uncounted loss"):
            found.setdefault(name, []).append(value)
    # With a step ahead each dataset has dev losses of its own.
    return {name: sum(x / len(found[name]) for x in found[name]) for name in names if name in found}


def notes_of(measured: Measured) -> tuple[str, ...]:
    """Returns sentences about gradients that are zero and losses that do not count."""
    notes = [
        f"the gradient of {KINDS[role]} {name!r} is zero: its cosine counts as 0"
        for role, name in _where(measured, lambda what, value: what == "norm" and value == 0)
    ]
    notes += [
        f"the loss of dev set {name!r} is not finite; its weight is 0"
        for _, name in _where(measured, lambda what, value: what == "uncounted loss" and not math.isfinite(value))
    ]
    if any(what == "direction" for what, *_ in measured):
        notes.append("the gradients of the dev sets sum to zero: rewards count as 0")
    return tuple(notes)


def trouble_of(measured: Measured) -> str | None:
    """Returns the first loss, gradient or reward that is not finite; None: there is none."""
    words = {"ranking": "loss", "norm": "gradient", "loss": "loss", "reward": "reward"}
    faults: dict[tuple[str, str], str] = {}
    for what, word in words.items():
        for key in _where(measured, lambda each, value, what=what: each == what and not math.isfinite(value)):  # type: ignore[misc]
            faults.setdefault(key, word)
    if not faults:
        return None
    (role, name), word = next(iter(faults.items()))
    more = f" (and {len(faults) - 1} more like it)" if len(faults) > 1 else ""
    return f"the {word} of {KINDS[role]} {name!r} is not finite{more}"


def _where(measured: Measured, holds: Callable[[str, float], bool]) -> list[tuple[str, str]]:
    """Returns (role, name) of what was measured, if it holds: dev sets first, by name, whichever rank was first."""
    return sorted({(role, name) for what, role, name, value in measured if holds(what, value)})
