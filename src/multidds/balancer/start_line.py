"""The line about a training that begins: its plan, updates, cost and memory; what cannot work, and what to set."""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .._base.text import bytes_text, passes_text, percent, short
from .pace import Budget, Pace, advice

SAVED = "updates are in balancer.history; save_history(balancer, folder) keeps them for multidds report"
_MOST_NAMES = 6


@dataclass(frozen=True)
class StartLine:
    """The facts of a training before its first step.

    shares: {dataset: probability} as training starts.
    sizes: {dataset: number of examples}; None: unknown.
    train, dev: {name: source of probe batches}.
    steps, examples_per_step, every: as `Balancer` takes them.
    pace: of the updates.
    plans: whether the rule makes a plan if it can.
    average: steps over which parameters are averaged for probes; 0: they are not.
    vector_bytes: the memory of that average.
    table_bytes: the memory of the tables of an update.
    done: steps before this line, of a training that is resumed.
    goals: {dev set: weight}, if the priority names some.
    """

    shares: Mapping[str, float]
    sizes: Mapping[str, float] | None
    train: Mapping[str, Any]
    dev: Mapping[str, Any]
    steps: int | None
    examples_per_step: float | None
    every: int | Budget
    pace: Pace
    plans: bool
    average: int
    vector_bytes: int
    table_bytes: int
    done: int = 0
    goals: Mapping[str, float] = field(default_factory=dict)

    def text(self, look: str, cost: float | None) -> str:
        """Returns the line.

        look: where to see the updates later.
        cost: time of updates per time of training; None: as their batches are to those of training.
        """
        parts = [self._mixture(), self._dev_sets(), self._updates(cost)]
        parts += [*self._memory(), look] if self.pace.updates else []
        return "; ".join(parts)

    @property
    def level(self) -> int:
        """The level of the log: a warning if something is to be set or may be a mistake."""
        too_few = isinstance(self.every, Budget) and self._advice is not None
        return logging.WARNING if too_few or self._missing or self._shared() else logging.INFO

    @property
    def _missing(self) -> list[str]:
        """What a plan needs and does not have."""
        needed = {
            "sizes (of the mixture)": self.sizes,
            "steps": self.steps,
            "examples_per_step": self.examples_per_step,
        }
        return [word for word, value in needed.items() if self.plans and value is None]

    @property
    def _advice(self) -> str | None:
        return advice(self.pace, self.steps, self.every)

    def _mixture(self) -> str:
        what = "plan" if self.plans and not self._missing and not self.done else "mixture"
        length = "" if self.steps is None or self.done else f" for {self.steps:,} steps"
        shares = self.shares
        largest = sorted(shares, key=lambda name: (-shares[name], name))[:_MOST_NAMES]
        parts = [f"{short(name)} {percent(shares[name])[0]}%{self._passes(name, largest[0])}" for name in largest]
        parts += _more(len(shares) - len(largest))
        no_plan = ""
        if missing := self._missing:
            words = ", ".join(missing[:-1]) + " and " * (len(missing) > 1) + missing[-1]
            no_plan = f"no plan: {words} {'is' if missing == ['examples_per_step'] else 'are'} needed; "
        resumed = f"resumed after step {self.done:,}; " if self.done else ""
        return f"{resumed}{no_plan}{what}{length}: {', '.join(parts)}"

    def _passes(self, name: str, first: str) -> str:
        if self.sizes is None or self.steps is None or self.examples_per_step is None or self.done:
            return ""
        passes = passes_text(self.shares[name] * self.steps * self.examples_per_step / self.sizes[name])
        return f" ({passes} passes)" if name == first else f" ({passes})"

    def _dev_sets(self) -> str:
        shared = self._shared()
        if self.goals and not shared:
            listed = [f"{short(name)} {percent(w)[0]}%" for name, w in list(self.goals.items())[:_MOST_NAMES]]
            return f"by priority for {', '.join([*listed, *_more(len(self.goals) - len(listed))])}"
        if self.dev.keys() == self.shares.keys() and not shared:
            return "a dev set for each dataset"
        marks = {name: " (a dataset has that name)" for name in self.dev if name in self.shares}
        marks |= {name: f" (the same data as the dataset {short(other)})" for name, other in shared.items()}
        names = [*shared, *(name for name in self.dev if name not in shared)]
        listed = [f"{short(name)}{marks.get(name, '')}" for name in names[:_MOST_NAMES]]
        return f"dev sets: {', '.join([*listed, *_more(len(names) - len(listed))])}"

    def _shared(self) -> dict[str, str]:
        """Returns {dev set: dataset} of those that are one object."""
        datasets = {id(_data(source)): name for name, source in self.train.items()}
        found = {name: datasets.get(id(_data(source))) for name, source in self.dev.items()}
        return {name: dataset for name, dataset in found.items() if dataset is not None}

    def _updates(self, cost: float | None) -> str:
        pace, few = self.pace, self._advice
        if not pace.updates:
            return f"no update, so nothing is learned: {few}"
        share = pace.share if cost is None else cost
        time = (
            f"about {percent(share)[0]}% of the time"
            if share <= 1
            else f"about {share:,.0f} times the time of training"
        )
        many = "" if math.isinf(pace.updates) else f"{pace.updates - self.done // pace.every:,.0f} updates, "
        part = "" if pace.part is None else f", of {pace.part[0]:,} datasets and {pace.part[1]:,} dev sets at a time"
        every = "every step" if pace.every == 1 else f"every {pace.every:,} steps"
        line = f"{many}{'one' if many else 'an update'} {every}{part}, {time}"
        return line if few is None else f"{line}: {few}"

    def _memory(self) -> list[str]:
        parts = []
        if self.average:
            parts.append(f"probes at parameters averaged over {self.average} steps ({bytes_text(self.vector_bytes)})")
        if self.table_bytes:
            parts.append(f"tables of {bytes_text(self.table_bytes)}")
        return parts


def _more(number: int) -> list[str]:
    return [f"and {number:,} more"] if number else []


def _data(source: Any) -> Any:
    """Returns the dataset of a loader or of `batches_of`; other sources are their own."""
    return getattr(source, "dataset", source)
