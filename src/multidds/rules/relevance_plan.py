"""The default rule: the best mixture for this training, with relevance and repetition as measured so far.

    maximise over P:   sum_k w_k log sum_i A_ki D_i(N P_i)^(1/2)            (`mixture.planned`)

A_ki, the relevance of dataset i to dev set k, begins as the relevance by names and follows the gradients as far as
their evidence goes (`relevance_memory`). The worth of repeated examples in D follows the losses (`repetition_of`). The
plan is for the whole training at every update: it does not make up for what was drawn.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from .._base.state import Checks, not_negative, sums_to_one
from .._base.text import passes_text, short, worth_text
from ..mixture.planned import OTHERS, NamedRelevance, most_passes, planned
from ..probes.probe import Probe
from ..probes.round import Round, Training
from .relevance_memory import RelevanceMemory, relevance_by_names
from .rule import Findings, Relevance, Rule, State

_AT_LIMIT = 1e-6  # of the most passes: nearer than that is at the limit
_MOST_NAMES = 3
_ENDLESS = 1e30  # examples of a dataset whose size is not given
MAX_PAIRS = 2**16  # of datasets and dev sets whose relevance is kept one by one; beyond, to all dev sets together
_TOGETHER = "all dev sets"
_GAP = 0.2  # nats after R passes
_PRIOR_PASSES = 15.0  # for which the prior counts in the common value
_RECENT = 4  # updates over which the worth of one more pass and of repetition is measured
_COMMON_PASSES = 60.0  # for which the common value counts in that of a dataset


@dataclass(frozen=True)
class RelevancePlan(Rule):
    """The default rule: the plan by names at first, and by measured relevance more and more. Holds settings only.

    plan: False: training starts at the given mixture, and relevance moves it from there, as if nothing were ever
        repeated. Default True: it starts at the plan by names, if sizes and length are known.
    repetition: passes after which a repeated example is worth 1/e of a new one. Default None: measured, by the gap
        between losses on seen and unseen examples. Give a number if something other than the loss counts: BLEU goes on
        rising when the loss no longer falls, and 40 served it best.
    move: False: watches only. The mixture stays as it is given, and every update says what it would be: `proposed`.
    """

    plan: bool = True
    repetition: float | None = None
    move: bool = True

    halves: ClassVar[bool] = True
    subsets: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.repetition is not None and not self.repetition > 0:
            raise ValueError(f"RelevancePlan: repetition must be positive, but it is {self.repetition}.")

    def start(self, training: Training) -> "PlanState":
        """Returns the state for one training."""
        return PlanState(training if self.plan else replace(training, sizes=None), self.repetition)


class PlanState(State):
    """The evidence for one mixture, and the plan that follows from it."""

    CHECKS: ClassVar[Checks] = {
        **State.CHECKS,
        "weights": sums_to_one,
        "updates": not_negative,
        "gap_passes": not_negative,
    }

    def __init__(self, training: Training, repetition: float | None) -> None:
        self._names = sorted(training.prior)
        self._dev_names = sorted(training.dev_weights)
        self._start = np.array([training.prior[name] for name in self._names])
        # Without sizes or length, none is ever repeated, and the given mixture is the plan before any evidence.
        self._sizes = self._start * _ENDLESS
        self._draws = 1.0
        self._scale = np.sqrt(self._start)  # relevance of which the plan is the given mixture
        self._planned = False
        if training.sizes is not None and training.draws is not None:
            self._sizes = np.array([training.sizes[name] for name in self._names], dtype=np.float64)
            self._draws = training.draws
            self._scale = np.ones(len(self._names))
            self._planned = True
        self._assumed = repetition
        self._in_pairs = len(self._names) * len(self._dev_names) <= MAX_PAIRS
        rows = self._dev_names if self._in_pairs else [_TOGETHER]
        prior = np.ones((len(rows), len(self._names)))
        if self._planned and self._in_pairs:
            prior = relevance_by_names(self._names, self._dev_names)
        self.updates = 0
        self.seen, self.fresh = (np.zeros((_RECENT, len(self._names))) for _ in range(2))  # inner products
        self.weights = np.array([training.dev_weights[name] for name in self._dev_names])
        self.memory = RelevanceMemory(self._names, rows, prior)
        self.gaps, self.gap_passes = (np.zeros((_RECENT, len(self._names))) for _ in range(2))  # in nats; their passes
        self.mixture = dict(zip(self._names, self._start.tolist(), strict=True))
        if self._planned:
            self.mixture = self._plan()

    def update(self, probe: Probe, round_: Round) -> Findings:
        table = probe.table(round_)
        rewards, errors = table.mean_cosines(round_.dev_sets)
        self.weights = np.array([round_.weights[name] for name in self._dev_names])
        self.memory.add((table if self._in_pairs else table.joint(_TOGETHER, round_.dev_sets)).differences())
        for name, (seen, fresh) in table.worth_terms().items():
            place = self.updates % _RECENT, self._names.index(name)
            self.seen[place], self.fresh[place] = seen, fresh
        self._measure_repetition(table.train_losses, table.dev_losses, round_.passes)
        self.updates += 1
        self.mixture = self._plan()
        notes = (*self._held(), *self._exhausted(round_.passes))
        return Findings(rewards, errors, notes=notes)

    def _measure_repetition(
        self, train: Mapping[str, float], dev: Mapping[str, float], passes: Mapping[str, float]
    ) -> None:
        """Takes the gaps of an update. train, dev: {name: loss of the probe}; passes: {dataset: passes so far}."""
        for i, name in enumerate(self._names):
            if name in train and name in dev and passes.get(name, 0.0) > 0 and math.isfinite(dev[name] - train[name]):
                place = self.updates % _RECENT, i
                self.gaps[place], self.gap_passes[place] = dev[name] - train[name], passes[name]

    def _plan(self) -> dict[str, float]:
        counted = self.weights > 0
        shares = planned(self._sizes, self._draws, self.weights[counted], self._matrix(counted), self._worth)
        return dict(zip(self._names, shares.tolist(), strict=True))

    @property
    def _worth(self) -> Any:
        """The passes after which a repeated example is worth 1/e of a new one: assumed, or measured so far."""
        if self._assumed is not None:
            return self._assumed
        measured = np.maximum((self.gap_passes > 0).sum(axis=0), 1)
        gaps, passes = (each.sum(axis=0) / measured for each in (self.gaps, self.gap_passes))
        return repetition_of(np.maximum(gaps, 0.0), passes)

    def _matrix(self, counted: Any) -> Any:
        relevance = np.maximum(self.memory.posterior()[0], 0.0) * self._scale
        if self._in_pairs:
            return relevance[counted]
        places = {name: i for i, name in enumerate(self._names)}
        own = np.array([places.get(name, -1) for name in self._dev_names])[counted]
        return NamedRelevance(own, OTHERS if self._planned else 1.0, relevance[0])

    @property
    def signal(self) -> float:
        """The share of the plan's relevance that is measured, 0 to 1; NaN before the first update."""
        if not self.updates:
            return math.nan
        return self.memory.measured(self.weights if self._in_pairs else np.ones(1))

    def relevance(self) -> Relevance | None:
        """Returns {dev set: {dataset: (relevance, standard error)}}; None if it is known per dataset only."""
        if not self._in_pairs:
            return None
        values, errors = (each.tolist() for each in self.memory.posterior())
        return {
            dev: dict(zip(self._names, zip(values[k], errors[k], strict=True), strict=True))
            for k, dev in enumerate(self._dev_names)
        }

    def worth(self) -> dict[str, tuple[float, float]]:
        """Returns {dataset: (worth of one more pass in new examples, its standard error)} by the last four updates.

        Of datasets with a dev set of their name. 1: as good as new; 0: nothing more to teach; below 0: it harms.
        """
        found = {}
        for i, name in enumerate(self._names):
            measured = self.fresh[:, i] != 0
            seen, fresh = self.seen[measured, i], self.fresh[measured, i]
            if fresh.sum() > 0:
                found[name] = float(seen.sum() / fresh.sum()), _ratio_error(seen, fresh)
        return found

    def _exhausted(self, passes: Mapping[str, float]) -> tuple[str, ...]:
        """Returns a sentence about each dataset of which one more pass is of no use."""
        words = {name: worth_text(*worth, passes.get(name, 0.0)) for name, worth in self.worth().items()}
        return tuple(f"{short(name)} {said}" for name, said in words.items() if said)

    def held(self) -> dict[str, float]:
        """Returns {dataset: passes} of those from which the plan would draw more often if it were not for passes."""
        passes = np.array(list(self.mixture.values())) * self._draws / self._sizes
        held = passes > most_passes(self._sizes, self._draws, self._worth) * (1 - _AT_LIMIT)
        return {self._names[i]: float(passes[i]) for i in np.flatnonzero(held)}

    def _held(self) -> tuple[str, ...]:
        """Returns a sentence about the datasets that are held."""
        held = self.held()
        if not held:
            return ()
        names = [short(name) for name in held]
        listed = ", ".join(names[:_MOST_NAMES]) + (f" and {len(names) - _MOST_NAMES} more" * (len(names) > _MOST_NAMES))
        return (f"{listed}: held at {passes_text(max(held.values()))} passes",)


def _ratio_error(seen: Any, fresh: Any) -> float:
    """Returns the standard error of sum(seen) / sum(fresh), by leaving out one update at a time; NaN: one update."""
    if len(seen) < 2:
        return math.nan
    ratios = (seen.sum() - seen) / (fresh.sum() - fresh)
    return float(math.sqrt(((ratios - ratios.mean()) ** 2).sum() * (len(seen) - 1) / len(seen)))


def repetition_of(gaps: Any, passes: Any) -> Any:
    """Returns R of every dataset [n], the passes after which a repeated example is worth 1/e of a new one.

    gaps: [n], the loss of the dev set of a dataset's name less that of its training probes, in nats.
    passes: [n], at which the gaps were measured.

    The gap grows with the passes, and R passes make a gap of 0.2 nats. The prior is 0.2 nats at 15 passes (Muennighoff
    et al. 2023). Most of what one dataset shows is noise, and how fast a model memorises is mostly the model's. So
    datasets are shrunk towards the common value.
    """
    common = (gaps.sum() + _GAP) / (passes.sum() + _PRIOR_PASSES)
    slopes = (gaps + common * _COMMON_PASSES) / (passes + _COMMON_PASSES)
    return _GAP / slopes
