"""Rewards of many datasets from batches that mix them: what is paid for are examples, not datasets.

The losses of single examples are weighted for the gradient v of the dev loss, a few examples of many dev sets at a
time, and moved along it for the slopes of the training examples: two forward passes, and no gradient of any dataset
(`slopes`). The reward of a dataset is the mean slope of its examples, <t_i, v> / |v|: an inner product where the
rewards of the paper are cosines, because nothing here knows |t_i|. v is averaged over updates (`averages`).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..gradients.averages import MeanDirection
from ..gradients.vectors import Gradient, added
from ..probes.example_slopes import ExampleLosses, NumberedSlopes, one_per_example, slopes_of, step_size
from ..probes.probe_sources import ProbeSources
from ..probes.prober import Prober

_OWNER = "Balancer"


@dataclass(frozen=True)
class Mixed:
    """What one update has found."""

    rewards: dict[str, float]
    noise: dict[str, float]  # standard errors of the rewards
    degrees: float  # of freedom that each of them has
    dev_losses: dict[str, float]
    train_losses: dict[str, float]
    trouble: str | None
    notes: tuple[str, ...]


class MixedBatches:
    """Mixed probes of one model. train, dev: batches of an update, over all replicas."""

    def __init__(
        self,
        prober: Prober,
        losses: ExampleLosses,
        sources: ProbeSources,
        train: int,
        dev: int,
        by_set: Callable[[str], tuple[Gradient, float]] | None,
    ) -> None:
        """by_set: name -> the gradient and the loss of a dev set, where dev sets want something else than the losses of
        examples small; None: dev sets are mixed, too.
        """
        self._prober, self._losses = prober, losses
        self._batches, self._by_set = {"train": train, "dev": dev}, by_set
        self.refresh_parameters()
        self._mixing = {role: sources.mixing(role) for role in (("train",) if by_set else ("train", "dev"))}
        # With two examples or more in each, no batch is empty. Ranks that hold shards make their passes together.
        if prober.layout.sharded and any(size < 2 for size, _ in self._mixing.values()):
            raise ValueError(f"{_OWNER}: a sharded model needs probe batches of at least two examples; see batches_of.")

    def refresh_parameters(self) -> None:
        prober = self._prober
        self.direction = MeanDirection(dict(zip(prober.names, prober.params, strict=True)), prober.layout)

    def estimate(
        self, sources: ProbeSources, datasets: tuple[str, ...], dev: Mapping[str, float], update: int
    ) -> Mixed:
        """The rewards of these datasets for the dev sets. dev: {name: weight}, which need not sum to 1. Inside
        `invisible`.
        """
        self._sources = sources
        vector, dev_losses = self._wanted(dev, update)
        steepness = self._prober.layout.norm(vector)
        dev_loss = math.fsum(weight * dev_losses[name] for name, weight in dev.items())
        trouble = _not_finite("loss", "dev set", dev_losses)
        if trouble is None and not math.isfinite(steepness):
            trouble = "the gradient of the dev sets is not finite"
        if trouble is not None:
            blank = dict.fromkeys(datasets, 0.0)
            return Mixed(blank, {}, 0.0, dev_losses, {}, trouble, ())
        mean = self.direction.with_vector(vector)
        length = self._prober.layout.norm(mean)
        step = step_size(self._prober, steepness, dev_loss, None) if steepness else 1.0
        found = self._slopes(datasets, [*mean], length if steepness else 0.0, step, update)
        rewards = {name: slopes.mean().item() for name, (slopes, _) in found.items()}
        losses = {name: each.mean().item() for name, (_, each) in found.items()}
        trouble = _not_finite("loss", "dataset", losses) or _not_finite("reward", "dataset", rewards)
        count = min(len(slopes) for slopes, _ in found.values())
        noise = {}
        if count > 1:
            noise = {name: (slopes.std() / math.sqrt(len(slopes))).item() for name, (slopes, _) in found.items()}
        notes = () if steepness else ("the gradients of the dev sets sum to zero: rewards count as 0",)
        if trouble is None and steepness:
            self.direction.keep(mean)
        return Mixed(rewards, noise, count - 1.0, dev_losses, losses, trouble, notes)

    def _drawn(self, role: str, names: tuple[str, ...], update: int) -> list[tuple[int, Any, list[str]]]:
        """(number, batch, the set of each of its examples) of the batches of this replica."""
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

    def _wanted(self, dev: Mapping[str, float], update: int) -> tuple[Gradient, dict[str, float]]:
        """(the gradient of the weighted dev loss, the loss of each dev set)"""
        if self._by_set is not None:
            vector, losses = None, {}
            for name, weight in dev.items():
                gradient, losses[name] = self._by_set(name)
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
        everyone = [one for part in replicas.gathered(seen) for one in part]
        sums = dict.fromkeys(dev, 0.0)
        for name, loss in everyone:
            sums[name] += loss / each
        return vector, sums

    def _slopes(
        self, names: tuple[str, ...], vector: Gradient, length: float, step: float, update: int
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """{dataset: (slopes, losses) of its examples}, the same on every rank."""
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
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
        for part in prober.replicas.gathered(rows):
            for name, slope, loss in part:
                found[name].append((slope, loss))
        tensors = {name: torch.tensor(pairs, dtype=torch.float64) for name, pairs in found.items()}
        return {name: (pairs[:, 0], pairs[:, 1]) for name, pairs in tensors.items()}


def _checked(losses: ExampleLosses, sizes: Mapping[int, int], j: int, model: Any, batch: Any) -> Tensor:
    return one_per_example(_OWNER, "losses(model, batch)", losses(model, batch), sizes[j])


def _not_finite(what: str, kind: str, values: Mapping[str, float]) -> str | None:
    bad = [name for name, value in values.items() if not math.isfinite(value)]
    more = f" (and {len(bad) - 1} more like it)" if len(bad) > 1 else ""
    return f"the {what} of {kind} {bad[0]!r} is not finite{more}" if bad else None
