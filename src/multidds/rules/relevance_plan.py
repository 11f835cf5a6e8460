"""The default rule: the best mixture for this training, with relevance and repetition as measured so far.

    maximise over P:   sum_k w_k log sum_i A_ki D_i(N P_i)^(1/2)            (`mixture.planned`)

A_ki, the relevance of dataset i to dev set k, begins as the relevance by names and follows the gradients as far as
their evidence goes (`rewards.relevance_memory`); the worth of repeated examples in D follows the losses
(`rewards.repetition`). The plan is for the whole training at every update: it does not make up for what was drawn.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from .._base.state import check_keys
from .._base.text import passes_text, short
from ..mixture.planned import OTHERS, NamedRelevance, most_passes, planned
from ..rewards.relevance_memory import RelevanceMemory, relevance_by_names
from ..rewards.repetition import RepetitionMemory
from .rule import Evidence, Relevance, Training

_AT_LIMIT = 1e-6  # of the most passes: nearer than that is at the limit
_MOST_NAMES = 3
_ENDLESS = 1e30  # examples of a dataset whose size is not given
MAX_PAIRS = 2**16  # of datasets and dev sets whose relevance is kept one by one; beyond, per dataset


@dataclass(frozen=True)
class RelevancePlan:
    """The default rule: the plan by names at first, and by measured relevance more and more. Holds settings only.

    plan: False: training starts at the given mixture, and relevance moves it from there, as if nothing were ever
        repeated. Default True: it starts at the plan by names, if sizes and length are known.
    repetition: passes after which a repeated example is worth 1/e of a new one. Default None: measured, by the gap
        between losses on seen and unseen examples. Give a number if something other than the loss counts: BLEU goes on
        rising when the loss no longer falls, and 40 served it best.
    """

    plan: bool = True
    repetition: float | None = None

    needs_errors: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.repetition is not None and not self.repetition > 0:
            raise ValueError(f"RelevancePlan: repetition must be positive, but it is {self.repetition}.")

    def start(self, training: Training) -> "PlanState":
        """Returns the state for one training."""
        return PlanState(training if self.plan else replace(training, sizes=None), self.repetition)


class PlanState:
    """The evidence for one mixture, and the plan that follows from it."""

    def __init__(self, training: Training, repetition: float | None) -> None:
        self._names = sorted(training.prior)
        self._dev_names = sorted(training.dev_weights)
        self._weights = np.array([training.dev_weights[name] for name in self._dev_names])
        self._start = np.array([training.prior[name] for name in self._names])
        self._planned = training.sizes is not None and training.draws is not None
        # Without sizes or length, none is ever repeated, and the given mixture is the plan before any evidence.
        self._sizes = self._start * _ENDLESS
        self._draws = 1.0
        self._scale = np.sqrt(self._start)  # relevance of which the plan is the given mixture
        if training.sizes is not None and training.draws is not None:
            self._sizes = np.array([training.sizes[name] for name in self._names], dtype=np.float64)
            self._draws = training.draws
            self._scale = np.ones(len(self._names))
        self._assumed = repetition
        self._repetition = RepetitionMemory(self._names)
        self._memory: RelevanceMemory | None = None
        if len(self._names) * len(self._dev_names) <= MAX_PAIRS:
            prior = np.ones((len(self._dev_names), len(self._names)))
            if self._planned:
                prior = relevance_by_names(self._names, self._dev_names, training.groups)
            self._memory = RelevanceMemory(self._names, self._dev_names, prior)
        self._factors = np.ones(len(self._names))  # of datasets, if relevance is measured or kept per dataset
        self._updates = 0
        self._latest: dict[str, float] = {}  # the plan of the last step

    @property
    def signal(self) -> float:
        """The share of the plan's relevance that is measured, 0 to 1; NaN before the first update."""
        if not self._updates:
            return math.nan
        return 1.0 if self._memory is None or self._per_dataset else self._memory.measured(self._weights)

    @property
    def mixture(self) -> dict[str, float]:
        """The plan now."""
        if not self._planned and not self._updates:
            return dict(zip(self._names, self._start.tolist(), strict=True))
        counted = self._weights > 0
        shares = planned(self._sizes, self._draws, self._weights[counted], self._matrix(counted), self._worth)
        return dict(zip(self._names, shares.tolist(), strict=True))

    @property
    def _worth(self) -> Any:
        """The passes after which a repeated example is worth 1/e of a new one: assumed, or measured so far."""
        return self._repetition.estimate() if self._assumed is None else self._assumed

    def _matrix(self, counted: Any) -> Any:
        if self._memory is not None:
            return np.maximum(self._memory.posterior()[0][counted], 0.0) * self._factors * self._scale
        places = {name: i for i, name in enumerate(self._names)}
        own = np.array([places.get(name, -1) for name in self._dev_names])[counted]
        return NamedRelevance(own, OTHERS if self._planned else 1.0, self._factors * self._scale)

    def step(self, evidence: Evidence) -> dict[str, float] | None:
        """Returns the plan by all evidence so far; None, with nothing changed, if rewards are not finite."""
        if not all(map(math.isfinite, evidence.rewards.values())):
            return None
        self._weights = np.array([evidence.weights[name] for name in self._dev_names])
        if self._memory is not None and evidence.relevance is not None:
            self._memory.add(evidence.relevance)
        else:
            rewards = np.maximum([evidence.rewards[name] for name in self._names], 0.0)
            self._factors = rewards / rewards.max() if rewards.max() > 0 else np.ones(len(self._names))
        self._repetition.add(evidence.train_losses, evidence.dev_losses, evidence.passes)
        self._updates += 1
        self._latest = self.mixture
        return self._latest

    @property
    def _per_dataset(self) -> bool:
        return self._memory is None or bool((self._factors != 1).any())

    def relevance(self) -> Relevance | None:
        """Returns {dev set: {dataset: (relevance, standard error)}}; None if it is known per dataset only."""
        if self._memory is None or self._per_dataset:
            return None
        values, errors = (each.tolist() for each in self._memory.posterior())
        return {
            dev: dict(zip(self._names, zip(values[k], errors[k], strict=True), strict=True))
            for k, dev in enumerate(self._dev_names)
        }

    def notes(self, evidence: Evidence) -> tuple[str, ...]:
        """Returns a sentence about the datasets that the plan would draw from more often if it were not for passes."""
        if not self._latest:
            return ()
        passes = np.array(list(self._latest.values())) * self._draws / self._sizes
        held = passes > most_passes(self._sizes, self._draws, self._worth) * (1 - _AT_LIMIT)
        names = [short(name) for name, is_held in zip(self._names, held, strict=True) if is_held]
        if not names:
            return ()
        listed = ", ".join(names[:_MOST_NAMES]) + (f" and {len(names) - _MOST_NAMES} more" * (len(names) > _MOST_NAMES))
        return (f"{listed}: held at {passes_text(passes[held].max())} passes",)

    def state_dict(self) -> dict[str, Any]:
        return {
            "rule": "relevance plan",
            "updates": self._updates,
            "weights": self._weights.tolist(),
            "factors": self._factors.tolist(),
            "repetition": self._repetition.state_dict(),
            "relevance": None if self._memory is None else self._memory.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_keys("RelevancePlan", state, "rule")
        if state["rule"] != "relevance plan":
            raise ValueError(f"RelevancePlan: the state is of the rule {state['rule']!r}.")
        check_keys("RelevancePlan", state, "updates", "weights", "factors", "repetition", "relevance")
        if (self._memory is None) != (state["relevance"] is None):
            raise ValueError("RelevancePlan: the state is of another number of datasets or dev sets.")
        self._repetition.load_state_dict(state["repetition"])
        if self._memory is not None:
            self._memory.load_state_dict(state["relevance"])
        self._weights = np.array(state["weights"], dtype=np.float64)
        self._factors = np.array(state["factors"], dtype=np.float64)
        self._updates = int(state["updates"])
