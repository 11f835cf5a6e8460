"""Real processes (gloo): W ranks that each probe b batches equal one process that probes W * b."""

import itertools

import pytest
import torch
import torch.distributed as dist
from assertions import assert_ranks_equal_one_process
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from toys import batch, dataset, loss

from multidds import Balancer, Mixture, MixtureSampler, batches_of, interleave
from multidds.probes import probe
from multidds.rules import RelevancePlan, Scorer

pytestmark = [pytest.mark.claim("Several processes", "W replicas and shards equal one process")]

NAMES = ("a", "b", "c")
DEV = ("x", "y")
CASES = list(itertools.product(["multidds", "multidds-s", "moving-average"], ["regular", "low"], [None, 0.05]))


def sources(kind, names, seed):
    data = {name: dataset(30, seed=seed + i) for i, name in enumerate(names)}
    if kind == "function":
        return {name: batches_of(d, 4) for name, d in data.items()}
    return {name: DataLoader(d, batch_size=4, shuffle=True) for name, d in data.items()}


def make(kind, batches, wrap=False, compute=loss, other_dev=None, **kwargs):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.4), nn.Linear(8, 3)).double()
    if wrap:
        model = DistributedDataParallel(model)
    mixture = Mixture.proportional({"a": 1, "b": 2, "c": 5})
    train, dev = sources(kind, NAMES, 0), {**sources(kind, DEV, 10), **(other_dev or {})}
    return model, Balancer(
        mixture, model, compute, train=train, dev=dev, every=1, batches=batches, **{"scorer": Scorer(lr=1), **kwargs}
    )


def updates(total, kind):
    """Three updates of every case, with `total` batches over all replicas."""
    world_size = dist.get_world_size() if dist.is_initialized() else 1
    out = []
    for reward, priority, step_ahead in CASES:
        _, balancer = make(
            kind, total // world_size, reward=reward, priority=priority, step_ahead=step_ahead, sketch=64
        )
        for _ in range(3):
            update = balancer.step()
            table = [update.alignment.dev_train.tolist(), update.alignment.train_norms.tolist()]
            out.append([update.rewards, update.mixture, update.dev_losses, update.train_losses, update.weights, table])
    return out


def anchored_updates(total):
    """Updates of the anchored rule, whose noise is that of two halves of all batches."""
    world_size = dist.get_world_size() if dist.is_initialized() else 1
    _, balancer = make("function", total // world_size, scorer=RelevancePlan())
    return [[update.rewards, update.noise, update.mixture] for update in (balancer.step() for _ in range(3))]


def all_updates():
    return [updates(6, "function"), updates(6, "loader"), anchored_updates(12)]


def check_data_parallel():
    """A DDP model in training: averaged gradients, a balancer, the same mixture and parameters everywhere."""
    rank = dist.get_rank()
    model, balancer = make("function", 1, wrap=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        loss(model, batch(10 * step + rank)).backward()
        kept = [p.grad for p in model.parameters()]
        values = [g.clone() for g in kept]
        assert balancer.step().skipped is None  # with live gradients, which DDP keeps in its buckets
        assert all(p.grad is g for p, g in zip(model.parameters(), kept, strict=True))
        assert all(torch.equal(g, v) for g, v in zip(kept, values, strict=True))
        optimizer.step()
        optimizer.zero_grad()
    everyone = [None] * dist.get_world_size()
    state = [balancer.mixture.probabilities, [p.tolist() for p in model.parameters()]]
    dist.all_gather_object(everyone, state)
    assert all(other == state for other in everyone)


def check_skipping_is_collective():
    rank = dist.get_rank()
    broken = dataset(30, seed=3)
    if rank == 1:
        broken.tensors[0].fill_(float("nan"))
    _, balancer = make("function", 1, other_dev={"y": batches_of(broken, 4)})
    update = balancer.step()
    assert update.skipped == "the gradient of dev set 'y' is not finite (and 3 more like it)", update.skipped
    assert update.mixture == Mixture.proportional({"a": 1, "b": 2, "c": 5}).probabilities


def check_an_error_is_everyones():
    rank = dist.get_rank()

    def failing(model, batch):
        if rank == 1:
            raise KeyError("only here")
        return loss(model, batch)

    for step_ahead in (None, 0.1):
        _, balancer = make("function", 1, compute=failing, step_ahead=step_ahead)
        with pytest.raises(KeyError if rank == 1 else RuntimeError, match="only here") as error:
            balancer.step()
        if rank != 1:
            assert "the probe failed on rank 1: KeyError: 'only here'" in str(error.value)

    def unlucky(generator):
        if rank == 0:
            raise OSError("no such file")
        return batch(0)

    _, balancer = make("function", 1, priority="low", other_dev={"y": unlucky})
    with pytest.raises(OSError if rank == 0 else RuntimeError, match="no such file"):
        balancer.step()
    dist.barrier()  # nobody was left waiting


def check_unused_parameters():
    """A parameter that only some ranks use takes part with zeros elsewhere."""
    rank = dist.get_rank()
    model = nn.ModuleDict({"a": nn.Linear(4, 3), "b": nn.Linear(4, 3)}).double()

    def own_head(model, batch):
        return nn.functional.cross_entropy(model["a" if rank == 0 else "b"](batch[0]), batch[1])

    alignment = probe(model, own_head, {"t": [batch(rank)]}, {"d": [batch(rank)]})
    assert 0 < float(alignment.cosines()) <= 1 + 1e-12


def check_streams():
    """Samplers and streams find their place among the ranks by themselves."""
    rank = dist.get_rank()
    sizes, mixture = {"a": 11, "b": 30}, Mixture({"a": 0.6, "b": 0.4})
    world_size = dist.get_world_size()
    sampler = MixtureSampler(sizes, mixture, batch_size=4, seed=2)
    whole = MixtureSampler(sizes, mixture, batch_size=4 * world_size, seed=2, rank=0, world_size=1)
    for mine, everyones, _ in zip(sampler, whole, range(20), strict=False):
        assert mine == everyones[rank::world_size]
    stream = interleave({name: lambda g: torch.rand(1, generator=g) for name in "ab"}, mixture)
    names = [None] * world_size
    dist.all_gather_object(names, [next(stream)[0] for _ in range(20)])
    one = interleave({name: lambda g: torch.rand(1, generator=g) for name in "ab"}, mixture, rank=0, world_size=1)
    assert [name for group in zip(*names, strict=True) for name in group] == [
        next(one)[0] for _ in range(20 * world_size)
    ]


def check_ranks_that_disagree_are_refused():
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Linear(4, 3).double()
    names = NAMES if rank == 0 else NAMES[::-1]
    train, dev = sources("function", NAMES, 0), sources("function", DEV, 10)
    for mixture, seed, what in (
        (Mixture.uniform(names), 0, "datasets, or another order of them"),
        (Mixture.proportional({"a": 1 + rank, "b": 1, "c": 1}), 0, "mixtures"),
        (Mixture.uniform(NAMES), rank, "seeds, batches or numbers of updates"),
    ):
        balancer = Balancer(mixture, model, loss, train=train, dev=dev, every=1, seed=seed)
        with pytest.raises(ValueError, match=f"the ranks have different {what}"):
            balancer.step()
    balancer = Balancer(Mixture.uniform(NAMES), model, loss, train=train, dev=dev, every=1, priority="low")
    balancer.step()
    if rank == 0:  # the usual mistake: validation on one rank only
        balancer.dev_losses = {"x": 1.0, "y": 2.0}
    with pytest.raises(ValueError, match="the ranks have different dev_losses"):
        balancer.step()


def check_rewards_are_the_same_bits_everywhere():
    rank = dist.get_rank()
    _, balancer = make("function", 1, sketch=16, reward=lambda alignment, weights: torch.full((3,), 0.1 + 1e-9 * rank))
    mixture = balancer.step().mixture
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mixture)
    assert all(other == mixture for other in everyone)

    def broken(alignment, weights):
        if rank == 1:
            raise RuntimeError("no reward")
        return torch.ones(3)

    _, balancer = make("function", 1, sketch=16, reward=broken)
    with pytest.raises(RuntimeError, match="no reward"):
        balancer.step()


def check_a_model_of_a_subgroup_is_balanced_in_it():
    rank = dist.get_rank()
    groups = [dist.new_group([r]) for r in range(dist.get_world_size())]
    torch.manual_seed(rank)  # a model of its own on every rank
    model = DistributedDataParallel(nn.Linear(4, 3).double(), process_group=groups[rank])
    train, dev = sources("function", NAMES, 0), sources("function", DEV, 10)
    alone = Balancer(Mixture.uniform(NAMES), model, loss, train=train, dev=dev, every=1).step().rewards
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, alone)
    assert everyone[0] != everyone[1]


def check_observing_is_refused():
    rank = dist.get_rank()
    model, balancer = make("function", 1, reward="moving-average")
    loss(model, batch(rank)).backward()
    with pytest.raises(ValueError, match="gradients averaged over replicas may mix datasets"):
        balancer.observe("a")


CHECKS = [
    check_data_parallel,
    check_skipping_is_collective,
    check_an_error_is_everyones,
    check_unused_parameters,
    check_streams,
    check_ranks_that_disagree_are_refused,
    check_rewards_are_the_same_bits_everywhere,
    check_a_model_of_a_subgroup_is_balanced_in_it,
    check_observing_is_refused,
]


@pytest.mark.claim("The method", "W replicas equal one process")
@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.slow
def test_replicas_equal_one_process(world_size, tmp_path):
    assert_ranks_equal_one_process(all_updates, tmp_path, world_size, checks=CHECKS)
