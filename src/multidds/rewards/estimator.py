"""Rounds of probes: from the weights of the dev sets to one reward per dataset, Algorithm 1 up to the rewards.

An `Estimator` joins two choices behind one interface: the sets of a round (all of them, or a part in rotation) and the
measurement (`GradientProbes`: one gradient per set; `MixedBatches`: slopes in batches that mix datasets). It owns the
sources of probe batches and the priority. The rule moves the mixture by the rewards; the balancer says when.
"""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from .._base.checks import check_names
from .._base.state import check_keys
from ..probes.probe_sources import ProbeSources
from ..probes.prober import Prober
from .dev_batches import DevBatches, DrawnDevBatches
from .estimate import Estimate, Round
from .rotation import Rotation


class Measurement(Protocol):
    """One way to measure the rewards of the sets of a round."""

    @property
    def measures_relevance(self) -> bool:
        """Whether estimates have a relevance for each pair of a dev set and a dataset."""

    def begin(self) -> int:
        """Adapts to the ranks that there are now; returns the probe batches of a set, over all ranks."""

    def draw_dev_batches(self, dev: DevBatches, number: int, keep: bool) -> DrawnDevBatches:
        """Draws the dev batches of a round: now, if they are kept for more than one use, or when they are probed."""

    def measure(self, round_: Round) -> Estimate:
        """Measures the rewards of the datasets of a round."""

    def observe(self, name: str) -> None:
        """Takes .grad as a gradient of a dataset, if the measurement averages gradients of training."""

    def refresh_parameters(self) -> None:
        """Forgets what depends on parameters that were replaced."""

    def state_dict(self) -> dict[str, Any]:
        """Returns plain values; `tensors` has the rest."""

    def tensors(self) -> dict[str, Tensor]:
        """Returns {key: tensor}, copies."""

    def load_state_dict(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Replaces the state without changing anything that a shallow copy shares."""


@dataclass(frozen=True)
class Part:
    """The number of sets of a round that probes a part, and the groups by which they rotate."""

    datasets: int
    dev_sets: int
    groups: Mapping[str, str]


class Estimator:
    """Rewards of named datasets for named dev sets, by gradients of one model.

    names: of all datasets.
    prober: takes gradients of the model.
    sources: of probe batches of the datasets and the dev sets.
    measurement: `GradientProbes` or `MixedBatches`.
    part: the part that a round probes, in rotation; None: every round probes everything.
    """

    def __init__(
        self,
        names: Iterable[str],
        prober: Prober,
        sources: ProbeSources,
        measurement: Measurement,
        part: Part | None = None,
    ) -> None:
        self._names = tuple(names)
        self._prober = prober
        self._sources = sources
        self._measurement = measurement
        self._part = part
        self.dev = DevBatches("Balancer", prober, sources)
        self._rounds = 0
        self._last_losses: dict[str, float] = {}  # of dev sets, if a part is probed and the priority ranks by losses

    def estimate(self, agreed: Mapping[str, Any]) -> Estimate:
        """Makes one round of probes; if it raises, the next one is the same.

        agreed: values that must be equal on all ranks; a mismatch is an error.
        """
        with self._prober.invisible(), self._sources.put_back_on_error():
            total = self._measurement.begin()
            place = (self._prober.seed, total, self._rounds)
            own = {"datasets, or another order of them": self._names, "seeds, batches or updates": place}
            self.dev.check_ranks({**own, **agreed})
            estimate = self._measurement.measure(self._round())
        self._rounds += 1
        if self._part is not None and self.dev.weights.ranks_by_probe and estimate.trouble is None:
            self._last_losses = self._last_losses | estimate.dev_losses
        return estimate

    def _round(self) -> Round:
        number = self._rounds
        ranked = self._part is None and self.dev.weights.ranks_by_probe
        drawn = self._measurement.draw_dev_batches(self.dev, number, keep=ranked)
        if self._part is None:
            ranking = self.dev.weights.ranking(drawn.loss)
        else:  # by the last probe of each dev set, and their mean before the first
            mean = sum(self._last_losses.values()) / max(1, len(self._last_losses))
            ranking = self.dev.weights.ranking(lambda name: self._last_losses.get(name, mean))
        weights = self.dev.weights.weights(ranking, self._prober.replicas)
        datasets, dev_sets = self._names, dict(weights)
        if (part := self._part) is not None:
            train = Rotation(self._prober.seed, "train", part.datasets, part.groups)
            dev = Rotation(self._prober.seed, "dev", part.dev_sets, part.groups)
            datasets = tuple(train.sets_of(dict.fromkeys(self._names, 1.0), number))
            dev_sets = {name: weights[name] / share for name, share in dev.sets_of(weights, number).items()}
        return Round(number, datasets, weights, dev_sets, ranking, drawn)

    def observe(self, name: str) -> None:
        """Takes .grad as a gradient of this dataset, for moving averages."""
        if name not in self._names:
            check_names("Balancer.observe", self._names, [*self._names, name])
        self._measurement.observe(name)

    def refresh_parameters(self) -> None:
        self._prober.refresh_parameters()
        self._measurement.refresh_parameters()

    def state_dict(self) -> dict[str, Any]:
        """Returns plain values; `tensors` has the rest."""
        return {
            "seed": self._prober.seed,
            "rounds": self._rounds,
            "last_losses": dict(self._last_losses),
            "dev": self.dev.state_dict(),
            "measurement": self._measurement.state_dict(),
        }

    def tensors(self) -> dict[str, Tensor]:
        return self._measurement.tensors()

    def load_state_dict(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        check_keys("Balancer", state, "seed", "rounds", "last_losses", "dev", "measurement")
        measurement = copy.copy(self._measurement)
        measurement.load_state_dict(state["measurement"], tensors)
        self.dev.load_state_dict(state["dev"], state["seed"])
        self._measurement = measurement
        self._last_losses = dict(state["last_losses"])
        self._prober.seed = state["seed"]
        self._rounds = int(state["rounds"])
