"""A small causal language model over three domains of real text, with draws per example and a checkpoint.

The text is on every machine with Python: `code` is the standard library, `manual` the help texts of `pydoc` (little of
it), and `tables`, the largest, the files of character codes in `encodings`. The dev sets say what the model is for:
code and the manual. By size, training would mostly see tables. Training, dev and test text come from different files.

Shows the example-level sampler in an ordinary DataLoader, per-dataset passes, static baselines beside the learned
mixture, and a save and resume in the middle.

    python examples/language_model.py
"""

import io
import random
import sysconfig
from pathlib import Path
from pydoc_data.topics import topics
from statistics import mean, stdev

import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset

from multidds import Balancer, Mixture, MixtureSampler, batches_of

LENGTH = 32  # characters of an example
SIZES = {"code": 3000, "manual": 300, "tables": 6000}
ASKED_FOR = ("code", "manual")
METHODS = {"proportional": 1.0, "temperature 5": 5.0, "uniform": float("inf"), "learned": 1.0}  # tau of the prior


def examples(domain: str) -> dict[str, TensorDataset]:
    """{split: examples}. A fifth of the files each for dev and test."""
    if domain == "manual":
        files = [topics[topic] for topic in sorted(topics)]
    else:
        paths = Path(sysconfig.get_path("stdlib")).glob("encodings/*.py" if domain == "tables" else "*.py")
        files = [path.read_text(encoding="utf-8") for path in sorted(paths)]
    rng = random.Random(0)
    rng.shuffle(files)
    fifth, found = len(files) // 5, {}
    for split, first, last, size in (("test", 0, 1, 600), ("dev", 1, 2, 200), ("train", 2, 6, SIZES[domain])):
        text = "".join(files[first * fifth : last * fifth]).encode("ascii", "replace")
        rows = [list(text[i : i + LENGTH + 1]) for i in range(0, len(text) - LENGTH, LENGTH)]
        found[split] = TensorDataset(torch.tensor(rng.sample(rows, size)))
    return found


class LanguageModel(nn.Module):
    """Two causal convolutions: a character is guessed from the eleven before it."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(128, width)
        convs = nn.Conv1d(width, 2 * width, 5), nn.Conv1d(2 * width, 2 * width, 4, dilation=2)
        self.convs = nn.Sequential(convs[0], nn.ReLU(), convs[1], nn.ReLU())
        self.out = nn.Sequential(nn.Dropout(0.1), nn.Linear(2 * width, 128))

    def forward(self, ids: Tensor) -> Tensor:  # [batch, length] -> [batch, length, characters]
        return self.out(self.convs(nn.functional.pad(self.embed(ids).mT, (10, 0))).mT)


def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
    (ids,) = batch
    return nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


class Run:
    """Everything of one training, so that it can be saved and loaded as one."""

    def __init__(self, data: dict[str, dict[str, TensorDataset]], method: str, steps: int, seed: int) -> None:
        torch.manual_seed(seed)
        self.data = {name: splits["train"] for name, splits in data.items()}
        self.model = LanguageModel()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=3e-3)
        self.mixture = Mixture.temperature(SIZES, METHODS[method])
        self.sampler = MixtureSampler(SIZES, self.mixture, batch_size=32, seed=seed)
        self.balancer = None
        if method == "learned":
            self.balancer = Balancer(
                self.mixture,
                self.model,
                loss,
                train={name: batches_of(d, 64) for name, d in self.data.items()},
                dev={name: batches_of(data[name]["dev"], 64) for name in ASKED_FOR},
                every=20,
                steps=steps,
                examples_per_step=32,
                seed=seed,
            )

    def train(self, steps: int) -> None:
        own = torch.Generator()  # a loader takes a number from its generator: not from that of the dropout
        loader = DataLoader(ConcatDataset(self.data.values()), batch_sampler=self.sampler, generator=own)
        for _, batch in zip(range(steps), loader, strict=False):
            loss(self.model, batch).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            if self.balancer:
                self.balancer.step()

    def test(self, data: dict[str, dict[str, TensorDataset]]) -> dict[str, float]:
        self.model.eval()
        with torch.no_grad():
            return {name: loss(self.model, list(data[name]["test"].tensors)).item() for name in ASKED_FOR}

    def parts(self) -> dict[str, object]:
        parts = {"model": self.model, "optimizer": self.optimizer, "sampler": self.sampler, "balancer": self.balancer}
        return {name: part for name, part in parts.items() if part is not None}


def trained(data: dict[str, dict[str, TensorDataset]], method: str, steps: int, seed: int) -> Run:
    """Half of the steps, saved; the other half in a run that loads them."""
    run = Run(data, method, steps, seed)
    run.train(steps // 2)
    checkpoint = io.BytesIO()  # or a file: nothing in it needs pickled code
    parts = {name: part.state_dict() for name, part in run.parts().items()}
    torch.save({**parts, "random": torch.get_rng_state()}, checkpoint)
    checkpoint.seek(0)
    run = Run(data, method, steps, seed)
    saved = torch.load(checkpoint, weights_only=True)
    for name, part in run.parts().items():
        part.load_state_dict(saved[name])
    torch.set_rng_state(saved["random"])
    run.train(steps - steps // 2)
    return run


def main(steps: int = 240, seeds: int = 3) -> dict[str, list[dict[str, float]]]:
    torch.set_num_threads(1)
    data = {name: examples(name) for name in SIZES}
    found: dict[str, list[dict[str, float]]] = {}
    print(f"test loss, mean of {seeds} seeds; final mixture and passes of seed 0 for {', '.join(SIZES)}")
    print(f"{'':14}" + "".join(f"{name:>8}" for name in ASKED_FOR) + "    mean (spread)  mixture        passes")
    for method in METHODS:
        runs = [trained(data, method, steps, seed) for seed in range(seeds)]
        found[method] = [run.test(data) for run in runs]
        means = [mean(losses.values()) for losses in found[method]]
        cells = "".join(f"{mean(one[name] for one in found[method]):8.3f}" for name in ASKED_FOR)
        spread = f"{stdev(means):.3f}" if seeds > 1 else "-"
        mixture = " ".join(f"{p:4.0%}" for p in runs[0].mixture.probabilities.values())
        passes = " ".join(f"{p:.1f}" for p in runs[0].sampler.passes.values())
        print(f"{method:14}{cells}{mean(means):8.3f} ({spread})  {mixture}  {passes}")
    by_seed = {method: [mean(one.values()) for one in runs] for method, runs in found.items()}
    best = min(list(METHODS)[:-1], key=lambda method: mean(by_seed[method]))
    gains = [f"{x - y:+.3f}" for x, y in zip(by_seed["learned"], by_seed[best], strict=True)]
    print(f"learned against {best}, the best static one here, by seed (lower is better): {', '.join(gains)}")
    return found


if __name__ == "__main__":
    main()
