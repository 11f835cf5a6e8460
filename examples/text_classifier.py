"""One topic classifier for three languages of very unequal size, with a large crawl whose labels are mostly wrong.

The languages are made up: words are random syllables. `north` has many labelled sentences, `south` few; its words are
those of north with some sounds shifted, so that the two help each other. `isle` has the fewest and shares no word with
them. `crawl`, the largest set, is northern text that a machine has labelled, 60% of it at random. Dev and test sets
are clean and exist for the three languages.

    python examples/text_classifier.py
"""

import random
import zlib
from functools import cache
from statistics import mean, stdev

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from multidds import Balancer, Mixture, Probes, batches_of, interleave

SIZES = {"north": 3000, "south": 300, "isle": 150, "crawl": 6000}
LANGUAGES = ("north", "south", "isle")
METHODS = {"proportional": 1.0, "temperature 5": 5.0, "uniform": float("inf"), "learned": 1.0}  # tau of the prior
TOPICS, WORDS_OF_TOPIC, COMMON = 4, 30, 120
SHIFT = str.maketrans("aoptkgz", "eubdghs")


@cache
def lexicon(language: str) -> list[str]:
    rng = random.Random("isle" if language == "isle" else "north")
    count = COMMON + TOPICS * WORDS_OF_TOPIC
    stems = ["".join(rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(rng.randint(2, 3)))
             for _ in range(count)]  # fmt: skip
    return [stem.translate(SHIFT) for stem in stems] if language == "south" else stems


@cache  # the methods are compared on the same data
def examples(language: str, size: int, seed: str, wrong: float = 0.0) -> TensorDataset:
    """Sentences as hashed letter trigrams, padded with 0, and their topics; every topic equally often."""
    rng = random.Random(f"{language} {seed}")
    words = lexicon(language)
    rows, labels = [], []
    for i in range(size):
        topic = i % TOPICS
        of_topic = words[COMMON + topic * WORDS_OF_TOPIC :][:WORDS_OF_TOPIC]
        chosen = (rng.choice(of_topic if rng.random() < 0.5 else words[:COMMON]) for _ in range(rng.randint(5, 10)))
        text = f" {' '.join(chosen)} "
        trigrams = [1 + zlib.crc32(text[j : j + 3].encode()) % 4095 for j in range(len(text) - 2)]
        rows.append((trigrams + [0] * 60)[:60])
        labels.append(rng.randrange(TOPICS) if rng.random() < wrong else topic)
    return TensorDataset(torch.tensor(rows), torch.tensor(labels))


def classifier(width: int = 48) -> nn.Module:
    bag = nn.EmbeddingBag(4096, width, mode="sum", padding_idx=0)
    return nn.Sequential(bag, nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, TOPICS))


def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
    trigrams, topics = batch
    return nn.functional.cross_entropy(model(trigrams), topics)


def train(method: str, steps: int, seed: int) -> tuple[dict[str, float], dict[str, float]]:
    """The accuracy on the test set of each language, and the final mixture."""
    data = {name: examples(name, size, f"train {seed}") for name, size in SIZES.items() if name != "crawl"}
    data["crawl"] = examples("north", SIZES["crawl"], f"crawl {seed}", wrong=0.6)
    dev = {name: examples(name, 152, f"dev {seed}") for name in LANGUAGES}
    torch.manual_seed(seed)
    model = classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    mixture = Mixture.temperature(SIZES, METHODS[method])
    balancer = None
    if method == "learned":
        balancer = Balancer(
            mixture,
            model,
            loss,
            train={name: batches_of(d, 128) for name, d in data.items()},
            dev={name: batches_of(d, 128) for name, d in dev.items()},
            every=20,
            steps=steps,
            examples_per_step=32,
            probes=Probes(mode="eval"),  # no dropout: less noise
            seed=seed,
        )
    stream = interleave({name: DataLoader(d, 32, shuffle=True) for name, d in data.items()}, mixture, seed=seed)
    for _, (_, batch) in zip(range(steps), stream, strict=False):
        loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        if balancer:
            balancer.step()
    model.eval()
    accuracies = {}
    for name in LANGUAGES:
        trigrams, topics = examples(name, 1000, f"test {seed}").tensors
        with torch.no_grad():
            accuracies[name] = float((model(trigrams).argmax(1) == topics).float().mean())
    return accuracies, mixture.probabilities


def main(steps: int = 500, seeds: int = 3) -> dict[str, list[dict[str, float]]]:
    torch.set_num_threads(1)
    found: dict[str, list[dict[str, float]]] = {}
    print(f"test accuracy, mean of {seeds} seeds; the last column is the final mixture of seed 0")
    print(f"{'':14}" + "".join(f"{name:>8}" for name in LANGUAGES) + "    mean (spread)   " + " ".join(SIZES))
    for method in METHODS:
        runs = [train(method, steps, seed) for seed in range(seeds)]
        found[method] = [accuracies for accuracies, _ in runs]
        means = [mean(accuracies.values()) for accuracies in found[method]]
        cells = "".join(f"{mean(one[name] for one in found[method]):8.1%}" for name in LANGUAGES)
        spread = f"{stdev(means):.1%}" if seeds > 1 else "-"
        print(f"{method:14}{cells}{mean(means):8.1%} ({spread})   " + " ".join(f"{p:.0%}" for p in runs[0][1].values()))
    by_seed = {method: [mean(one.values()) for one in runs] for method, runs in found.items()}
    best = max(list(METHODS)[:-1], key=lambda method: mean(by_seed[method]))
    gains = [f"{x - y:+.1%}" for x, y in zip(by_seed["learned"], by_seed[best], strict=True)]
    print(f"learned against {best}, the best static one on these test sets, by seed: {', '.join(gains)}")
    return found


if __name__ == "__main__":
    main()
