"""Streams that keep their own place: torchdata's StatefulDataLoader inside `interleave`, saved and resumed exactly.

For data that cannot be indexed, such as a corpus read line by line. A StatefulDataLoader saves the place of each of its
workers; `interleave` has one per dataset and puts their states into its own. Data with indices can have a
MixtureSampler as its batch_sampler: without workers its place is saved and restored too. With workers, batches that
had been read ahead would be drawn again from the mixture after the resume: see language_model.py for that.

    python examples/stateful_loader.py
"""

import io
from collections.abc import Iterator
from typing import Any

import torch
from plain_loop import SIZES, WIDTH, examples, loss
from torch import nn
from torch.utils.data import IterableDataset, TensorDataset, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

from multidds import Balancer, Mixture, batches_of, interleave
from multidds.rules import RelevancePlan


class Stream(IterableDataset):
    """A stream of examples that each worker reads a part of, and whose place can be saved."""

    def __init__(self, data: TensorDataset) -> None:
        self.data, self.next = data, 0

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        while (place := self.next * workers + worker) < len(self.data):
            self.next += 1
            yield self.data[place]
        self.next = 0  # the next pass begins anew

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]


class Run:
    def __init__(self, workers: int = 0) -> None:
        torch.manual_seed(0)
        data = {name: examples(name, size, seed=i) for i, (name, size) in enumerate(SIZES.items())}
        dev = {"web": examples("web", 300, seed=10), "rare": examples("rare", 300, seed=11)}
        self.model = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 2))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=3e-3)
        self.mixture = Mixture.proportional(SIZES)
        loaders = {name: StatefulDataLoader(Stream(d), batch_size=64, num_workers=workers) for name, d in data.items()}
        self.stream = interleave(loaders, self.mixture, seed=1)
        self.balancer = Balancer(
            self.mixture,
            self.model,
            loss,
            train={name: batches_of(d, 128) for name, d in data.items()},
            dev={name: batches_of(d, 128) for name, d in dev.items()},
            every=20,
            rule=RelevancePlan(plan=False),  # the length is open
        )

    def train(self, steps: int) -> None:
        for _, (_, batch) in zip(range(steps), self.stream, strict=False):
            loss(self.model, batch).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.balancer.step()

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name).state_dict() for name in ("model", "optimizer", "stream", "balancer")}

    def load_state_dict(self, states: dict[str, Any]) -> None:
        for name, state in states.items():
            getattr(self, name).load_state_dict(state)


def main(steps: int = 1000, workers: int = 0) -> Run:
    torch.set_num_threads(1)
    run = Run(workers)
    run.train(steps // 2)
    file = io.BytesIO()
    torch.save(run.state_dict(), file)
    file.seek(0)
    run = Run(workers)  # as if it had been stopped and started again
    run.load_state_dict(torch.load(file, weights_only=True))
    run.train(steps - steps // 2)
    for name in SIZES:
        print(f"{name:6} mixture {run.mixture[name]:6.1%}   passes {run.stream.passes[name]:4.0f}")
    return run


if __name__ == "__main__":
    main()
