"""Small models and data that several test files use."""

import torch
from torch import nn
from torch.utils.data import TensorDataset


class Everything(nn.Module):
    """Dropout, batch norm, a non-persistent buffer that moves, one that is replaced, frozen, tied and unused parts."""

    def __init__(self, width=6):
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.norm = nn.BatchNorm1d(width)
        self.frozen = nn.Linear(width, width)
        self.tied_a = nn.Linear(width, width, bias=False)
        self.tied_b = nn.Linear(width, width, bias=False)
        self.tied_b.weight = self.tied_a.weight
        self.unused = nn.Linear(3, 3)
        self.head = nn.Linear(width, 3)
        self.drop = nn.Dropout(0.4)
        self.frozen.requires_grad_(False)
        self.register_buffer("calls", torch.zeros(1), persistent=False)
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("nothing", None)
        self.register_buffer("expanded", torch.ones(1).expand(5))

    def forward(self, x):
        self.calls += 1
        h = self.drop(torch.relu(self.norm(self.embed(x))))
        self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0).to(self.mean.dtype)
        return self.head(self.tied_b(torch.tanh(self.tied_a(self.drop(self.frozen(h))))))


def mlp(seed=0, dtype=torch.float64, width=5):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 3)).to(dtype)


def loss(model, batch):
    x, y = batch
    return nn.functional.cross_entropy(model(x), y)


def batch(seed, size=7, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, 4, generator=generator, dtype=dtype), torch.randint(0, 3, (size,), generator=generator)


def batches(names, count=1, seed=0, dtype=torch.float64):
    """{name: [batch, ...]}, as fixed lists: what a probe sees is then known."""
    return {name: [batch(1000 * seed + 100 * i + j, dtype=dtype) for j in range(count)] for i, name in enumerate(names)}


def dataset(size=20, seed=0, dtype=torch.float64):
    return TensorDataset(*batch(seed, size, dtype))


def losses(model, batch):
    """The losses of single examples."""
    x, y = batch
    return nn.functional.cross_entropy(model(x), y, reduction="none")


def train_step(model, number, lr=0.5):
    """One step of gradient descent on the batch of this number; random numbers are those of the number."""
    torch.manual_seed(number)
    loss(model, batch(number)).backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= lr * p.grad
            p.grad = None


class Places:
    """An endless iterator over batches that keeps its own place."""

    def __init__(self):
        self.place = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.place += 1
        return batch(self.place)

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]
