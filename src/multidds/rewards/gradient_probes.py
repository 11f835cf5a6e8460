"""Rewards from one gradient per dataset and dev set: the paper's measurement, with its options.

Step ahead, moving averages, the table of inner products, standard errors from the halves of a probe, and gradients
divided among the ranks are options of one walk over the sets (`probes.sweep`).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from .._base.state import check_keys
from ..gradients.averages import MovingAverages
from ..gradients.sketch import Sketcher
from ..gradients.vectors import Gradient, wide
from ..gradients.work_split import WorkSplit, owners_of
from ..probes.alignment import Alignment
from ..probes.alignment_table import Halves, Table, sketcher_of
from ..probes.collectors import Direction, Losses, NonFinite
from ..probes.probe_sources import ProbeSources
from ..probes.prober import Numbered, Prober
from ..probes.sweep import Taken, sweep
from .dev_batches import DevBatches, DrawnDevBatches
from .estimate import Estimate, Round
from .formulas import Formula, redraw_noise
from .kinds import Reward

_MANY_SETS = 64  # datasets and dev sets, beyond which the sketches of halves are smaller
_HALVES_BUCKETS = 2**18  # of the sketches of both halves: cosines to 0.002; of many sets 2**15, to 0.005
_SMALL_BUCKETS = 2**15

AfterEach: TypeAlias = Callable[[int, Gradient], None] | None


class GradientProbes:
    """A measurement: gradients of every dataset and dev set of a round.

    names, dev_names: of all datasets and dev sets.
    reward: what is computed from the gradients.
    batches: probe batches of each set, per rank; total: over all ranks, instead.
    errors: whether standard errors are estimated from the halves of a probe, if the reward allows it.
    split_work: whether ranks may compute gradients of different sets; None: if the sources are `batches_of`.
    """

    def __init__(
        self,
        names: Sequence[str],
        dev_names: Sequence[str],
        prober: Prober,
        sources: ProbeSources,
        reward: Reward,
        *,
        batches: float,
        total: int | None,
        errors: bool,
        split_work: bool | None,
    ) -> None:
        self._names = tuple(names)
        self._dev_names = tuple(dev_names)
        self._prober = prober
        self._sources = sources
        self._reward = reward
        self._batches = batches
        self._given_total = total
        self._split_work = split_work
        self._sketcher = sketcher_of(reward.table)
        self.begin()
        plain = reward.ahead is None and reward.decay is None
        compared = self._total // (prober.replicas.size if prober.layout.sharded else 1)
        buckets = _HALVES_BUCKETS if len(self._names) + len(self._dev_names) <= _MANY_SETS else _SMALL_BUCKETS
        self._halves_sketcher = Sketcher(buckets) if errors and plain and compared > 1 else None
        self._averages = self._new_averages()

    @property
    def measures_relevance(self) -> bool:
        """Whether the halves of a probe are compared."""
        return self._halves_sketcher is not None

    @property
    def set_bytes(self) -> int:
        """The memory of the sketches of a dataset or dev set in an update, of both halves."""
        if self._halves_sketcher is None:
            return 0
        return 2 * self._halves_sketcher.new(wide(self._prober.params[0].dtype), "meta").nbytes

    def begin(self) -> int:
        """Counts the ranks; returns the probe batches of each set over all of them."""
        size = self._prober.replicas.size
        self._total = self._given_total or int(self._batches * size)
        self._prober.refuse_uneven(self._total)
        return self._total

    def _new_averages(self) -> MovingAverages | None:
        if self._reward.decay is None:
            return None
        known = self._names if self._prober.layout.sharded else ()
        params = dict(zip(self._prober.names, self._prober.params, strict=True))
        return MovingAverages(params, self._reward.decay, self._prober.layout, known)

    def refresh_parameters(self) -> None:
        self._averages = self._new_averages()

    def observe(self, name: str) -> None:
        """Adds .grad to the moving average of a dataset; nothing without moving averages."""
        if self._averages is None:
            return
        if self._prober.replicas.size > 1:
            raise ValueError(
                "Balancer.observe: gradients averaged over ranks may mix datasets. Leave the call out: "
                "the moving average is then over the probe gradients of successive updates."
            )
        self._averages.observe(name)

    def draw_dev_batches(self, dev: DevBatches, number: int, keep: bool) -> DrawnDevBatches:
        """Draws the dev batches of a round; for a step ahead they are kept.

        For steps ahead on datasets that are divided among the ranks, each rank needs the batches of all.
        """
        if self._reward.ahead is None or not self._dev_splits():
            return dev.draw(number, self._total, keep=keep or self._reward.ahead is not None)
        with self._prober.replicas.raise_on_all_ranks(), self._prober.alone():
            return dev.draw(number, self._total, keep=True)

    def measure(self, round_: Round) -> Estimate:
        prober, reward = self._prober, self._reward
        losses = Losses(len(round_.datasets) if reward.ahead else 1)
        non_finite = NonFinite(round_.dev_sets)
        non_finite.check("loss", "dev set", round_.ranking)
        direction = None
        if reward.unit_gradients is not None:
            direction = Direction(round_.dev_sets, reward.unit_gradients, prober.layout)
        table = None if reward.table is None else self._new_table()
        halves = self._new_halves()
        after_each = None if halves is None else halves.after_each
        dev = self._dev_gradients(round_, after_each)
        split = self._work_split(list(dev), round_)
        sweep(
            dev,
            self._train_gradients(round_, non_finite, after_each),
            [each for each in (losses, non_finite, direction, table, halves) if each is not None],
            layout=prober.layout,
            split=split,
            ahead=partial(prober.moved, step=reward.ahead) if reward.ahead else None,
        )
        if split is not None:
            self._skip_sets_of_others(split, round_.number)
            losses.arrange(self._dev_names, round_.datasets)
            non_finite.arrange(self._dev_names, round_.datasets)
        return self._estimate(round_, losses, non_finite, direction, table, halves)

    def _estimate(
        self,
        round_: Round,
        losses: Losses,
        non_finite: NonFinite,
        direction: Direction | None,
        table: Table | None,
        halves: Halves | None,
    ) -> Estimate:
        """Makes rewards and their errors of what was collected; the same bits on every rank."""
        ranks, names = self._prober.replicas, round_.datasets
        alignment = None if table is None else table.alignment(losses, names)
        with ranks.raise_on_all_ranks():
            if direction is not None:
                rewards = {name: direction.rewards[name] for name in names}
            else:
                assert alignment is not None
                rewards = _checked(self._reward.formula, alignment, round_.weights)
        rewards = ranks.gather(rewards)[0]
        non_finite.check("reward", "dataset", rewards)
        errors: dict[str, float] = {}
        relevance = None
        if halves is not None:
            first, second, whole = halves.alignments(losses, names)
            errors = _errors(self._reward.formula, first, second, round_.dev_sets)
            errors, relevance = ranks.gather((errors, _relevance(first, second, whole)))[0]
        notes = [f"{what} is zero: its cosine counts as 0" for what in non_finite.zero]
        notes += [
            f"the loss of dev set {name!r} is not finite; its weight is 0"
            for name, loss in losses.of_dev.items()
            if not (math.isfinite(loss) or round_.dev_sets.get(name))
        ]
        if direction is not None and direction.cancelled:
            notes.append("the gradients of the dev sets sum to zero: rewards count as 0")
        return Estimate(
            rewards=rewards,
            errors=errors,
            dev_losses=losses.of_dev,
            train_losses=losses.of_train,
            weights=round_.weights,
            trouble=non_finite.trouble(),
            notes=tuple(notes),
            alignment=alignment,
            relevance=relevance,
        )

    def _drawn(self, role: str, name: str, number: int) -> Iterator[Numbered]:
        return self._sources.batches(role, name, number, self._prober.numbers(self._total), self._total)

    def _dev_gradients(self, round_: Round, after_each: AfterEach) -> dict[str, Taken]:
        """Returns the dev sets of positive weight; with a table, all of them."""
        return {
            name: partial(round_.dev_batches.gradient, name, after_each)
            for name in self._dev_names
            if round_.dev_sets.get(name) or self._reward.table
        }

    def _train_gradients(self, round_: Round, non_finite: NonFinite, after_each: AfterEach) -> dict[str, Taken]:
        def probed(name: str) -> tuple[Gradient, float]:
            batches = self._drawn("train", name, round_.number)
            gradient, loss = self._prober.gradient(("train", name, round_.number), batches, self._total, after_each)
            if self._reward.ahead or self._averages:  # before the dev sets see it, or an average leaves it out
                non_finite.check("gradient", "dataset", {name: self._prober.layout.norm(gradient)})
            return gradient, loss

        def averaged(name: str, averages: MovingAverages) -> tuple[Gradient, float | None]:
            if averages.observed(name):
                return averages[name], None
            gradient, loss = probed(name)
            averages.add(name, gradient)
            return averages[name], loss

        if self._averages is None:
            return {name: partial(probed, name) for name in round_.datasets}
        return {name: partial(averaged, name, self._averages) for name in round_.datasets}

    def _new_table(self) -> Table:
        prober = self._prober
        return Table(prober.params, prober.names, prober.layout, self._sketcher, self._reward.ahead is not None)

    def _new_halves(self) -> Halves | None:
        if self._halves_sketcher is None:
            return None
        prober = self._prober
        count = self._total // (prober.replicas.size if prober.layout.sharded else 1)
        return Halves(prober.params, prober.names, prober.layout, self._halves_sketcher, count, prober.combine)

    def _work_split(self, dev: list[str], round_: Round) -> WorkSplit | None:
        """Returns the owner of each gradient; None: all ranks take all of them together. dev: the sets to be taken."""
        prober, ahead = self._prober, self._reward.ahead
        if round_.datasets != self._names:  # a part changes from round to round
            return None
        train = self._splittable("train")
        size = prober.replicas.size
        owners = {"train": owners_of(self._names, train, self._total, size)}
        if ahead is None and not round_.dev_batches.kept:  # else every rank has all dev batches, or its part
            owners["dev"] = owners_of(dev, self._splittable("dev"), self._total, size)
        elif ahead and not self._dev_splits():
            return None
        if not any(owners.values()):
            return None
        return WorkSplit(prober.replicas, owners, prober.params, prober.alone)

    def _splittable(self, role: str) -> set[str]:
        """Returns the sets whose gradients any rank can take alone."""
        prober, reward = self._prober, self._reward
        whole_gradients = reward.table == "exact" and reward.ahead is None  # which are not sent
        averaged = reward.decay is not None  # the state of moving averages is the same on every rank
        if self._split_work is False or prober.replicas.size == 1 or prober.layout.sharded:
            return set()
        if whole_gradients or averaged:
            return set()
        if self._split_work is None and any(isinstance(module, nn.SyncBatchNorm) for module in prober.model.modules()):
            return set()  # its passes wait for the other ranks
        return self._sources.splittable(role) if self._split_work is None else set(self._sources.names(role))

    def _dev_splits(self) -> bool:
        """Whether one rank can take all dev sets, as it must for a step ahead on a dataset of its own."""
        return self._splittable("dev") == set(self._dev_names)

    def _skip_sets_of_others(self, split: WorkSplit, number: int) -> None:
        """Moves sources that keep a place past the batches that other ranks have taken."""
        with self._prober.replicas.raise_on_all_ranks():
            for role in ("dev", "train"):
                for name in split.of(role):
                    if not split.mine(role, [name]):
                        for _ in self._sources.batches(role, name, number, range(0), self._total):
                            pass

    def state_dict(self) -> dict[str, Any]:
        return {"averages": None if self._averages is None else self._averages.state_dict()}

    def tensors(self) -> dict[str, Tensor]:
        return {} if self._averages is None else self._averages.tensors()

    def load_state_dict(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        check_keys("Balancer", state, "averages")
        kept = state["averages"]
        if (self._averages is None) != (kept is None):
            raise ValueError("Balancer: the state was saved with another reward: only one keeps moving averages.")
        averages = self._new_averages()
        if averages is not None and kept is not None:
            averages.load_state_dict(kept, tensors)
        self._averages = averages


def _errors(
    formula: Formula | None, first: Alignment, second: Alignment, dev_sets: Mapping[str, float]
) -> dict[str, float]:
    """Returns the standard errors of rewards, from the tables of both halves of a probe."""
    assert formula is not None
    # A table may have dev sets of weight 0; without one they were not probed.
    weights = torch.tensor([dev_sets[name] for name in first.dev_names], dtype=torch.float64, device="cpu")
    errors = redraw_noise(formula(first, weights), formula(second, weights))
    return dict(zip(first.train_names, errors.tolist(), strict=True))


def _relevance(first: Alignment, second: Alignment, whole: Alignment) -> dict[str, dict[str, tuple[float, float]]]:
    """Returns {dev set: {dataset: (cosine, standard error)}}: half of the difference of two halves is an error."""
    errors = ((first.cosines() - second.cosines()).abs() / 2).tolist()
    cosines = whole.cosines().tolist()
    return {
        dev: dict(zip(whole.train_names, zip(cosines[k], errors[k], strict=True), strict=True))
        for k, dev in enumerate(whole.dev_names)
    }


def _checked(formula: Formula | None, alignment: Alignment, weights: Mapping[str, float]) -> dict[str, float]:
    """Returns the rewards of a function of the table, if they are one number per dataset."""
    assert formula is not None
    values = formula(alignment, torch.tensor(list(weights.values()), dtype=torch.float64, device="cpu"))
    if not isinstance(values, Tensor):
        raise TypeError(f"Balancer: the reward function must return a tensor, got {type(values).__name__}.")
    names = alignment.train_names
    if values.shape != (len(names),):
        raise ValueError(
            f"Balancer: the reward function must return one number for each of the {len(names)} datasets, "
            f"but the shape is {tuple(values.shape)}."
        )
    return dict(zip(names, values.tolist(), strict=True))
