"""The task of plain_loop.py with Accelerate: on one process or, with `torchrun`, on several.

`accelerator.prepare` takes the model and the optimizer but not the loader. It would divide the batches among the
processes a second time (the sampler has done it: rank r takes every W-th draw of one sequence), and it reads one batch
ahead, so that a saved sampler would be one batch too far. Batches are moved to the device in `loss` instead.

    python examples/accelerate_loop.py
    torchrun --nproc-per-node 2 examples/accelerate_loop.py
"""

import tempfile

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, set_seed
from plain_loop import SIZES, WIDTH, accuracy, examples
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader

from multidds import Balancer, Mixture, MixtureSampler, Probes, batches_of
from multidds.rules import RelevancePlan


def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    device = next(model.parameters()).device
    x, y = (tensor.to(device) for tensor in batch)
    return nn.functional.cross_entropy(model(x), y)


class Run:
    """A training. `batch_size` and `probes` are of all processes, so that their number does not change the result."""

    def __init__(self, batch_size: int = 64, probes: int = 2, accumulate: int = 1, dropout: float = 0.1) -> None:
        self.accelerator = accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
        set_seed(0)
        data = {name: examples(name, size, seed=i) for i, (name, size) in enumerate(SIZES.items())}
        dev = {"web": examples("web", 300, seed=10), "rare": examples("rare", 300, seed=11)}
        model = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Dropout(dropout), nn.Linear(64, 2))
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        self.model, self.optimizer = accelerator.prepare(model, optimizer)

        self.mixture = Mixture.proportional(SIZES)
        per_process = batch_size // accelerator.num_processes
        sampler = MixtureSampler(
            SIZES, self.mixture, per_process, seed=1
        )  # after Accelerator(), which starts the group of processes
        # Not prepared. With a generator of its own: starting it again, after a resume, does not draw from dropout's.
        self.loader = DataLoader(ConcatDataset(data.values()), batch_sampler=sampler, generator=torch.Generator())
        self.balancer = Balancer(
            self.mixture,
            self.model,
            loss,
            train={name: batches_of(d, 64) for name, d in data.items()},
            dev={name: batches_of(d, 64) for name, d in dev.items()},
            every=20,
            rule=RelevancePlan(plan=False),  # the length is open
            probes=Probes(batches=probes, count="in all"),
        )
        # `accelerator.save_state` and `load_state` then include mixture, draws and rule.
        accelerator.register_for_checkpointing(self.balancer, sampler)

    def train(self, batches: int) -> None:
        for _, batch in zip(range(batches), self.loader, strict=False):
            with self.accelerator.accumulate(self.model):
                self.accelerator.backward(loss(self.model, batch))
                self.optimizer.step()
                self.optimizer.zero_grad()
            if self.accelerator.sync_gradients:  # an optimizer step was made
                self.balancer.step()


def main(steps: int = 1000, folder: str | None = None) -> dict[str, float]:
    torch.set_num_threads(1)
    run = Run()
    run.train(steps // 2)
    (folder,) = broadcast_object_list([folder or tempfile.mkdtemp()])  # one for all processes
    run.accelerator.save_state(folder)
    run = Run()  # as if it had been stopped and started again
    run.accelerator.load_state(folder)
    run.train(steps - steps // 2)
    model = run.accelerator.unwrap_model(run.model).eval()
    scores = {name: accuracy(model, examples(name, 2000, seed=20 + i)) for i, name in enumerate(("web", "rare"))}
    shares = "  ".join(f"{name} {p:.1%}" for name, p in run.mixture.probabilities.items())
    run.accelerator.print(f"mixture: {shares}\ntest accuracy: web {scores['web']:.1%}  rare {scores['rare']:.1%}")
    return run.mixture.probabilities


if __name__ == "__main__":
    main()
