"""Fine-tuning one encoder on three tasks at once, of which one is tiny and the largest is useless.

The text is real: statements from the standard library's Python files on this machine, without their first word. A small
convolutional encoder is first trained briefly to fill in hidden characters, then fine-tuned with a head for each task.
`indent`: is the next line indented more, the same or less? `word` (few examples): which word was removed? `parity`, the
largest: is the number of the line even? Nothing in a line tells, and there is no dev set for it. Training, dev and test
lines come from different files.

    python examples/multitask.py
"""

import random
import sysconfig
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from multidds import Balancer, Mixture, Probes, batches_of, interleave

SIZES = {"indent": 1500, "word": 200, "parity": 6000}
WORDS = ("if", "return", "def", "for", "raise", "import")
CLASSES = {"indent": 3, "word": len(WORDS), "parity": 2}
ASKED_FOR = ("indent", "word")
METHODS = {"proportional": 1.0, "temperature 5": 5.0, "uniform": float("inf"), "learned": 1.0}  # tau of the prior
LENGTH = 48  # characters of a line that the model sees
Row = tuple[str, dict[str, int]]  # a line, and its label for each task


def lines() -> dict[str, list[Row]]:
    """By split. A file is in one split only."""
    found: dict[str, list[Row]] = {"train": [], "dev": [], "test": []}
    for i, path in enumerate(sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))):
        rows = found[("test", "dev", "train", "train", "train")[i % 5]]
        for number, (line, after) in enumerate(pairwise(path.read_text(encoding="utf-8").split("\n"))):
            word, _, rest = line.strip().partition(" ")
            if word in WORDS:
                deeper = len(after) - len(after.lstrip()) - (len(line) - len(line.lstrip()))
                indent = (deeper > 0) - (deeper < 0) + 1
                rows.append((rest, {"indent": indent, "word": WORDS.index(word), "parity": number % 2}))
    return found


def examples(rows: list[Row], task: str) -> TensorDataset:
    """(characters, label, number of the task): the loss sees from the batch which head it is for."""
    ids = torch.tensor([list(line.encode()[:LENGTH].ljust(LENGTH, b"\0")) for line, _ in rows])
    labels = torch.tensor([labels[task] for _, labels in rows])
    return TensorDataset(ids, labels, torch.full_like(labels, list(CLASSES).index(task)))


class Model(nn.Module):
    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width // 2)
        self.conv = nn.Conv1d(width // 2, width, 5, padding=2)
        self.fill = nn.Linear(width, 256)
        self.heads = nn.ModuleList(nn.Linear(width, classes) for classes in CLASSES.values())

    def encode(self, ids: Tensor) -> Tensor:  # [batch, length] -> [batch, length, width]
        return torch.relu(self.conv(self.embed(ids).mT)).mT

    def forward(self, ids: Tensor, task: int) -> Tensor:  # -> [batch, classes]
        return self.heads[task](nn.functional.dropout(self.encode(ids).amax(1), 0.1, self.training))


def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
    ids, labels, task = batch
    return nn.functional.cross_entropy(model(ids, int(task[0])), labels)


def pretrained(rows: list[Row], steps: int, seed: int) -> Model:
    """An encoder that fills in hidden characters; the heads are as they were made."""
    torch.manual_seed(seed)
    ids, model = examples(rows, "word").tensors[0], Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        batch = ids[torch.randint(len(ids), (32,))]
        hidden = (torch.rand(batch.shape) < 0.15) & (batch > 0)
        guesses = model.fill(model.encode(batch.masked_fill(hidden, 1))[hidden])
        nn.functional.cross_entropy(guesses, batch[hidden]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def fine_tune(model: Model, rows: dict[str, list[Row]], method: str, steps: int, seed: int) -> dict[str, float]:
    """The final mixture; the model is trained in place."""
    torch.manual_seed(seed)
    rng = random.Random(seed)
    data = {task: examples(rng.sample(rows["train"], size), task) for task, size in SIZES.items()}
    mixture = Mixture.temperature(SIZES, METHODS[method])
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    balancer = None
    if method == "learned":
        balancer = Balancer(
            mixture,
            model,
            loss,
            train={task: batches_of(d, 128) for task, d in data.items()},
            dev={task: batches_of(examples(rng.sample(rows["dev"], 300), task), 128) for task in ASKED_FOR},
            every=20,
            steps=steps,
            examples_per_step=32,
            probes=Probes(mode="eval"),  # no dropout: less noise
            seed=seed,
        )
    stream = interleave({task: DataLoader(d, 32, shuffle=True) for task, d in data.items()}, mixture, seed=seed)
    for _, (_, batch) in zip(range(steps), stream, strict=False):
        loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        if balancer:
            balancer.step()
    return mixture.probabilities


def accuracy(model: Model, data: TensorDataset) -> float:
    ids, labels, task = data.tensors
    with torch.no_grad():
        return float((model.eval()(ids, int(task[0])).argmax(1) == labels).float().mean())


def main(steps: int = 300, seeds: int = 3) -> dict[str, list[dict[str, float]]]:
    torch.set_num_threads(1)
    rows = lines()
    test = {task: examples(random.Random(0).sample(rows["test"], 2000), task) for task in ASKED_FOR}
    encoders = [pretrained(rows["train"][:8000], steps // 2, seed) for seed in range(seeds)]
    found: dict[str, list[dict[str, float]]] = {}
    print(f"test accuracy, mean of {seeds} seeds; the last column is the final mixture of seed 0")
    print(f"{'':14}" + "".join(f"{task:>8}" for task in ASKED_FOR) + "    mean (spread)   " + " ".join(SIZES))
    for method in METHODS:
        models = [deepcopy(model) for model in encoders]
        mixtures = [fine_tune(model, rows, method, steps, seed) for seed, model in enumerate(models)]
        found[method] = [{task: accuracy(model, d) for task, d in test.items()} for model in models]
        means = [mean(accuracies.values()) for accuracies in found[method]]
        cells = "".join(f"{mean(one[task] for one in found[method]):8.1%}" for task in ASKED_FOR)
        spread = f"{stdev(means):.1%}" if seeds > 1 else "-"
        print(
            f"{method:14}{cells}{mean(means):8.1%} ({spread})   " + " ".join(f"{p:.0%}" for p in mixtures[0].values())
        )
    by_seed = {method: [mean(one.values()) for one in runs] for method, runs in found.items()}
    best = max(list(METHODS)[:-1], key=lambda method: mean(by_seed[method]))
    gains = [f"{x - y:+.1%}" for x, y in zip(by_seed["learned"], by_seed[best], strict=True)]
    print(f"learned against {best}, the best static one on these test sets, by seed: {', '.join(gains)}")
    return found


if __name__ == "__main__":
    main()
