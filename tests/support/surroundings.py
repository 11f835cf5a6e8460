"""The names that a reader of the docs has before the first line of a block."""

from itertools import cycle

import torch
from torch.utils.data import ConcatDataset, DataLoader
from toys import dataset, loss, mlp

from multidds import batches_of


def surroundings():
    """What a user has before the first line of a block."""
    model = mlp()
    datasets = {name: dataset(size, seed=size) for name, size in (("az-en", 40), ("pt-en", 300))}
    dev_sets = {name: dataset(30, seed=i) for i, name in enumerate(datasets)}
    return {
        "torch": torch,
        "model": model,
        "loss": loss,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "datasets": datasets,
        "dev_sets": dev_sets,
        "sizes": {name: len(d) for name, d in datasets.items()},
        "probe_loaders": {name: batches_of(d, 8) for name, d in datasets.items()},
        "dev_loaders": {name: batches_of(d, 8) for name, d in dev_sets.items()},
        "max_steps": 2000,
        "cycle": cycle,
        "DataLoader": DataLoader,
        "ConcatDataset": ConcatDataset,
    }
