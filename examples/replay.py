"""A mixture learned with a small model, replayed for a bigger one without probing.

The small model learns a mixture for the data of plain_loop.py. The history of the mixture goes into a JSON file: the
step and the probabilities of every update. The big model is trained with `Replay` in the place of a balancer: it draws
what the small one drew and needs no probes. `multidds mixture RUN --history` prints such a file for a run of the
translation application.

    python examples/replay.py
"""

import json
import tempfile
from pathlib import Path

import torch
from plain_loop import SIZES, WIDTH, accuracy, examples, loss
from torch import nn
from torch.utils.data import DataLoader

from multidds import Balancer, Mixture, batches_of, interleave
from multidds.mixture import Replay

DATA = {name: examples(name, size, seed=i) for i, (name, size) in enumerate(SIZES.items())}
DEV = {"web": examples("web", 300, seed=10), "rare": examples("rare", 300, seed=11)}
TEST = {"web": examples("web", 2000, seed=20), "rare": examples("rare", 2000, seed=21)}


def perceptron(width: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, 2))


def train(model: nn.Module, mixture: Mixture, mover: Balancer | Replay | None, steps: int) -> list[str]:
    """The plain loop, with whatever moves the mixture. Returns the dataset that each step drew."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loaders = {name: DataLoader(d, batch_size=64, shuffle=True) for name, d in DATA.items()}
    drawn = []
    for _, (name, batch) in zip(range(steps), interleave(loaders, mixture, seed=1), strict=False):
        drawn.append(name)
        loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        if mover:
            mover.step()
    return drawn


def learn(path: Path, steps: int) -> tuple[nn.Module, list[str]]:
    """Train a small model with a balancer, and write the history of its mixture."""
    model, mixture = perceptron(width=16), Mixture.proportional(SIZES)
    balancer = Balancer(
        mixture,
        model,
        loss,
        train={name: batches_of(d, 128) for name, d in DATA.items()},
        dev={name: batches_of(d, 128) for name, d in DEV.items()},
        steps=steps,
        examples_per_step=64,
        every=20,
    )
    prior = mixture.probabilities
    drawn = train(model, mixture, balancer, steps)
    # balancer.history keeps the last 100 updates: in a longer run, collect what balancer.step() returns.
    history = [(0, prior), *((update.step, update.mixture) for update in balancer.history)]
    path.write_text(json.dumps(history))
    return model, drawn


def replay(path: Path, steps: int) -> tuple[nn.Module, list[str]]:
    """Train a big model with the mixtures of a history."""
    model, mixture = perceptron(width=256), Mixture.proportional(SIZES)
    return model, train(model, mixture, Replay(mixture, json.loads(path.read_text())), steps)


def main(steps: int = 1000) -> dict[str, dict[str, float]]:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        small, drawn = learn(Path(folder) / "history.json", steps)
        big, drawn_again = replay(Path(folder) / "history.json", steps)
    static = perceptron(width=256)
    train(static, Mixture.proportional(SIZES), None, steps)
    models = {"small, learned": small, "big, replayed": big, "big, proportional": static}
    found = {name: {test: accuracy(model.eval(), d) for test, d in TEST.items()} for name, model in models.items()}
    print(f"the same draws: {drawn == drawn_again}\n{'test accuracy':18}" + "".join(f"{name:>8}" for name in TEST))
    for name, accuracies in found.items():
        print(f"{name:18}" + "".join(f"{value:8.1%}" for value in accuracies.values()))
    return found


if __name__ == "__main__":
    main()
