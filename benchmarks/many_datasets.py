"""What is lost by looking at a part of many datasets at a time; and what ten thousand of them cost besides.

    python benchmarks/many_datasets.py quadratic    a world with a known answer: 10,000 quadratic losses
    python benchmarks/many_datasets.py text         rewards of 1,000 sources of real text against a full probe
    python benchmarks/many_datasets.py moments      how full probes of such sources agree from moment to moment
    python benchmarks/many_datasets.py scale        construction, draws, updates and states with 10,000 names

**quadratic.** Dataset i has the loss |theta - c_i|^2 / 2 (of examples c_i + noise), dev set k |theta - g_k|^2 / 2. With
a mixture P training ends at m = sum P_i c_i, where the slope of dataset i is <c_i - m, g - m>, g the mean of the g_k.
The default plans by these slopes, P_i ~ max(slope_i, 0)^2 above its floor: a fixed point in m alone, solved here to
1e-9, where it should arrive, the more slowly the less it sees. One coordinate more, far from what all want, stands for
what a model has still to learn from any dataset: without it half of the datasets would be harmful.
"""

import argparse
import json
import logging
import math
import time
from typing import Any

import numpy as np
import torch
from many_texts import moments, text
from torch import Tensor, nn

from multidds import Balancer, Budget, Limits, Mixture, MixtureSampler
from multidds.mixture.planned import planned
from multidds.rewards import MeanSlope

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
