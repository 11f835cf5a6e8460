"""What every dataset is worth now: one round of probes, from the weights of the dev sets to one reward per dataset.

`Estimator.estimate` is the first half of an update, Algorithm 1 up to the rewards. It owns the sources of probe
batches, the priority and the moving averages; single gradients are `probing`, the walk over them `sweep`. What the
rewards do to the mixture is the rule's, and when is the balancer's.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch

from .._base.checks import by_name, check_names, check_state, is_count, is_state, is_whole
from ..balancer.pace import Pace
from ..gradients.averages import MovingAverages
from ..gradients.sketch import Sketcher
from ..gradients.vectors import Gradient
from ..gradients.work_split import WorkSplit, alike_on_all, owners_of
from ..probes.alignment_table import Halves, Table, sketcher_of
from ..probes.example_slopes import ExampleLosses, refuse_narrow
from ..probes.metric import AdamMetric
from ..probes.probe_sources import ProbeSources
from ..probes.prober import Loss, Numbered, Prober
from ..probes.sweep import Direction, Losses, NonFinite, Taken, sweep
from .dev_weights import DevWeights
from .estimate import STABILIZED, Estimate, Swept, estimate_of
from .formulas import Reward
from .mixed_batches import MixedBatches
from .rotation import Rotation

_NOISE_BUCKETS = 2**15  # of the sketches of both halves: cosines to 0.005, well below the noise that is looked for

AfterEach: TypeAlias = Callable[[int, Gradient], None] | None


@dataclass(frozen=True)
class Parts:
    """How updates look at a part of the datasets and dev sets, where a budget does not buy all."""

    datasets: int  # of an update
    dev_sets: int
    groups: Mapping[str, str]
    losses: ExampleLosses | None = None  # of single examples, for batches that mix datasets; None: one gradient each
    batches: tuple[int, int] = (0, 0)  # that mix datasets, and dev sets, over all processes
    by_set: bool = False  # whether dev sets are not mixed, because they want something else small than the losses


def parts_of(
    pace: Pace, groups: Mapping[str, str], losses: ExampleLosses | None, dev_loss: Loss | None, replicas: int
) -> Parts | None:
    """The parts of a pace; None where updates look at everything."""
    if pace.part is None:
        return None
    if pace.mixed is None:
        return Parts(*pace.part, groups)
    train, dev = pace.mixed
    if dev_loss is None:
        return Parts(*pace.part, groups, losses, (train * replicas, dev * replicas))
    return Parts(pace.part[0], min(pace.part[1], dev), groups, losses, (train * replicas, dev * replicas), by_set=True)


class Estimator:
    """Rewards of named datasets for named dev sets, by gradients of one model."""

    def __init__(
        self,
        names: Iterable[str],
        dev_names: Iterable[str],
        prober: Prober,
        sources: ProbeSources,
        reward: str | Reward,
        *,
        batches: float,
        total: int | None,
        share_out: bool,
        step_ahead: float | None,
        sketch: int | str | None,
        decay: float,
        optimizer: torch.optim.Optimizer | None,
        noise: bool,
        parts: Parts | None = None,
    ) -> None:
        self._names, self._parts = tuple(names), parts
        self._mixed: MixedBatches | None = None
        self._prober, self._sources = prober, sources
        self._reward, self._step_ahead, self._sketch = reward, step_ahead, sketch
        self._batches, self._given_total = batches, total
        self._total = self._over_all_ranks()
        # The state of moving averages is the same on every rank; parts change from update to update.
        self._share_out = share_out and reward != "moving-average" and parts is None
        if sketch == "exact" and step_ahead is None:  # whole gradients are not sent
            self._share_out = False
        self._alike: dict[str, set[str]] | None = None  # the sets of each role that are the same on every rank
        self._sketcher = sketcher_of(sketch)
        self._optimizer, self._decay = optimizer, decay
        # Halves of a probe say how noisy it is, where a reward is a function of gradients that were just taken.
        plain = step_ahead is None and optimizer is None and reward != "moving-average"
        compared = self._total // (prober.replicas.size if prober.layout.sharded else 1)
        self._noise_sketcher = Sketcher(_NOISE_BUCKETS) if noise and plain and compared > 1 else None
        self._refresh_parameters()
        self.dev = DevWeights("Balancer", dev_names)
        self._rounds = 0
        self._seen: dict[str, float] = {}  # the last losses of dev sets, where they are looked at in parts and ranked
        if parts is not None and parts.losses is not None:
            refuse_narrow("Balancer", prober)
            by_set = partial(self._dev_gradient, {}, None) if parts.by_set else None
            self._mixed = MixedBatches(prober, parts.losses, sources, *parts.batches, by_set)

    def _over_all_ranks(self) -> int:
        """Probe batches of each dataset and dev set, over all ranks that there are now."""
        size = self._prober.replicas.size
        total = self._given_total or int(self._batches * size)
        if self._prober.layout.sharded and total % size:
            raise ValueError(
                f"Balancer: total_batches must be a multiple of the {size} ranks that hold shards, but it is {total}."
            )
        return total

    def _refresh_parameters(self) -> None:
        prober = self._prober
        self._metric = None if self._optimizer is None else AdamMetric(self._optimizer, prober)
        self._averages = None
        if self._reward == "moving-average":
            known = self._names if prober.layout.sharded else ()
            params = dict(zip(prober.names, prober.params, strict=True))
            self._averages = MovingAverages(params, self._decay, prober.layout, known)

    def refresh_parameters(self) -> None:
        self._prober.refresh_parameters()
        self._refresh_parameters()
        if self._mixed is not None:
            self._mixed.refresh_parameters()

    def observe(self, name: str) -> None:
        """For moving averages: .grad now holds a gradient of this dataset."""
        if name not in self._names:
            check_names("Balancer.observe", self._names, [*self._names, name])
        if self._averages is None:
            return
        if self._prober.replicas.size > 1:
            raise ValueError(
                "Balancer.observe: gradients averaged over replicas may mix datasets. Leave the call out: "
                "the moving average is then over the probe gradients of successive updates."
            )
        self._averages.observe(name)

    def estimate(self, agreed: Mapping[str, Any]) -> Estimate:
        """One round of probes. agreed: {what: value} that must be the same on every rank, or nothing is right."""
        prober, mixed, swept = self._prober, None, None
        with prober.invisible():
            self._total = self._over_all_ranks()
            self._check_replicas(agreed)
            dev_batches = self._dev_batches()
            ranking = self._ranking(dev_batches)
            weights = self.dev.weights(ranking, prober.replicas)
            names, counting = self._looked_at(weights)
            if self._mixed is not None:
                mixed = self._mixed.estimate(self._sources, names, counting, self._rounds)
            else:
                swept = self._swept(names, counting, ranking, dev_batches)
        self._rounds += 1
        if mixed is not None:
            found = Estimate(**vars(mixed), weights=weights, alignment=None)
        else:
            assert swept is not None
            found = estimate_of(swept, self._reward, names, weights, counting, prober.replicas)
        if self._parts is not None and self.dev.ranks_by_probe and found.trouble is None:
            self._seen |= found.dev_losses
        return found

    def _looked_at(self, weights: Mapping[str, float]) -> tuple[tuple[str, ...], dict[str, float]]:
        """(the datasets of this update, {dev set: its weight}); where those are a part, divided by how often it is in
        one, so that on average over a rotation they count as the priority says.
        """
        parts = self._parts
        if parts is None:
            return self._names, dict(weights)
        train = Rotation(self._prober.seed, "train", parts.datasets, parts.groups)
        dev = Rotation(self._prober.seed, "dev", parts.dev_sets, parts.groups)
        names = tuple(train.looked_at(dict.fromkeys(self._names, 1.0), self._rounds))
        shares = dev.looked_at(weights, self._rounds)
        return names, {name: weights[name] / share for name, share in shares.items()}

    def _ranking(self, kept: Mapping[str, list[Numbered]]) -> dict[str, float]:
        """The losses that priorities rank by. In parts: those of the last look at each dev set, and their mean."""
        if self._parts is None:
            return self.dev.ranking(partial(self._dev_loss, kept))
        mean = sum(self._seen.values()) / max(1, len(self._seen))
        return self.dev.ranking(lambda name: self._seen.get(name, mean))

    def _swept(
        self,
        names: tuple[str, ...],
        weights: Mapping[str, float],
        ranking: Mapping[str, float],
        dev_batches: Mapping[str, list[Numbered]],
    ) -> Swept:
        """The gradients of these datasets, and of the dev sets that have weights."""
        prober = self._prober
        losses, findings = Losses(len(names) if self._step_ahead else 1), NonFinite(weights)
        findings.check("loss", "dev set", ranking)
        stabilized = None if callable(self._reward) else STABILIZED[self._reward]
        direction = None if stabilized is None else Direction(weights, stabilized, prober.layout)
        table = None if self._sketch is None else self._new_table()
        halves = self._new_halves()
        after_each = None if halves is None else halves.after_each
        dev = self._dev_gradients(dev_batches, weights, after_each)
        sharing = self._sharing(list(dev))
        sweep(
            dev,
            self._train_gradients(names, findings, after_each),
            [each for each in (losses, findings, direction, table, halves) if each is not None],
            layout=prober.layout,
            sharing=sharing,
            ahead=partial(prober.moved, step=self._step_ahead) if self._step_ahead else None,
            metric=None if self._metric is None else self._metric.applied,
        )
        if sharing is not None:
            self._skip_others(sharing)
            losses.arrange(self.dev.names, names)
            findings.arrange(self.dev.names, names)
        return Swept(losses, findings, direction, table, halves)

    def _sharing(self, dev: list[str]) -> WorkSplit | None:
        """Who takes which gradients; None: all ranks take all of them, together. dev: the dev sets to be taken."""
        prober, alike = self._prober, self._known_alike()
        if not any(alike.values()):
            return None
        size = prober.replicas.size
        owners = {"train": owners_of(self._names, alike["train"], self._total, size)}
        if self._step_ahead is None and not self.dev.ranks_by_probe:  # else every rank has all dev batches, or its part
            owners["dev"] = owners_of(dev, alike["dev"], self._total, size)
        elif self._step_ahead and not self._dev_alike():
            return None
        return WorkSplit(prober.replicas, owners, prober.params, prober.alone)

    def _known_alike(self) -> dict[str, set[str]]:
        """The sets of each role that any rank can take. Looked up once."""
        prober, sources = self._prober, self._sources
        if not self._share_out or prober.replicas.size == 1 or prober.layout.sharded:
            return {"train": set(), "dev": set()}
        if self._alike is None:
            names = {"train": self._names, "dev": self.dev.names}
            self._alike = alike_on_all(prober.replicas, names, sources.example, sources.trial, prober.talks)
        return self._alike

    def _dev_alike(self) -> bool:
        """Whether one rank can take all dev sets, as it must for a step ahead on a dataset of its own."""
        return self._known_alike()["dev"] == set(self.dev.names)

    def _skip_others(self, sharing: WorkSplit) -> None:
        """Sources that have a place go past what other ranks have taken."""
        with self._prober.replicas.raise_on_all_ranks():
            for role in ("dev", "train"):
                for name in sharing.of(role):
                    if not sharing.mine(role, [name]):
                        for _ in self._sources.batches(role, name, self._rounds, range(0), self._total):
                            pass

    def _check_replicas(self, agreed: Mapping[str, Any]) -> None:
        """Ranks that disagree would average gradients of different things, wait for each other, or drift apart."""
        mine = {
            "datasets, or another order of them": self._names,
            **self.dev.agreed(),
            "seeds, batches or numbers of updates": (self._prober.seed, self._total, self._rounds),
            **agreed,
        }
        first, *others = self._prober.replicas.gathered(mine)
        for what, value in first.items():
            if any(other[what] != value for other in others):
                raise ValueError(f"Balancer: the ranks have different {what}.")

    def _batches_of(self, role: str, name: str) -> Iterator[Numbered]:
        return self._sources.batches(role, name, self._rounds, self._prober.numbers(self._total), self._total)

    def _dev_batches(self) -> dict[str, list[Numbered]]:
        """Where step-ahead or a ranking needs them more than once; else they are drawn one dev set at a time.

        For steps ahead on datasets that are shared out, a rank needs the batches of all.
        """
        if self._parts is not None or (self._step_ahead is None and not self.dev.ranks_by_probe):
            return {}
        apart = self._step_ahead is not None and self._dev_alike()
        with self._prober.replicas.raise_on_all_ranks(), self._prober.alone() if apart else nullcontext():
            return {name: list(self._batches_of("dev", name)) for name in self.dev.names}

    def _dev_batches_of(self, kept: Mapping[str, list[Numbered]], name: str) -> Iterable[Numbered]:
        if name not in kept:
            return self._batches_of("dev", name)
        numbers = self._prober.numbers(self._total)
        return [(j, batch) for j, batch in kept[name] if j in numbers]

    def _dev_loss(self, kept: Mapping[str, list[Numbered]], name: str) -> float:
        return self._prober.loss(("dev", name, self._rounds), self._dev_batches_of(kept, name), self._total)

    def _dev_gradient(
        self, kept: Mapping[str, list[Numbered]], after_each: AfterEach, name: str
    ) -> tuple[Gradient, float]:
        batches = self._dev_batches_of(kept, name)
        return self._prober.gradient(("dev", name, self._rounds), batches, self._total, after_each)

    def _dev_gradients(
        self, kept: Mapping[str, list[Numbered]], weights: Mapping[str, float], after_each: AfterEach
    ) -> dict[str, Taken]:
        """Of the dev sets that count; a table is asked for to see all."""

        return {
            name: partial(self._dev_gradient, kept, after_each, name)
            for name in self.dev.names
            if weights.get(name) or self._sketch
        }

    def _train_gradients(self, names: Iterable[str], findings: NonFinite, after_each: AfterEach) -> dict[str, Taken]:
        def probed(name: str) -> tuple[Gradient, float]:
            key = ("train", name, self._rounds)
            gradient, loss = self._prober.gradient(key, self._batches_of("train", name), self._total, after_each)
            if self._step_ahead or self._averages:  # before the dev sets see it, or an average leaves it out
                findings.check("gradient", "dataset", {name: self._prober.layout.norm(gradient)})
            return gradient, loss

        def averaged(name: str, averages: MovingAverages) -> tuple[Gradient, float | None]:
            if averages.observed(name):
                return averages[name], None
            gradient, loss = probed(name)
            averages.add(name, gradient)
            return averages[name], loss

        if self._averages is None:
            return {name: partial(probed, name) for name in names}
        return {name: partial(averaged, name, self._averages) for name in names}

    def _new_table(self) -> Table:
        prober = self._prober
        return Table(prober.params, prober.names, prober.layout, self._sketcher, self._step_ahead is not None)

    def _new_halves(self) -> Halves | None:
        if self._noise_sketcher is None:
            return None
        prober = self._prober
        count = self._total // (prober.replicas.size if prober.layout.sharded else 1)
        return Halves(prober.params, prober.names, prober.layout, self._noise_sketcher, count, prober.combine)

    def state_dict(self) -> dict[str, Any]:
        """Plain values, and under "tensors" what is not."""
        kept = self._averages if self._mixed is None else self._mixed.direction
        return {
            "seed": self._prober.seed,
            "rounds": self._rounds,
            **self.dev.state_dict(),
            **({} if self._parts is None else {"seen": dict(self._seen)}),
            **self._sources.state_dict(),
            "averages": None if self._averages is None else self._averages.state_dict(),
            **({} if self._mixed is None else {"direction": self._mixed.direction.updates}),
            "tensors": {} if kept is None else kept.tensors(),
        }

    def fits(self, state: Mapping[str, Any]) -> bool:
        """Whether a state is of these datasets and dev sets."""
        return self._sources.fits(state)

    def carried(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """A state for these datasets and dev sets, where some were added or left out."""
        found = {**state, **self._sources.carried(state), **self.dev.carried(state)}
        if self._averages is not None and state["averages"] is not None:
            averages, tensors = self._averages.carried(state["averages"], state["tensors"], self._names)
            found |= {"averages": averages, "tensors": tensors}
        return found

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Refuse a state that `load_state_dict` could not go on from."""
        check_state(
            "Balancer", state, seed=is_whole, rounds=is_count, averages=lambda value: value is None or is_state(value),
            tensors=by_name(torch.is_tensor),
        )  # fmt: skip
        self._sources.check_state(state)
        if self._averages is not None and state["averages"] is not None:
            self._averages.check_state(state["averages"], state["tensors"])
        if self._mixed is not None and "direction" in state:  # not in those of before there was an average
            self._mixed.direction.check_state(state["direction"], state["tensors"])
        if (self._averages is None) != (state["averages"] is None):
            raise ValueError("Balancer: the state was saved with another reward: only one keeps moving averages.")
        self.dev.check_state(state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Where the state does not fit, an error, and nothing has changed."""
        self.check_state(state)
        sources = self._sources.loaded(state, state["seed"])
        self.dev.load_state_dict(state)
        if self._averages is not None:
            self._averages.load_state_dict(state["averages"], state["tensors"])
        if self._mixed is not None and "direction" in state:
            self._mixed.direction.load_state_dict(state["direction"], state["tensors"])
        # What can be refused has been by now.
        self._seen = {name: state["seen"][name] for name in self.dev.names if name in state.get("seen", {})}
        self._prober.seed, self._sources, self._rounds = state["seed"], sources, int(state["rounds"])
