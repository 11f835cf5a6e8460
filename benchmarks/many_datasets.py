"""The loss from probing a part of many datasets at a time, and other costs of ten thousand datasets.

    python benchmarks/many_datasets.py quadratic    a world with a known answer: 10,000 quadratic losses
    python benchmarks/many_datasets.py text         rewards of 1,000 sources of real text against a full probe
    python benchmarks/many_datasets.py moments      agreement of full probes of such sources from moment to moment
    python benchmarks/many_datasets.py scale        construction, draws, updates and states with 10,000 names

**quadratic.** Dataset i has the loss |theta - c_i|^2 / 2 (of examples c_i + noise), dev set k |theta - g_k|^2 / 2.
With a mixture P training ends at m = sum P_i c_i. There the slope of dataset i is <c_i - m, g - m>, with g the mean
of the g_k. The default plans by these slopes, P_i ~ max(slope_i, 0)^2 above its floor. This is a fixed point in m
alone, solved here to 1e-9. The default should arrive there, more slowly if it sees less. One more coordinate, far
from all goals, stands for what a model still has to learn from any dataset. Without it half of the datasets would be
harmful.
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
from multidds.mixture.planned import planned
from multidds.probes.probe_sources import ProbeSources
from multidds.probes.prober import Prober
from multidds.rewards import MeanSlope, StabilizedCosine
from multidds.rewards.estimate import Round
from multidds.rewards.mixed_batches import MixedBatches
from multidds.rules import paper

_COMMON = 5.0  # the coordinate that a model has still to learn from any dataset

# ---------------------------------------------------------------------------------------------- quadratic losses


class Cloud:
    """Examples around a centre, as a source for batches that mix datasets."""

    batch_size = 16
    collate_fn = staticmethod(torch.stack)

    def __init__(self, centre: Tensor, noise: float) -> None:
        self._centre, self._noise = centre, noise

    def examples(self, generator: torch.Generator, count: int) -> list[Tensor]:
        drawn = self._centre.repeat(count, 1)
        noise = torch.randn((count, len(self._centre) - 1), generator=generator, dtype=torch.float64)
        drawn[:, 1:] += self._noise * noise
        return list(drawn)

    def __call__(self, generator: torch.Generator) -> Tensor:
        return self.collate_fn(self.examples(generator, self.batch_size))


class Point(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(width, dtype=torch.float64))


def squares(model: Any, batch: Tensor) -> Tensor:
    return (model.theta - batch).square().sum(-1) / 2


def mean_square(model: Any, batch: Tensor) -> Tensor:
    return squares(model, batch).mean()


def best(centres: Tensor, goal: Tensor) -> Tensor:
    """The mixture of the fixed point, from a uniform prior: the plan by slopes that are known without noise."""
    n = len(centres)
    p = torch.full((n,), 1 / n, dtype=torch.float64)
    for _ in range(1000):
        end = p @ centres
        slopes = (_COMMON**2 + (centres - end) @ (goal - end)).clamp(min=0)
        target = torch.from_numpy(planned(np.full(n, 1e30), 1.0, np.ones(1), slopes.numpy()[None]))
        step = (target - p).abs().sum()
        p = p + 0.3 * (target - p)
        if step < 1e-9:
            break
    return p


def quadratic(n: int, dev_sets: int, width: int, noise: float, given: int | None, shares: list[float]) -> None:
    generator = torch.Generator().manual_seed(1)
    centres = torch.randn((n, width), generator=generator, dtype=torch.float64)
    goals = 3.0 + 0.5 * torch.randn((dev_sets, width), generator=generator, dtype=torch.float64)
    goal = goals.mean(0)
    names = [f"d{i:05}" for i in range(n)]
    answer = best(centres, goal)

    def gap(p: Tensor) -> float:
        """The dev loss where training with this mixture ends."""
        return float((p @ centres - goal).square().sum() / 2)

    start = gap(torch.full((n,), 1 / n, dtype=torch.float64))
    print(f"{n:,} datasets, {dev_sets} dev sets, {width} parameters, examples with a noise of {noise:g} around centres")
    print("of unit spread. Dev loss at the end of training, as a share of what the best mixture gains over the prior:")
    print(
        f"  {'looked at':>12} {'examples':>9} {'seconds':>8}  after updates " + "".join(f"{u:>8}" for u in marks(300))
    )
    for share in shares:
        model, mixture = Point(1 + width), Mixture.uniform(names)
        sources = {name: Cloud(with_common(c), noise) for name, c in zip(names, centres, strict=True)}
        dev = {f"k{i}": Cloud(with_common(g), noise) for i, g in enumerate(goals)}
        updates = given or round(30 / math.sqrt(share))
        passes = max(6, math.ceil(1.5 * share * n * 2 / Cloud.batch_size))  # a third of it for dev sets
        steps = 1_000_000
        balancer = Balancer(
            mixture,
            model,
            mean_square,
            train=sources,
            dev=dev,
            steps=steps,
            every=Budget(passes * 50 / steps),
            reward=MeanSlope(squares),
            seed=3,
        )
        found, began, examples = {}, time.process_time(), 0
        for update in range(1, updates + 1):
            done = balancer.update()
            examples = len(done.probed)
            p = torch.tensor([done.mixture[name] for name in names], dtype=torch.float64)
            with torch.no_grad():  # training between updates ends where the mixture leads
                model.theta[1:] += 0.3 * (p @ centres - model.theta[1:])
            if update in marks(updates):
                moved = float((p - answer).abs().sum() / 2)
                found[update] = (start - gap(p)) / (start - gap(answer)), moved
        cells = "".join(f"{gain:>8.0%}" for gain, _ in found.values())
        seconds = (time.process_time() - began) / updates
        print(f"  {examples / n:>12.1%} {examples * 2:>9,} {seconds:>8.2f}  {'gain':>13} {cells}")
        cells = "".join(f"{moved:>8.3f}" for _, moved in found.values())
        print(f"  {'':>12} {'':>9} {'':>8}  {'distance':>13} {cells}", flush=True)
    uniform = torch.full((n,), 1 / n, dtype=torch.float64)
    print(f"  (the prior is {float((uniform - answer).abs().sum() / 2):.3f} from the best mixture, in total variation)")


def with_common(centre: Tensor) -> Tensor:
    return torch.cat([torch.tensor([_COMMON], dtype=torch.float64), centre])


def marks(updates: int) -> list[int]:
    return [u for u in (1, 3, 10, 30, 100, 300, 1000) if u <= updates]


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


# ---------------------------------------------------------------------------------------------- ten thousand names


def scale(n: int) -> None:
    names = [f"corpus-{i:05}" for i in range(n)]
    model = Point(8)
    centres = torch.randn((n, 8), dtype=torch.float64)

    def timed(what: str, function: Any, times: int = 1) -> Any:
        began = time.process_time()
        for _ in range(times):
            result = function()
        print(f"  {what:<46} {(time.process_time() - began) / times * 1e3:>10.4g} ms", flush=True)
        return result

    print(f"{n:,} datasets and dev sets")
    mixture = timed("Mixture.proportional", lambda: Mixture.proportional({name: 1 + i for i, name in enumerate(names)}))
    clouds = {name: Cloud(c, 1.0) for name, c in zip(names, centres, strict=True)}

    def make(**options: Any) -> Balancer:
        return Balancer(mixture, model, mean_square, train=clouds, dev=clouds, steps=100_000, **options)

    slopes = MeanSlope(squares)
    mixed = timed("Balancer, mixed batches", lambda: make(reward=slopes))
    timed("an update of it", mixed.update, 3)
    parts = timed("Balancer, gradients of a part", make)
    timed("an update of it", parts.update, 3)
    limits = Limits(bounds={names[0]: (0.0, 0.5)}, max_passes=4.0)
    limited = timed("Balancer, limits", lambda: make(reward=slopes, examples_per_step=10, limits=limits))
    timed("an update of it", limited.update, 3)
    timed("a step of it without an update", limited.step, 10)
    for kind, balancer in (("mixed", mixed), ("parts", parts), ("limits", limited)):
        state = balancer.state_dict()
        text = timed(f"state as JSON, {kind}", lambda state=state: json.dumps({**state, "tensors": {}}))
        print(f"  {'':<46} {len(text) / 1e6:>10.3g} MB")
        timed("load_state_dict", lambda balancer=balancer, state=state: balancer.load_state_dict(state))
    sampler = timed("MixtureSampler", lambda: MixtureSampler(dict.fromkeys(names, 1000), mixture, batch_size=1000))
    draws = iter(sampler)
    next(draws)
    timed("1,000 draws", lambda: next(draws), 20)
    whole = Balancer(mixture, model, mean_square, train=clouds, dev=clouds, every=1000)
    print(
        f"  {'state where all are probed':<46} {len(json.dumps({**whole.state_dict(), 'tensors': {}})) / 1e6:>10.3g} MB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["quadratic", "text", "moments", "scale"])
    parser.add_argument("--datasets", type=int, help="by default 10,000; of text 1,000")
    parser.add_argument("--updates", type=int, help="by default 20, of quadratic 30 / share ** 0.5")
    parser.add_argument("--noise", type=float, default=3.0, help="of an example of a quadratic loss")
    parser.add_argument("--shares", type=float, nargs="+", default=[1.0, 0.1, 0.01], help="looked at in an update")
    parser.add_argument("--passes", type=int, default=50, help="text: probe batches of an update")
    parser.add_argument("--batch", type=int, default=16, help="text: windows of a batch")
    parser.add_argument("--between", type=int, default=10, help="text: steps between updates")
    parser.add_argument("--warm", type=int, default=400, help="text: steps before the first update")
    parser.add_argument("--average", type=int, default=40, help="text: steps of the average whose weights are probed")
    parser.add_argument("--seed", type=int, default=0, help="text: of the model, of training and of probes")
    parser.add_argument(
        "--slopes", action="store_true", help="text: mixed batches alone, against full probes by slopes"
    )
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    logging.disable(logging.WARNING)
    if args.what == "quadratic":
        quadratic(args.datasets or 10_000, 100, 16, args.noise, args.updates, args.shares)
    elif args.what == "text":
        text(
            args.datasets or 1000,
            args.updates or 20,
            args.passes,
            args.batch,
            args.between,
            args.warm,
            args.average,
            args.seed,
            cosines=not args.slopes,
        )
    elif args.what == "moments":
        moments(args.datasets or 100, args.updates or 6, args.batch, args.between, args.warm, args.average, args.seed)
    else:
        scale(args.datasets or 10_000)


if __name__ == "__main__":
    main()
