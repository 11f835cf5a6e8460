"""The loss from probing a part of many datasets at a time, and other costs of ten thousand datasets.

python benchmarks/many_datasets.py text         relevance of 1,000 sources of real text against full probes
python benchmarks/many_datasets.py moments      agreement of full probes of such sources from moment to moment
python benchmarks/many_datasets.py scale        construction, draws, updates and states with 10,000 names
"""

import argparse
import copy
import json
import logging
import math
import pydoc_data.topics
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scaling import LENGTH, Transformer, loss
from torch import Tensor, nn

from multidds import Balancer, Budget, Limits, Mixture, MixtureSampler, Probes, batches_of
from multidds.rules import paper

# ---------------------------------------------------------------------------------------------- real text


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


def stacked(examples: list[Tensor]) -> Tensor:
    return torch.stack(examples)


def correlation(one: dict[str, float], other: dict[str, float]) -> float:
    return float(np.corrcoef(list(one.values()), [other[name] for name in one])[0, 1])


class Reader:
    """A byte model that trains on n sources at once, and its averaged weights. average: over so many steps."""

    def __init__(self, n: int, batch: int, average: int, seed: int) -> None:
        torch.manual_seed(seed)
        self.names, self._batch, self._average = [f"t{i:04}" for i in range(n)], batch, average
        first, second = zip(*(map(Windows, whole.chunk(2)) for whole in texts(n, 6000)), strict=True)
        self._windows = first
        self.train, self.dev = (
            {name: batches_of(windows, batch, stacked) for name, windows in zip(self.names, half, strict=True)}
            for half in (first, second)
        )
        self.model = Transformer(width=32, layers=2, heads=4)
        self.averaged = copy.deepcopy(self.model)
        self._optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self._generator = torch.Generator().manual_seed(1 + seed)

    def learn(self, steps: int) -> None:
        for _ in range(steps):
            loss(self.model, torch.stack([self._drawn() for _ in range(self._batch)])).backward()
            self._optimizer.step()
            self._optimizer.zero_grad()
            with torch.no_grad():
                for mean, parameter in zip(self.averaged.parameters(), self.model.parameters(), strict=True):
                    mean.lerp_(parameter, 1 / self._average)

    def _drawn(self) -> Tensor:
        windows = self._windows[int(torch.randint(len(self._windows), (), generator=self._generator))]
        return windows[int(torch.randint(len(windows), (), generator=self._generator))]

    def cosines(self, model: nn.Module, seed: int, batches: int) -> dict[str, float]:
        """Returns the rewards of a full probe."""
        data = {"train": self.train, "dev": self.dev, "seed": seed, "every": 1, "probes": Probes(batches=batches)}
        return Balancer(Mixture.uniform(self.names), model, loss, **data, rule=paper()).update().rewards


def text(n: int, updates: int, passes: int, batch: int, between: int, warm: int, average: int, seed: int) -> None:
    """The relevance that the mixture follows, after some updates in parts, against full probes at the same parameters.

    average: steps over which the weights that are probed are averaged; 1: those of training.
    """
    reader = Reader(n, batch, average, seed)
    reader.learn(warm)
    balancer = Balancer(
        Mixture.uniform(reader.names),
        reader.averaged,
        loss,
        train=reader.train,
        dev=reader.dev,
        steps=50 * passes,
        every=Budget(1.0),
        probes=Probes(average=0),
        seed=seed,
    )
    took: list[float] = []
    for number in range(updates):
        reader.learn(between if number else 0)
        began = time.process_time()
        balancer.update()
        took.append(time.process_time() - began)
    began = time.process_time()
    reader.learn(20)
    step = (time.process_time() - began) / 20
    balancer.update()  # where the parameters are now
    full = [reader.cosines(reader.averaged, number, 2) for number in (seed + 11, seed + 12)]
    relevance = {
        name: math.sqrt(p) for name, p in balancer.mixture.probabilities.items()
    }  # to which it is in proportion
    agreement = statistics.fmean(correlation(relevance, probe) for probe in full)
    seen = len({name for update in balancer.history for name in update.probed})
    parameters = sum(p.numel() for p in reader.model.parameters())
    print(
        f"{n} sources of 3,000 bytes, {parameters:,} parameters, {warm} steps before, weights averaged over {average},"
    )
    print(f"seed {seed}, {updates + 1} updates, {between} steps between them.")
    print(f"An update takes as long as {statistics.median(took) / step:.1f} steps.")
    print(f"two full probes (2 batches of every set): correlation {correlation(*full):.3f}")
    print(f"relevance, with {seen} of {n} seen: {agreement:.3f}, {agreement / correlation(*full):.2f} times as well")


def moments(n: int, count: int, batch: int, between: int, warm: int, average: int, seed: int) -> None:
    """How full probes (a batch of every set) at successive moments of a training correlate: with the next, at most."""
    reader = Reader(n, batch, average, seed)
    reader.learn(warm)
    found: dict[str, list[dict[str, float]]] = {"trained weights": [], "averaged weights": []}
    again: dict[str, list[float]] = {kind: [] for kind in found}
    for _ in range(count):
        reader.learn(between)
        for kind, model in (("trained weights", reader.model), ("averaged weights", reader.averaged)):
            found[kind].append(reader.cosines(model, 11, 1))
            again[kind].append(correlation(found[kind][-1], reader.cosines(model, 12, 1)))
    for kind, rewards in found.items():
        table = np.corrcoef([list(each.values()) for each in rewards])
        apart = table[np.triu_indices(count, 1)]
        print(f"{kind}: probes drawn anew at the same moment correlate {statistics.fmean(again[kind]):.2f},")
        print(
            f"  at two of {count} moments, {between} steps apart or more, {apart.min():.2f} to {apart.max():.2f}, ",
            end="",
        )
        print(f"on average {apart.mean():.2f}")


# ---------------------------------------------------------------------------------------------- ten thousand names


class Point(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(width, dtype=torch.float64))


def mean_square(model: Any, batch: Tensor) -> Tensor:
    return (model.theta - batch).square().sum(-1).mean() / 2


def scale(n: int) -> None:
    names = [f"corpus-{i:05}" for i in range(n)]
    model = Point(8)

    def timed(what: str, function: Any, times: int = 1) -> Any:
        began = time.process_time()
        for _ in range(times):
            result = function()
        print(f"  {what:<46} {(time.process_time() - began) / times * 1e3:>10.4g} ms", flush=True)
        return result

    print(f"{n:,} datasets and dev sets")
    mixture = timed("Mixture.proportional", lambda: Mixture.proportional({name: 1 + i for i, name in enumerate(names)}))
    sources = {name: batches_of(torch.randn(16, 8, dtype=torch.float64), 8) for name in names}

    def make(**options: Any) -> Balancer:
        return Balancer(mixture, model, mean_square, train=sources, dev=sources, steps=100_000, **options)

    parts = timed("Balancer", make)
    timed("an update of it", parts.update, 3)
    limits = Limits(bounds={names[0]: (0.0, 0.5)}, max_passes=4.0)
    limited = timed("Balancer, limits", lambda: make(examples_per_step=10, limits=limits))
    timed("an update of it", limited.update, 3)
    timed("a step of it without an update", limited.step, 10)
    for kind, balancer in (("parts", parts), ("limits", limited)):
        state = balancer.state_dict()
        text = timed(f"state as JSON, {kind}", lambda state=state: json.dumps({**state, "tensors": {}}))
        print(f"  {'':<46} {len(text) / 1e6:>10.3g} MB")
        timed("load_state_dict", lambda balancer=balancer, state=state: balancer.load_state_dict(state))
    sampler = timed("MixtureSampler", lambda: MixtureSampler(dict.fromkeys(names, 1000), mixture, batch_size=1000))
    draws = iter(sampler)
    next(draws)
    timed("1,000 draws", lambda: next(draws), 20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["text", "moments", "scale"])
    parser.add_argument("--datasets", type=int, help="by default 10,000; of text 1,000")
    parser.add_argument("--updates", type=int, help="by default 20; of moments 6")
    parser.add_argument("--passes", type=int, default=50, help="text: probe batches of an update")
    parser.add_argument("--batch", type=int, default=16, help="text: windows of a batch")
    parser.add_argument("--between", type=int, default=10, help="text: steps between updates")
    parser.add_argument("--warm", type=int, default=400, help="text: steps before the first update")
    parser.add_argument("--average", type=int, default=40, help="text: steps of the average whose weights are probed")
    parser.add_argument("--seed", type=int, default=0, help="text: of the model, of training and of probes")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    logging.disable(logging.WARNING)
    training = args.batch, args.between, args.warm, args.average, args.seed
    if args.what == "text":
        text(args.datasets or 1000, args.updates or 20, args.passes, *training)
    elif args.what == "moments":
        moments(args.datasets or 100, args.updates or 6, *training)
    else:
        scale(args.datasets or 10_000)


if __name__ == "__main__":
    main()
