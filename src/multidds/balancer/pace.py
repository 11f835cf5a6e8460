"""The pace of updates: their steps and their probes, from the share of training that they may take.

In a training with fewer than 50 updates their distances grow. Gradients differ most early, when a mixture can still
change most.
"""

import math
from dataclasses import dataclass, replace

from .._base.checks import check_whole
from ..rules.rule import Rule

_WANTED_UPDATES = 50  # in a training, before probes grow beyond two batches
_MOST_UPDATES = 500  # of a training: more cost more in files and logs than they bring
_MAX_BATCHES = 8  # probe batches of a set that a budget buys at most
MIN_SETS = 32  # datasets and dev sets of an update that probes a part of them
_MAX_STEPS = 10_000  # between updates; beyond, a part is probed if the length of training is not known
_FIRST, _LAST = 0.07, 0.85  # parts of the training before the first and the last of updates at growing distances


@dataclass(frozen=True)
class Budget:
    """The share of training that probes may take.

    share: the examples of probes over those of training, in a long training. Default 0.02: two per cent.
    at_least: updates that a short training makes nevertheless. Default 7: fewer hardly learn anything.
    at_most: the share that they may take then. Default 0.15.

    A training of fewer than 50 updates makes them at growing distances, the first after 7% of its steps.

    If there are many datasets and dev sets, each update probes a part of them, in rotation, and the evidence of the
    others is kept (docs/many-datasets.md).
    """

    share: float = 0.02
    at_least: int = 7
    at_most: float = 0.15

    def __post_init__(self) -> None:
        for word in ("share", "at_most"):
            if not 0 < getattr(self, word) <= 100:
                raise ValueError(
                    f"Budget: {word} must be positive, a share of the training, but it is {getattr(self, word)}."
                )
        check_whole("Budget", at_least=self.at_least)


@dataclass(frozen=True)
class Pace:
    """The steps between updates, and the probes of an update."""

    every: int  # optimizer steps between updates, on average
    batches: float  # probe batches per dataset and dev set, of a process
    passes: int  # probe batches of an update in all
    updates: float  # in the planned training; infinity if its length is not known
    cost: float = 1.0  # of a probe batch, in optimizer steps
    part: tuple[int, int] | None = None  # datasets and dev sets that an update probes; None: all
    at: tuple[int, ...] = ()  # steps of the updates, at growing distances; empty: the distances are equal

    def until(self, done: int) -> int:
        """Returns the steps from step `done` to the next update. After the last planned one its distance is kept."""
        if not self.at:
            return self.every - done % self.every
        if later := [step for step in self.at if step > done]:
            return later[0] - done
        before, last = (0, *self.at)[-2:]
        return last - before - (done - last) % (last - before)

    def left(self, done: int) -> float:
        """Returns the number of updates of the planned training after step `done`."""
        return sum(step > done for step in self.at) if self.at else max(0, self.updates - done // self.every)

    @property
    def share(self) -> float:
        """The share of training that probes take."""
        return self.passes * self.cost / self.every


def pace_of(
    datasets: int,
    dev_sets: int,
    every: int | Budget,
    steps: int | None,
    batches: float | None,
    rule: Rule,
    cost: float = 1.0,
) -> Pace:
    """Returns the pace of a training.

    every: steps between updates, or the budget from which they follow.
    steps: of the whole training, if known.
    batches: of each set, of a process; None: chosen.
    rule: what is probed.
    cost: of a probe batch, in optimizer steps.
    """
    gradients = datasets * (1 + dev_sets) if rule.steps_ahead else datasets + dev_sets
    least = 2 if rule.halves else 1
    if not isinstance(every, Budget):
        batches = least if batches is None else batches
        return Pace(every, batches, math.ceil(gradients * batches), _updates(steps, every), cost)
    # From now on in probe batches per optimizer step.
    budget = replace(every, share=min(every.share / cost, 100.0), at_most=min(every.at_most / cost, 100.0))
    pace = _of_everything(gradients, steps, budget.share, batches)
    if rule.subsets and gradients > MIN_SETS and not _is_enough(pace, steps, budget):
        pace = _of_a_part(datasets, dev_sets, steps, budget.share, least if batches is None else batches)
    if steps is not None and pace.part is None:
        pace = _at_growing_distances(pace, gradients, steps, budget, batches)
    elif steps is not None and not _is_enough(pace, steps, budget):
        apart = max(steps // (budget.at_least + 1), math.ceil(pace.passes / budget.at_most), 1)
        pace = replace(pace, every=apart, updates=_updates(steps, apart))
    return replace(pace, cost=cost)


def _of_everything(gradients: int, steps: int | None, share: float, batches: float | None) -> Pace:
    """Returns the pace of updates that probe everything.

    batches: None: two, so that halves can be compared, and more if the budget buys more than enough updates.
    """
    if batches is None:
        affordable = 2 if steps is None else int(share * steps / (_WANTED_UPDATES * gradients))
        batches = min(max(2, affordable), _MAX_BATCHES)
    every = max(1, math.ceil(gradients * batches / share), (steps or 0) // _MOST_UPDATES)
    return Pace(every, batches, math.ceil(gradients * batches), _updates(steps, every))


def _at_growing_distances(pace: Pace, gradients: int, steps: int, budget: Budget, batches: float | None) -> Pace:
    """Returns the pace of a training with fewer than 50 updates; that of a longer one as it is.

    A short training makes `at_least` updates, with as many probe batches as `at_most` buys.
    """
    if pace.updates >= _WANTED_UPDATES:
        return pace
    updates = int(pace.updates)
    if updates < budget.at_least:
        affordable = budget.at_most * steps / gradients  # batches of each set, in all updates
        updates = min(budget.at_least, int(affordable / (batches or 2)), steps)
        if not updates:
            return replace(pace, every=steps + 1, updates=0)
        batches = batches or min(int(affordable / updates), _MAX_BATCHES)
        pace = replace(pace, batches=batches, passes=math.ceil(gradients * batches))
    growth = (_LAST / _FIRST) ** (1 / max(updates - 1, 1))
    at: list[int] = []
    for number in range(updates):
        at.append(max(round(_FIRST * steps * growth**number), at[-1] + 1 if at else 1))
    return replace(pace, every=steps // updates, updates=updates, at=tuple(at))


def _of_a_part(datasets: int, dev_sets: int, steps: int | None, share: float, batches: float) -> Pace:
    """Returns the pace of updates that probe a part, `batches` of each set.

    As many sets as make 50 updates of the training, but not fewer than 32; at most half of them dev sets, unless there
    are no more datasets.
    """
    sets = max(MIN_SETS, int(_batches_per_update(steps, share) / batches))
    train = min(datasets, sets - min(dev_sets, sets // 2))
    dev = min(dev_sets, sets - train)
    passes = math.ceil((train + dev) * batches)
    every = max(1, math.ceil(passes / share))
    return Pace(every, batches, passes, _updates(steps, every), part=(train, dev))


def _is_enough(pace: Pace, steps: int | None, budget: Budget) -> bool:
    return pace.every <= _MAX_STEPS if steps is None else pace.updates >= budget.at_least


def _batches_per_update(steps: int | None, share: float) -> float:
    return share * _MAX_STEPS / Budget().at_least if steps is None else share * steps / _WANTED_UPDATES


def _updates(steps: int | None, every: int) -> float:
    return math.inf if steps is None else steps // every
