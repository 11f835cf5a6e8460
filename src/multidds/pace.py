"""How often a mixture is updated and how large its probes are, from the share of training that they may take. Pure."""

import math
from dataclasses import dataclass

WANTED = 50  # updates in a training, before probes grow beyond two batches
USEFUL = 10  # fewer updates than this hardly learn anything
MOST_BATCHES = 8


@dataclass(frozen=True)
class Pace:
    """When updates come, and what they take."""

    every: int  # optimizer steps between updates
    batches: float  # probe batches per dataset and dev set, of a process
    passes: int  # probe batches of an update in all
    updates: float  # in the planned training; infinity where its length is not known

    @property
    def share(self) -> float:
        """Probe batches per training batch."""
        return self.passes / self.every

    def __str__(self) -> str:
        many = "" if math.isinf(self.updates) else f", {self.updates:.0f} in all"
        return f"an update every {self.every:,} steps{many}, {self.passes} probe batches each ({self.share:.1%})"


def chosen(
    looks: int, every: int | None, steps: int | None, budget: float, batches: float | None, least_batches: int
) -> Pace:
    """The pace of an explicit `every`, or else the one that the budget buys."""
    if every is None:
        return within_budget(looks, steps, budget, batches)
    batches = least_batches if batches is None else batches
    return Pace(every, batches, math.ceil(looks * batches), math.inf if steps is None else steps // every)


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
