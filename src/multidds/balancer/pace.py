"""How often a mixture is updated, how large its probes are and how many sets an update looks at, from the share of
training that probes may take. Pure.
"""

import math
from dataclasses import dataclass, replace

WANTED = 50  # updates in a training, before probes grow beyond two batches
USEFUL = 10  # fewer updates than this hardly learn anything
MOST_BATCHES = 8
LEAST_SETS = 32  # datasets and dev sets of an update that looks at a part of them
LEAST_MIXED = 6  # batches of an update whose batches mix datasets
LONGEST = 10_000  # steps between updates, beyond which a part is looked at where the length of training is not known


@dataclass(frozen=True)
class Pace:
    """When updates come, and what they take."""

    every: int  # optimizer steps between updates
    batches: float  # probe batches per dataset and dev set, of a process
    passes: int  # probe batches of an update in all
    updates: float  # in the planned training; infinity where its length is not known
    part: tuple[int, int] | None = None  # datasets and dev sets that an update looks at; None: all
    mixed: tuple[int, int] | None = None  # batches that mix datasets, and dev sets; None: each batch is of one set

    @property
    def share(self) -> float:
        """Probe batches per training batch."""
        return self.passes / self.every

    def __str__(self) -> str:
        many = "" if math.isinf(self.updates) else f", {self.updates:.0f} in all"
        what = "" if self.part is None else f", of {self.part[0]} datasets and {self.part[1]} dev sets at a time"
        return f"an update every {self.every:,} steps{many}, {self.passes} probe batches each ({self.share:.1%}){what}"


def chosen(
    looks: int, every: int | None, steps: int | None, budget: float, batches: float | None, least_batches: int
) -> Pace:
    """The pace of an explicit `every`, or else the one that the budget buys."""
    if every is None:
        return within_budget(looks, steps, budget, batches)
    batches = least_batches if batches is None else batches
    return Pace(every, batches, math.ceil(looks * batches), math.inf if steps is None else steps // every)


def enough(pace: Pace, steps: int | None) -> bool:
    """Whether updates that look at everything come often enough."""
    return pace.every <= LONGEST if steps is None else pace.updates >= USEFUL


def in_parts(datasets: int, dev_sets: int, steps: int | None, budget: float, batches: float) -> Pace:
    """The pace of updates that look at a part of so many datasets and dev sets, `batches` of each.

    As many sets as make 50 updates of the training, but not fewer than 32; at most half of them dev sets, unless there
    are no more datasets.
    """
    sets = max(LEAST_SETS, int(_wished(steps, budget) / batches))
    train = min(datasets, sets - min(dev_sets, sets // 2))
    dev = min(dev_sets, sets - train)
    return _of_part(math.ceil((train + dev) * batches), steps, budget, batches, (train, dev))


def in_mixed_batches(datasets: int, dev_sets: int, steps: int | None, budget: float, size: int) -> Pace:
    """The pace of updates whose batches of so many examples mix datasets: a third is spent on dev sets, by gradients,
    the rest on datasets, by two forward passes, which count as one forward and backward. Every dataset that is looked
    at has at least two examples.
    """
    passes = max(LEAST_MIXED, int(_wished(steps, budget)))
    dev = max(1, passes // 3)
    train = passes - dev
    part = (min(datasets, max(1, train * size // 2)), min(dev_sets, dev * size))
    pace = _of_part(passes, steps, budget, 1, part)
    return replace(pace, mixed=(train, dev))


def _wished(steps: int | None, budget: float) -> float:
    """Probe batches of an update."""
    return budget * LONGEST / USEFUL if steps is None else budget * steps / WANTED


def _of_part(passes: int, steps: int | None, budget: float, batches: float, part: tuple[int, int]) -> Pace:
    every = max(1, math.ceil(passes / budget))
    return Pace(every, batches, passes, math.inf if steps is None else steps // every, part)


def advice(pace: Pace, steps: int | None, budget: float | None) -> str | None:
    """What to say to somebody whose training has too few updates to learn anything from; None: it has enough.

    budget: None where `every` was given.
    """
    if steps is None or pace.updates >= USEFUL:
        return None
    last = " (after its last step, where it changes nothing)" if pace.updates == 1 and pace.every == steps else ""
    found = f"{steps:,} steps have {pace.updates:.0f} update{'' if pace.updates == 1 else 's'}{last}"
    enough = max(1, steps // (2 * USEFUL))
    if budget is None:
        return f"{found} with every={pace.every}; set every={enough} for {steps // enough}"
    return f"{found} within budget={budget:g}; {USEFUL} need budget={pace.passes * USEFUL / steps:.2g}"


def within_budget(looks: int, steps: int | None, budget: float, batches: float | None = None) -> Pace:
    """The pace that a budget buys.

    looks: gradients of an update, n + K. steps: optimizer steps of the whole training, where they are known.
    budget: probe batches per training batch. batches: per dataset and dev set; None: two, so that halves can be
    compared, and more where the budget buys more than enough updates.
    """
    if batches is None:
        affordable = 2 if steps is None else int(budget * steps / (WANTED * looks))
        batches = min(max(2, affordable), MOST_BATCHES)
    every = max(1, math.ceil(looks * batches / budget))
    return Pace(every, batches, math.ceil(looks * batches), math.inf if steps is None else steps // every)
