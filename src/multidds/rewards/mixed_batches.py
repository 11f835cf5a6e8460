"""Rewards of many datasets from batches that mix them: the cost is in examples, not in datasets.

The losses of single examples are weighted for the gradient v of the dev loss, a few examples of many dev sets at a
time, and the parameters are moved along it for the slopes of the training examples: two forward passes, and no gradient
of any dataset (`probes.example_slopes`). The reward of a dataset is the mean slope of its examples, <t_i, v> / |v|: an
inner product, while the rewards of the paper are cosines, because |t_i| is not measured. v is averaged over updates.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .._base.state import check_keys
from ..gradients.averages import MeanDirection
from ..gradients.vectors import Gradient, added
from ..probes.example_slopes import (
    ExampleLosses,
    NumberedSlopes,
    one_per_example,
    refuse_narrow,
    slopes_of,
    step_size,
)
from ..probes.probe_sources import ProbeSources
from ..probes.prober import Prober
from ..probes.probes import Probes
from .dev_batches import DevBatches, DrawnDevBatches
from .estimate import Estimate, Round

_OWNER = "Balancer"


class MixedBatches:
    """A measurement: mean slopes of the examples of each dataset, in batches that mix datasets.

    losses: (model, batch) -> tensor [B], the losses of single examples.
    train, dev: batches of a round that mix datasets, and that mix dev sets; per rank.
    per_set: the number of batches of each dev set, if they are not mixed because their loss is another than the losses
        of examples; None: they are mixed.
    """

    def __init__(
        self,
        prober: Prober,
        losses: ExampleLosses,
        sources: ProbeSources,
        train: int,
        dev: int,
        per_set: Probes | None = None,
    ) -> None:
        refuse_narrow(_OWNER, prober)
        self._prober = prober
        self._losses = losses
        self._sources = sources
        self._per_rank = {"train": train, "dev": dev}
        self._per_set = per_set
        self._mixing = {role: sources.mixing(role) for role in (("train",) if per_set else ("train", "dev"))}
        # With two examples or more in each, no batch is empty. Ranks that hold shards make their passes together.
        if prober.layout.sharded and any(size < 2 for size, _ in self._mixing.values()):
            raise ValueError(f"{_OWNER}: a sharded model needs probe batches of at least two examples; see batches_of.")
        self.begin()
        self.refresh_parameters()

    @property
    def measures_relevance(self) -> bool:
        return False

    def begin(self) -> int:
        size = self._prober.replicas.size
        self._batches = {role: batches * size for role, batches in self._per_rank.items()}
        self._dev_total = size if self._per_set is None else self._per_set.in_all(size)
        self._prober.refuse_uneven(self._dev_total)
        return self._batches["train"]

    def refresh_parameters(self) -> None:
        prober = self._prober
        self._direction = MeanDirection(dict(zip(prober.names, prober.params, strict=True)), prober.layout)

    def observe(self, name: str) -> None:
        """Does nothing: there are no moving averages of datasets."""

    def draw_dev_batches(self, dev: DevBatches, number: int, keep: bool) -> DrawnDevBatches:
        """Draws the batches of single dev sets, which are used if they are not mixed and to rank them."""
        return dev.draw(number, self._dev_total, keep)

    def measure(self, round_: Round) -> Estimate:
        """Measures the mean slope of every dataset of the round. Inside `invisible`."""
        vector, dev_losses = self._dev_gradient(round_)
        steepness = self._prober.layout.norm(vector)
        dev_loss = math.fsum(weight * dev_losses[name] for name, weight in round_.dev_sets.items())
        trouble = _not_finite("loss", "dev set", dev_losses)
        if trouble is None and not math.isfinite(steepness):
            trouble = "the gradient of the dev sets is not finite"
        if trouble is not None:
            zero = dict.fromkeys(round_.datasets, 0.0)
            return Estimate(zero, {}, dev_losses, {}, round_.weights, trouble, degrees=0.0)
        mean = self._direction.with_vector(vector)
        length = self._prober.layout.norm(mean)
        step = step_size(self._prober, steepness, dev_loss, None) if steepness else 1.0
        slopes_by_name = self._slopes(round_, [*mean], length if steepness else 0.0, step)
        rewards = {name: slopes.mean().item() for name, (slopes, _) in slopes_by_name.items()}
        losses = {name: each.mean().item() for name, (_, each) in slopes_by_name.items()}
        trouble = _not_finite("loss", "dataset", losses) or _not_finite("reward", "dataset", rewards)
        count = min(len(slopes) for slopes, _ in slopes_by_name.values())
        errors = {}
        if count > 1:
            errors = {name: (s.std() / math.sqrt(len(s))).item() for name, (s, _) in slopes_by_name.items()}
        notes = () if steepness else ("the gradients of the dev sets sum to zero: rewards count as 0",)
        if trouble is None and steepness:
            self._direction.keep(mean)
        return Estimate(rewards, errors, dev_losses, losses, round_.weights, trouble, notes, degrees=count - 1.0)

    def _drawn(self, role: str, names: tuple[str, ...], update: int) -> list[tuple[int, Any, list[str]]]:
        """Returns (number, batch, the set of each of its examples) of the batches of this rank."""
        size, collate = self._mixing[role]
        total = self._batches[role]
        each = max(1, total * size // len(names))
        examples = self._sources.examples(role, dict.fromkeys(names, each), update)
        cuts = [len(examples) * j // total for j in range(total + 1)]
        drawn = []
        for j in self._prober.numbers(total):
            part = examples[cuts[j] : cuts[j + 1]]
            if part:
                drawn.append((j, collate([example for _, example in part]), [name for name, _ in part]))
        return drawn

    def _dev_gradient(self, round_: Round) -> tuple[Gradient, dict[str, float]]:
        """Returns the gradient of the weighted dev loss, and the loss of each dev set."""
        dev, update = round_.dev_sets, round_.number
        if self._per_set is not None:
            vector, losses = None, {}
            for name, weight in dev.items():
                gradient, losses[name] = round_.dev_batches.gradient(name)
                vector = added(vector, gradient, weight)
            assert vector is not None
            return vector, losses
        replicas, total = self._prober.replicas, self._batches["dev"]
        with replicas.raise_on_all_ranks():
            drawn = self._drawn("dev", tuple(dev), update)
        each = max(1, total * self._mixing["dev"][0] // len(dev))
        seen: list[tuple[str, float]] = []

        def weighted(model: Any, batch: tuple[Any, list[str]]) -> Tensor:
            losses = one_per_example(_OWNER, "losses(model, batch)", self._losses(model, batch[0]), len(batch[1]))
            weights = torch.tensor([dev[name] / each for name in batch[1]], dtype=losses.dtype, device=losses.device)
            seen.extend(zip(batch[1], losses.detach().double().tolist(), strict=True))
            return total * (weights * losses).sum()  # the mean over the batches is then the weighted sum

        numbered = [(j, (batch, names)) for j, batch, names in drawn]
        vector, _ = self._prober.gradient(("dev", "mixed", update), numbered, total, of=weighted)
        everyone = [one for part in replicas.gather(seen) for one in part]
        sums = dict.fromkeys(dev, 0.0)
        for name, loss in everyone:
            sums[name] += loss / each
        return vector, sums

    def _slopes(self, round_: Round, vector: Gradient, length: float, step: float) -> dict[str, tuple[Tensor, Tensor]]:
        """Returns {dataset: (slopes, losses) of its examples}, the same on every rank."""
        names, update = round_.datasets, round_.number
        prober = self._prober
        with prober.replicas.raise_on_all_ranks():
            drawn = self._drawn("train", names, update)
            numbered = [(j, batch) for j, batch, _ in drawn]
            sizes = {j: len(each) for j, _, each in drawn}
            checked = partial(_checked, self._losses, sizes)
            mine: list[NumberedSlopes] = slopes_of(prober, checked, numbered, vector, length, step, update)
        rows = [
            (name, slope, loss)
            for (_, _, each), (_, slopes, losses) in zip(drawn, mine, strict=True)
            for name, slope, loss in zip(each, slopes.tolist(), losses.tolist(), strict=True)
        ]
        pairs_by_name: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
        for part in prober.replicas.gather(rows):
            for name, slope, loss in part:
                pairs_by_name[name].append((slope, loss))
        tensors = {name: torch.tensor(pairs, dtype=torch.float64) for name, pairs in pairs_by_name.items()}
        return {name: (pairs[:, 0], pairs[:, 1]) for name, pairs in tensors.items()}

    def state_dict(self) -> dict[str, Any]:
        return {"direction": self._direction.updates}

    def tensors(self) -> dict[str, Tensor]:
        return self._direction.tensors()

    def load_state_dict(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        check_keys(_OWNER, state, "direction")
        before = self._direction
        self.refresh_parameters()
        direction, self._direction = self._direction, before
        direction.load_state_dict(state["direction"], tensors)
        self._direction = direction


def _checked(losses: ExampleLosses, sizes: Mapping[int, int], j: int, model: Any, batch: Any) -> Tensor:
    return one_per_example(_OWNER, "losses(model, batch)", losses(model, batch), sizes[j])


def _not_finite(what: str, kind: str, values: Mapping[str, float]) -> str | None:
    bad = [name for name, value in values.items() if not math.isfinite(value)]
    more = f" (and {len(bad) - 1} more like it)" if len(bad) > 1 else ""
    return f"the {what} of {kind} {bad[0]!r} is not finite{more}" if bad else None
