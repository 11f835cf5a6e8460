"""A plain training loop on a small multi-domain task: what a learned mixture does that a fixed one cannot.

Three datasets, wildly unequal: `web`, large and useful; `junk`, the largest, whose labels are pure noise; and
`rare`, tiny, the only one that teaches what the dev set `rare` asks for. By size, training would mostly see junk.

    python examples/plain_loop.py
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from multidds import Balancer, Mixture, batches_of, interleave

SIZES = {"web": 6000, "junk": 12000, "rare": 400}
WIDTH = 16


def examples(domain: str, size: int, seed: int) -> TensorDataset:
    """Points of one domain; the last feature tells the domains apart, and each has a rule of its own."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, WIDTH, generator=generator)
    rule = torch.linspace(-1, 1, WIDTH - 1) if domain == "rare" else torch.linspace(1, -1, WIDTH - 1).abs() - 0.5
    y = (x[:, :-1] @ rule > 0).long()
    x[:, -1] = 2.0 if domain == "rare" else -2.0
    if domain == "junk":
        y = torch.randint(0, 2, (size,), generator=generator)
    return TensorDataset(x, y)


def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    x, y = batch
    return nn.functional.cross_entropy(model(x), y)


def accuracy(model: nn.Module, dataset: TensorDataset) -> float:
    x, y = dataset.tensors
    with torch.no_grad():
        return float((model(x).argmax(1) == y).float().mean())


def train(balance: bool, steps: int, seed: int = 0) -> dict[str, dict[str, float]]:
    """Returns the final mixture and the accuracy on fresh test data of both domains."""
    torch.manual_seed(seed)
    data = {name: examples(name, size, seed=i) for i, (name, size) in enumerate(SIZES.items())}
    dev = {"web": examples("web", 300, seed=10), "rare": examples("rare", 300, seed=11)}
    model = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    mixture = Mixture.proportional(SIZES)
    loaders = {name: DataLoader(d, batch_size=64, shuffle=True) for name, d in data.items()}
    if balance:
        balancer = Balancer(
            mixture,
            model,
            loss,
            train={name: batches_of(d, 128) for name, d in data.items()},
            dev={name: batches_of(d, 128) for name, d in dev.items()},
            every=20,
            steps=steps,
            examples_per_step=64,
        )
    for _, (_, batch) in zip(range(steps), interleave(loaders, mixture, seed=seed), strict=False):
        loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        if balance and (update := balancer.step()) and update.step % 200 == 0:
            shares = "  ".join(f"{name} {p:6.1%}" for name, p in update.mixture.items())
            print(f"step {update.step:4}   {shares}")
    model.eval()
    test = {name: examples(name, 2000, seed=20 + i) for i, name in enumerate(dev)}
    return {"mixture": mixture.probabilities, "accuracy": {name: accuracy(model, d) for name, d in test.items()}}


def main(steps: int = 1000) -> dict[str, dict[str, dict[str, float]]]:
    torch.set_num_threads(1)
    print("learning the mixture:")
    results = {"proportional": train(False, steps), "learned": train(True, steps)}
    print(f"\n{'':14}{'final mixture':^33}{'test accuracy':^18}")
    print(f"{'':14}" + "".join(f"{name:>10}" for name in SIZES) + "      web    rare")
    for method, result in results.items():
        shares = "".join(f"{p:10.1%}" for p in result["mixture"].values())
        print(f"{method:14}{shares}  {result['accuracy']['web']:7.1%} {result['accuracy']['rare']:7.1%}")
    return results


if __name__ == "__main__":
    main()
