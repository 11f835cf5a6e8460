"""A small causal language model over four unequal domains of made-up text, with draws per example and a checkpoint.

Shows the example-level sampler in an ordinary DataLoader, per-dataset passes, a static baseline beside the learned
mixture, and a save and resume in the middle. Needs no download.

    python examples/language_model.py
"""

import io
import random

import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset

from multidds import Balancer, Mixture, MixtureSampler, batches_of

LENGTH = 48  # characters of an example
SIZES = {"prose": 3000, "sums": 150, "dates": 300, "code": 800}
ALPHABET = sorted(set(" abcdefghijklmnopqrstuvwxyz0123456789+=-;()[],.:\n"))


def sentence(domain: str, rng: random.Random) -> str:
    if domain == "sums":
        a, b = rng.randrange(30), rng.randrange(30)
        return f"{a}+{b}={a + b};"
    if domain == "dates":
        return f"{rng.randrange(1990, 2030)}-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02};"
    if domain == "code":
        name = rng.choice(["sort", "find", "push", "take"])
        return f"{name}({rng.choice(['xs', 'ys', 'zs'])}[{rng.randrange(10)}], {rng.choice(['key', 'end'])});\n"
    who, verb, what = rng.choice(["the cat", "a dog", "my friend"]), rng.choice(["sees", "likes"]), rng.choice(
        ["the old house", "a red apple", "the quiet sea", "every morning"]
    )  # fmt: skip
    return f"{who} {verb} {what}. "


def examples(domain: str, size: int, seed: int) -> TensorDataset:
    rng = random.Random(f"{domain} {seed}")
    index = {character: i for i, character in enumerate(ALPHABET)}
    rows = []
    for _ in range(size):
        text = ""
        while len(text) < LENGTH + 1:
            text += sentence(domain, rng)
        rows.append([index[character] for character in text[: LENGTH + 1]])
    return TensorDataset(torch.tensor(rows))


class LanguageModel(nn.Module):
    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(ALPHABET), width)
        self.recurrent = nn.GRU(width, 2 * width, batch_first=True)
        self.out = nn.Sequential(nn.Dropout(0.1), nn.Linear(2 * width, len(ALPHABET)))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:  # [batch, length] -> [batch, length, characters]
        return self.out(self.recurrent(self.embed(ids))[0])


def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    (ids,) = batch
    return nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


class Run:
    """Everything of one training, so that it can be saved and loaded as one."""

    def __init__(self, balance: bool) -> None:
        torch.manual_seed(0)
        self.data = {name: examples(name, size, seed=0) for name, size in SIZES.items()}
        self.dev = {name: examples(name, 100, seed=1) for name in SIZES}
        self.model = LanguageModel()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=3e-3)
        self.mixture = Mixture.proportional(SIZES)
        self.sampler = MixtureSampler(SIZES, self.mixture, batch_size=32, seed=1)
        self.balancer = None
        if balance:
            self.balancer = Balancer(
                self.mixture,
                self.model,
                loss,
                train={name: batches_of(d, 32) for name, d in self.data.items()},
                dev={name: batches_of(d, 32) for name, d in self.dev.items()},
                every=20,
            )

    def train(self, steps: int) -> None:
        loader = DataLoader(ConcatDataset(self.data.values()), batch_sampler=self.sampler)
        for _, batch in zip(range(steps), loader, strict=False):
            loss(self.model, batch).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            if self.balancer:
                self.balancer.step()

    def parts(self) -> dict[str, object]:
        parts = {"model": self.model, "optimizer": self.optimizer, "sampler": self.sampler, "balancer": self.balancer}
        return {name: part for name, part in parts.items() if part is not None}

    def dev_losses(self) -> dict[str, float]:
        self.model.eval()
        with torch.no_grad():
            losses = {name: loss(self.model, list(d.tensors)).item() for name, d in self.dev.items()}
        self.model.train()
        return losses


def main(steps: int = 300) -> dict[str, dict[str, float]]:
    torch.set_num_threads(1)
    losses = {}
    for method in ("proportional", "multidds-s"):
        run = Run(balance=method == "multidds-s")
        run.train(steps // 2)

        checkpoint = io.BytesIO()  # or a file: nothing in it needs pickled code
        torch.save({name: part.state_dict() for name, part in run.parts().items()}, checkpoint)
        checkpoint.seek(0)
        run = Run(balance=method == "multidds-s")
        saved = torch.load(checkpoint, weights_only=True)
        for name, part in run.parts().items():
            part.load_state_dict(saved[name])

        run.train(steps - steps // 2)
        losses[method] = run.dev_losses()
        print(f"{method}\n{'':10}{'examples':>10}{'mixture':>10}{'passes':>10}{'dev loss':>10}")
        for name, size in SIZES.items():
            share, passes = f"{run.mixture[name]:.1%}", f"{run.sampler.passes[name]:.1f}"
            print(f"{name:10}{size:10}{share:>10}{passes:>10}{losses[method][name]:10.3f}")
        print(f"{'mean':10}{sum(losses[method].values()) / len(SIZES):40.3f}\n")
    return losses


if __name__ == "__main__":
    main()
