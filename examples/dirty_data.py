"""A text classifier whose training labels are partly wrong: which examples to trust is learned while it trains.

The text is on every machine with Python: lines of its standard library, to be told apart by the package that they are
from. 30% of the training labels are replaced by wrong ones; a few hundred examples, the dev set, are clean. The scorer
sees the losses of examples; nobody tells it what is wrong, or how much.

Beside it: training on everything, on clean labels, and leaving out the 30% of every batch with the highest losses,
which is told how much is wrong.

    python examples/dirty_data.py
"""

import random
import sysconfig
import zlib
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from multidds import ExampleScorer, batches_of

PACKAGES = ("asyncio", "email", "encodings", "http", "importlib", "logging", "multiprocessing", "unittest")
SIZES = {"test": 1600, "dev": 800, "train": 12000}
WRONG = 0.3
LENGTH = 60  # characters of an example
BUCKETS = 2048
METHODS = ("clean", "dirty", "scorer", "highest losses dropped")


def pieces() -> dict[str, list[tuple[int, str]]]:
    """{split: [(package, text), ...]}: no text is in two splits; all packages have as many pieces."""
    found: dict[str, list[tuple[int, str]]] = {split: [] for split in SIZES}
    for label, package in enumerate(PACKAGES):
        files = sorted((Path(sysconfig.get_path("stdlib")) / package).glob("*.py"))
        text = " ".join(" ".join(path.read_text(encoding="utf-8").split()) for path in files)
        own = sorted({text[i : i + LENGTH] for i in range(0, len(text) - LENGTH, LENGTH)})
        random.Random(package).shuffle(own)
        for split, size in SIZES.items():
            count = size // len(PACKAGES)
            found[split] += [(label, piece) for piece in own[:count]]
            own = own[count:]
    return found


def encoded(rows: list[tuple[int, str]]) -> tuple[Tensor, Tensor]:
    """(trigrams of characters as numbers of buckets, labels). # [N, LENGTH - 2], [N]"""
    grams = [[zlib.crc32(text[i : i + 3].encode()) % BUCKETS for i in range(LENGTH - 2)] for _, text in rows]
    return torch.tensor(grams), torch.tensor([label for label, _ in rows])


@dataclass
class Data:
    train: TensorDataset  # trigrams, labels as given
    wrong: Tensor  # which of its labels are wrong: [N], only to judge
    clean: TensorDataset
    dev: TensorDataset
    test: TensorDataset


def data(seed: int) -> Data:
    splits = {split: encoded(rows) for split, rows in pieces().items()}
    grams, labels = splits["train"]
    generator = torch.Generator().manual_seed(seed)
    wrong = torch.rand(len(labels), generator=generator) < WRONG
    others = (labels + torch.randint(1, len(PACKAGES), labels.shape, generator=generator)) % len(PACKAGES)
    given = torch.where(wrong, others, labels)
    clean, dev, test = (TensorDataset(*splits[split]) for split in ("train", "dev", "test"))
    return Data(TensorDataset(grams, given), wrong, clean, dev, test)


class Classifier(nn.Module):
    """Trigrams, averaged, and one hidden layer."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.EmbeddingBag(BUCKETS, width)
        self.out = nn.Sequential(nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 8))

    def forward(self, grams: Tensor) -> Tensor:  # [B, LENGTH - 2] -> [B, packages]
        return self.out(self.embed(grams))


def losses(model: nn.Module, batch: list[Tensor]) -> Tensor:
    grams, labels = batch
    return nn.functional.cross_entropy(model(grams), labels, reduction="none")


def without_highest(losses: Tensor) -> Tensor:
    """Weights, mean 1, that leave out the given share of a batch."""
    kept = (losses <= losses.quantile(1 - WRONG)).float()
    return kept / kept.mean()


def auc(suspicion: Tensor, wrong: Tensor) -> float:
    """The probability that a wrong example is more suspicious than a right one: the area under the ROC curve."""
    ranks = suspicion.argsort().argsort().double() + 1
    count = int(wrong.sum())
    return (ranks[wrong].sum().item() - count * (count + 1) / 2) / (count * (len(wrong) - count))


def trained(data: Data, method: str, steps: int, seed: int) -> dict[str, float]:
    torch.manual_seed(seed)
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    examples = data.clean if method == "clean" else data.train
    loader = DataLoader(
        examples, batch_size=64, shuffle=True, drop_last=True, generator=torch.Generator().manual_seed(seed)
    )
    scorer = None
    if method == "scorer":
        dev = {"dev": batches_of(data.dev, 64)}
        scorer = ExampleScorer(model, losses, dev, every=5, seed=seed)
    batches = (batch for _ in range(steps) for batch in loader)
    for _, batch in zip(range(steps), batches, strict=False):
        each = losses(model, batch)
        if scorer:
            each = scorer.weights(batch, each) * each
        elif method == "highest losses dropped":
            each = without_highest(each.detach()) * each
        each.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if scorer:
            scorer.step(batch)
    return judged(data, model, scorer)


def judged(data: Data, model: nn.Module, scorer: ExampleScorer | None) -> dict[str, float]:
    model.eval()
    everything = list(data.train.tensors)
    grams, labels = data.test.tensors
    with torch.no_grad():
        each = losses(model, everything)
        found = {"accuracy": (model(grams).argmax(1) == labels).double().mean().item(), "loss": auc(each, data.wrong)}
    if scorer:
        found["score"] = auc(-scorer.scores(everything, each), data.wrong)
    return found


def main(steps: int = 800, seeds: int = 3) -> dict[str, list[dict[str, float]]]:
    torch.set_num_threads(1)
    found: dict[str, list[dict[str, float]]] = {method: [] for method in METHODS}
    for seed in range(seeds):
        given = data(seed)
        for method in METHODS:
            found[method].append(trained(given, method, steps, seed))
    print(f"{WRONG:.0%} of {SIZES['train']} labels wrong, {steps} steps, means of {seeds} seeds")
    print(f"{'':24}test accuracy   AUC of the loss   AUC of the score")
    for method, runs in found.items():
        spread = f"({stdev(run['accuracy'] for run in runs):.1%})" if seeds > 1 else ""
        areas = [f"{mean(run[key] for run in runs):.3f}" if key in runs[0] else "" for key in ("loss", "score")]
        areas = ["", ""] if method == "clean" else areas
        print(f"{method:24}{mean(run['accuracy'] for run in runs):9.1%} {spread:7}{areas[0]:>12}{areas[1]:>19}")
    return found


if __name__ == "__main__":
    main()
