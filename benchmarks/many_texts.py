"""Rewards of many sources of real text: those that a mixture goes by, and how long they last. For many_datasets.py."""

import copy
import json
import pydoc_data.topics
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scaling import LENGTH, Transformer, loss
from torch import Tensor, nn

from multidds import Balancer, Budget, Mixture, Probes, batches_of
from multidds.probes.probe_sources import ProbeSources
from multidds.probes.prober import Prober
from multidds.rewards import MeanSlope, StabilizedCosine
from multidds.rewards.estimate import Round
from multidds.rewards.mixed_batches import MixedBatches
from multidds.rules import paper


def texts(count: int, size: int) -> list[Tensor]:
    """Stretches of the sources and the documentation of Python's standard library, one for each dataset."""
    root = Path(json.__file__).parent.parent
    stretches = []
    for path in sorted(root.rglob("*.py")):
        text = path.read_bytes()
        stretches += [text[i : i + size] for i in range(0, len(text) - size, size)]
    stretches += [t.encode()[:size] for _, t in sorted(pydoc_data.topics.topics.items()) if len(t) >= size]
    if len(stretches) < count:
        raise SystemExit(f"There are only {len(stretches)} stretches of {size} bytes.")
    chosen = [stretches[i * len(stretches) // count] for i in range(count)]
    return [torch.frombuffer(bytearray(text), dtype=torch.uint8).long() for text in chosen]


class Windows(torch.utils.data.Dataset[Tensor]):
    def __init__(self, text: Tensor) -> None:
        self._text = text

    def __len__(self) -> int:
        return len(self._text) - LENGTH - 1

    def __getitem__(self, i: int) -> Tensor:
        return self._text[i : i + LENGTH + 1]


def example_losses(model: nn.Module, ids: Tensor) -> Tensor:
    each = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    return each.view(len(ids), -1).mean(1)


def stacked(examples: list[Tensor]) -> Tensor:
    return torch.stack(examples)


def correlation(one: dict[str, float], other: dict[str, float]) -> float:
    return float(np.corrcoef(list(one.values()), [other[name] for name in one])[0, 1])


class Reader:
    """A byte model that trains on n sources at once, and its averaged weights. average: over so many steps."""

    def __init__(self, n: int, batch: int, average: int, seed: int) -> None:
        torch.manual_seed(seed)
        self.names, self._batch, self._average = [f"t{i:04}" for i in range(n)], batch, average
        halves = {name: whole.chunk(2) for name, whole in zip(self.names, texts(n, 6000), strict=True)}
        self.train = {name: batches_of(Windows(first), batch, stacked) for name, (first, _) in halves.items()}
        self.dev = {name: batches_of(Windows(second), batch, stacked) for name, (_, second) in halves.items()}
        self.model = Transformer(width=32, layers=2, heads=4)
        self.averaged = copy.deepcopy(self.model)
        self._optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self._generator = torch.Generator().manual_seed(1 + seed)

    def learn(self, steps: int) -> None:
        for _ in range(steps):
            drawn = torch.randint(len(self.names), (self._batch,), generator=self._generator).tolist()
            examples = [self.train[self.names[i]].examples(self._generator, 1)[0] for i in drawn]
            loss(self.model, torch.stack(examples)).backward()
            self._optimizer.step()
            self._optimizer.zero_grad()
            with torch.no_grad():
                for mean, parameter in zip(self.averaged.parameters(), self.model.parameters(), strict=True):
                    mean.lerp_(parameter, 1 / self._average)

    def cosines(self, model: nn.Module, seed: int) -> dict[str, float]:
        """A full probe: two batches of every set."""
        data = {"train": self.train, "dev": self.dev, "seed": seed, "every": 1, "probes": Probes(batches=2)}
        return Balancer(Mixture.uniform(self.names), model, loss, **data, **paper()).update().rewards

    def slopes(self, model: nn.Module, seed: int, batches: float) -> dict[str, float]:
        """The same by mixed batches, so many of them for every set."""
        sources = ProbeSources("benchmark", {"train": self.train, "dev": self.dev}, seed)
        prober = Prober(model, loss, None, "train", seed, owner="benchmark")
        count = round(batches * len(self.names))
        probes = MixedBatches(prober, example_losses, sources, count, count)
        weights = dict.fromkeys(self.names, 1 / len(self.names))
        with prober.invisible():
            return probes.measure(Round(0, tuple(self.names), weights, weights, {}, {})).rewards


def text(
    n: int, updates: int, passes: int, batch: int, between: int, warm: int, average: int, seed: int, cosines: bool
) -> None:
    """The rewards that the mixture goes by, after some updates in parts, against full probes at the same parameters.

    average: steps over which the weights that are probed are averaged; 1: those of training. cosines: whether full
    probes, and updates, by gradients of single sources are made as well, which takes most of the time.
    """
    reader = Reader(n, batch, average, seed)
    reader.learn(warm)
    options: dict[str, Any] = {
        "train": reader.train,
        "dev": reader.dev,
        "steps": 50 * passes,
        "every": Budget(1.0),
        "seed": seed,
    }
    kinds = {
        kind: Balancer(Mixture.uniform(reader.names), reader.averaged, loss, reward=reward, **options)
        for kind, reward in (("mixed batches", MeanSlope(example_losses)), ("gradients of a part", StabilizedCosine()))
        if cosines or kind == "mixed batches"
    }
    took: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(updates):
        reader.learn(between if number else 0)
        for kind, balancer in kinds.items():
            began = time.process_time()
            balancer.update()
            took[kind].append(time.process_time() - began)
    began = time.process_time()
    reader.learn(20)
    step = (time.process_time() - began) / 20
    for balancer in kinds.values():  # where the parameters are now
        balancer.update()
    full = {"slopes": [reader.slopes(reader.averaged, number, 2) for number in (seed + 11, seed + 12)]}
    if cosines:
        full["cosines"] = [reader.cosines(reader.averaged, number) for number in (seed + 11, seed + 12)]
    parameters = sum(p.numel() for p in reader.model.parameters())
    print(
        f"{n} sources of 3,000 bytes, {parameters:,} parameters, {warm} steps before, weights averaged over {average}, "
        f"seed {seed},"
    )
    print(f"{updates + 1} updates of {passes} probe batches of {batch} windows, {between} steps between them.")
    for kind, (one, other) in full.items():
        print(f"  two full probes (2 batches of every set), {kind}: correlation {correlation(one, other):.3f}")
    for kind, balancer in kinds.items():
        used = balancer.history[-1].rewards
        seen = len({name for update in balancer.history for name in update.probed})
        print(f"  {kind}: {seen} of {n} seen, an update is {statistics.median(took[kind]) / step:.1f} steps")
        for of, probes in full.items():
            between_full = correlation(*probes)
            with_full = statistics.fmean(correlation(used, probe) for probe in probes)
            print(f"    with full {of}: {with_full:.3f}, {with_full / between_full:.2f} times as well as two of those")


def moments(n: int, count: int, batch: int, between: int, warm: int, average: int, seed: int) -> None:
    """How full probes (a batch of every set) at successive moments of a training correlate: with the next, at most."""
    reader = Reader(n, batch, average, seed)
    reader.learn(warm)
    found: dict[str, list[dict[str, float]]] = {"trained weights": [], "averaged weights": []}
    again: dict[str, list[float]] = {kind: [] for kind in found}
    for _ in range(count):
        reader.learn(between)
        for kind, model in (("trained weights", reader.model), ("averaged weights", reader.averaged)):
            found[kind].append(reader.slopes(model, 11, 1))
            again[kind].append(correlation(found[kind][-1], reader.slopes(model, 12, 1)))
    for kind, rewards in found.items():
        table = np.corrcoef([list(each.values()) for each in rewards])
        apart = table[np.triu_indices(count, 1)]
        print(f"{kind}: probes drawn anew at the same moment correlate {statistics.fmean(again[kind]):.2f},")
        print(
            f"  at two of {count} moments, {between} steps apart or more, {apart.min():.2f} to {apart.max():.2f}, ",
            end="",
        )
        print(f"on average {apart.mean():.2f}")
