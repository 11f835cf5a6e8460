"""Real processes (gloo): a model in the shards of FSDP2 is balanced as the same model whole, and stays in its shards."""

import json
import os

import pytest
import torch
import torch.distributed as dist
from ranks import leave
from torch import nn
from toys import batch, dataset, loss

from multidds import Anchored, Balancer, Mixture, Scorer, batches_of, probe

NAMES, DEV = ("a", "b", "c"), ("x", "y")
CASES = [
    {"reward": "multidds"},
    {"reward": "multidds-s", "sketch": 64, "priority": "low"},
    {"reward": "multidds", "step_ahead": 0.05, "sketch": 64, "priority": "high"},
    {"reward": "moving-average", "sketch": "exact"},
    {"scorer": Anchored()},
    {"reward": lambda alignment, weights: alignment.cosines().amin(dim=0), "sketch": "exact", "optimizer": True},
]


class Uneven(nn.Module):
    """Layers that two and four ranks cannot share out evenly, one of them with less rows than ranks."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 7), nn.Linear(7, 5), nn.Linear(5, 3)
        self.drop, self.unused = nn.Dropout(0.4), nn.Linear(2, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.second(self.drop(torch.tanh(self.first(x))))))


def sharded(model, **kwargs):
    from torch.distributed.fsdp import fully_shard

    for layer in (model.first, model.second):
        fully_shard(layer, **kwargs)
    return fully_shard(model, **kwargs)


def make(shard, total, optimizer=False, **kwargs):
    torch.manual_seed(0)
    model = Uneven().double()
    if shard:
        sharded(model)
    if optimizer:  # which has taken a step, so that there are moments
        kwargs["optimizer"] = torch.optim.Adam(model.parameters(), lr=1e-2)
        loss(model, batch(5)).backward()
        kwargs["optimizer"].step()
        kwargs["optimizer"].zero_grad()
    world_size = dist.get_world_size() if dist.is_initialized() else 1
    sets = [{name: batches_of(dataset(30, seed=seed + i), 4) for i, name in enumerate(names)} for seed, names in
            ((0, NAMES), (10, DEV))]  # fmt: skip
    options = {"scorer": Scorer(lr=1), **kwargs}
    mixture = Mixture.proportional({"a": 1, "b": 2, "c": 5})
    train, dev = sets
    balancer = Balancer(mixture, model, loss, train=train, dev=dev, every=1, batches=total // world_size, **options)
    return model, balancer


def updates(shard, total=8):
    """Three updates of every case, with `total` batches over all ranks."""
    found = []
    for case in CASES:
        _, balancer = make(shard, total, **case)
        for _ in range(3):
            update = balancer.step()
            assert update.skipped is None
            found.append([update.rewards, update.noise, update.dev_losses, update.train_losses, update.weights])
            if (table := update.alignment) is not None:
                found.append([each.tolist() for each in (table.dev_train, table.dev_dev, table.train_norms)])
        found.append(update.mixture)
    return found


def check_updates(rank, folder):
    (folder / f"updates{rank}.json").write_text(json.dumps(updates(shard=True)))


CHECKS = [check_updates]


def one_rank(rank, world_size, folder):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world_size)
    for check in CHECKS:
        check(rank, folder)
        (folder / f"{check.__name__}{rank}").touch()
    leave()


def close_to(got, expected):
    if isinstance(expected, dict):
        assert got.keys() == expected.keys()
        got, expected = [got[key] for key in expected], list(expected.values())
    if isinstance(expected, list):
        assert len(got) == len(expected)
        for a, b in zip(got, expected, strict=True):
            close_to(a, b)
    else:
        assert got == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.slow
def test_a_sharded_model_is_balanced_as_a_whole_one(world_size, tmp_path):
    torch.multiprocessing.spawn(one_rank, (world_size, tmp_path), nprocs=world_size)
    for check in CHECKS:
        assert all((tmp_path / f"{check.__name__}{rank}").exists() for rank in range(world_size))
    results = [json.loads((tmp_path / f"updates{rank}.json").read_text()) for rank in range(world_size)]
    assert all(result == results[0] for result in results)  # the same on every rank, bit for bit
    close_to(results[0], json.loads(json.dumps(updates(shard=False))))
