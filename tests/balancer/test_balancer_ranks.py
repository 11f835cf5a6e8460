"""Real processes (gloo): W ranks find what one process finds, whether they split the gradients of an update or not."""

import itertools
from collections import Counter

import pytest
import torch
import torch.distributed as dist
from assertions import assert_equal, assert_ranks_equal_one_process
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from toy_balancers import many
from toys import Places, batch, dataset, loss

from multidds import Balancer, Mixture, MixtureSampler, Probes, batches_of, interleave
from multidds.probes import relevance
from multidds.rules import Cosine, MovingAverage, RelevancePlan, Scorer, StabilizedCosine

NAMES, DEV = tuple("abcde"), tuple("wxyz")
TOTAL = 6  # probe batches of a set over all ranks
KINDS = {
    "function": lambda d: batches_of(d, 4),
    "loader": lambda d: DataLoader(d, batch_size=4, shuffle=True),
    "list": lambda d: list(DataLoader(d, batch_size=4)),
    "stateful": lambda d: Places(),
}


def smallest(probe, round_):
    """A reward of a user: the smallest cosine, of the table."""
    cosines = probe.table(round_).cosines().amin(dim=0)
    return probe.agreed(dict(zip(round_.datasets, cosines.tolist(), strict=True)))


def scorer(reward, **settings):
    return Scorer(reward, lr=1, **settings)


CASES = [
    {"rule": scorer(Cosine())},
    {"rule": scorer(Cosine(ahead=0.05)), "priority": "low"},
    {"rule": scorer(StabilizedCosine(), table=64), "priority": "low"},
    {"rule": scorer(StabilizedCosine(ahead=0.05))},
    {"rule": scorer(StabilizedCosine())},
    {"rule": scorer(MovingAverage()), "priority": "low"},
    {"rule": scorer(smallest)},
    {"rule": RelevancePlan()},
]
WAYS = {  # (kind of sources, split_work): cases
    ("function", None): CASES,
    ("function", False): CASES[2:3] + CASES[-1:],
    ("loader", None): CASES[1:3] + CASES[-1:],
    ("loader", True): CASES[1:3] + CASES[-1:],
    ("list", True): CASES[:1],
    ("stateful", True): CASES[:1],
}


def world_size():
    return dist.get_world_size() if dist.is_initialized() else 1


def sources(kind, names, seed):
    return {name: KINDS[kind](dataset(30, seed=seed + i)) for i, name in enumerate(names)}


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 50), nn.Dropout(0.4), nn.Linear(50, 3)).double()


def make(kind="function", train=None, dev=None, model=None, compute=loss, **options):
    """A balancer with a batch per rank; train, dev: sources in the place of others."""
    train, dev = sources(kind, NAMES, 0) | (train or {}), sources(kind, DEV, 20) | (dev or {})
    mixture = Mixture.proportional({name: i + 1 for i, name in enumerate(NAMES)})
    options = {"rule": scorer(StabilizedCosine()), "every": 1, "probes": Probes(batches=1), **options}
    return Balancer(mixture, model or network(), compute, train=train, dev=dev, **options)


def found(balancer, updates=2):
    """What updates find, the order of names included, and the places of sources after them."""
    results = []
    for update in (balancer.update() for _ in range(updates)):
        numbers = [update.rewards, update.noise, update.mixture, update.dev_losses, update.train_losses, update.weights]
        table = update.alignment
        tensors = [] if table is None else [table.dev_train, table.dev_dev, table.train_norms]
        results.append([numbers, [list(each) for each in numbers], tensors, update.skipped, update.notes])
    return [results, balancer.state_dict()["probe"]["sources"]]


def broken():
    """A balancer with gradients that are not finite and gradients that are zero."""

    def scaled(model, b):
        return loss(model, b) * b[0].abs().max().clamp(max=1)

    train, dev = (
        {name: dataset(30, seed=seed + i) for i, name in enumerate(names)} for names, seed in ((NAMES, 0), (DEV, 20))
    )
    for d in (train["c"], dev["x"]):
        d.tensors[0].fill_(float("nan"))
    train["d"].tensors[0].fill_(0.0)
    train, dev = ({name: batches_of(d, 4) for name, d in sets.items()} for sets in (train, dev))
    in_all = Probes(batches=2, count="in all")
    return make(train=train, dev=dev, rule=scorer(Cosine()), compute=scaled, probes=in_all)


def all_updates():
    each = {"batches": TOTAL // world_size()}
    results = [
        found(make(kind, probes=Probes(**each, split_work=split_work), **case))
        for (kind, split_work), cases in WAYS.items()
        for case in cases
    ]
    for total in (1, 2, 4):
        in_all = Probes(batches=total, count="in all")
        results += [found(make(probes=in_all, **case)) for case in (CASES[2], *CASES[-1:] * (total > 1))]
    results.append(found(broken(), updates=1))
    return results


def updates_of_parts():
    """Three updates of a part, with dropout."""
    balancer = many(model=network(), probes=Probes(batches=TOTAL // world_size()))
    return [found(balancer), len(balancer.update().probed)]


# ------------------------------------------------------------------------------------------ checks on every rank


def gathered(value):
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, value)
    return everyone


def check_data_parallel():
    """A DDP model in training: averaged gradients, a balancer, the same mixture and parameters everywhere."""
    model = DistributedDataParallel(network())
    balancer = make(model=model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        loss(model, batch(10 * step + dist.get_rank())).backward()
        kept = [p.grad for p in model.parameters()]
        values = [g.clone() for g in kept]
        assert balancer.step().skipped is None  # with live gradients, which DDP keeps in its buckets
        assert all(p.grad is g for p, g in zip(model.parameters(), kept, strict=True))
        assert_equal(kept, values)
        optimizer.step()
        optimizer.zero_grad()
    state = [balancer.mixture.probabilities, [p.tolist() for p in model.parameters()]]
    assert all(other == state for other in gathered(state))


def check_less_is_sent_if_work_is_split():
    synchronised = nn.Sequential(*network(), nn.SyncBatchNorm(3).double())
    sent, original = Counter(), dist.all_reduce

    def counted(tensor, *args, **kwargs):
        sent["now"] += tensor.numel() * tensor.element_size()
        return original(tensor, *args, **kwargs)

    dist.all_reduce = counted
    try:
        for way, split_work, model in (
            ("split", None, network()),
            ("together", False, network()),
            ("synchronised", None, synchronised),
        ):
            make(
                model=model, rule=scorer(Cosine()), probes=Probes(batches=2, mode="eval", split_work=split_work)
            ).step()
            sent[way] = sent.pop("now")
    finally:
        dist.all_reduce = original
    size = 8 * sum(p.numel() for p in network().parameters())
    rest = len(DEV) % dist.get_world_size() + len(NAMES) % dist.get_world_size()  # which is taken together
    assert sent["together"] // size == len(NAMES) + len(DEV)
    assert sent["split"] // size == 1 + rest  # the sum of the dev gradients
    assert sent["synchronised"] // size >= len(NAMES) + len(DEV)


def check_every_rank_has_as_much_to_do():
    passes = []

    def counted(model, b):
        passes.append(1)
        return loss(model, b)

    for rule in (scorer(Cosine()), RelevancePlan()):
        passes.clear()
        make(compute=counted, probes=Probes(batches=2), rule=rule).step()
        assert len(passes) == 2 * (len(NAMES) + len(DEV))


def check_data_of_each_rank_are_taken_together():
    """By default only sources of batches_of are split, so that each rank may bring data of its own."""
    rank = dist.get_rank()

    def own(kind):
        return sources(kind, NAMES, 100 * rank)

    for make_train in (
        lambda: own("loader"),
        lambda: own("list"),
        lambda: {name: lambda g: batch(int(torch.randint(99, (), generator=g)) + 100 * rank) for name in NAMES},
    ):
        ways = [make(train=make_train(), probes=Probes(split_work=split_work)) for split_work in (None, False)]
        results = [found(each)[0] for each in ways]
        assert_equal(results[0], results[1], 1e-9)
        assert all(other[0][:2] == results[0][0][:2] for other in gathered(results[0]))


def check_a_loss_that_needs_all_ranks_can_be_taken_together():
    def centred(model, b):
        mean = b[0].mean(0)
        dist.all_reduce(mean)
        return loss(model, (b[0] - mean / dist.get_world_size(), b[1]))

    balancer = make(compute=centred, probes=Probes(split_work=False))
    mixture = balancer.step().mixture
    assert all(other == mixture for other in gathered(mixture))


def check_skipping_is_collective():
    rank = dist.get_rank()

    def source(generator):
        x, y = batch(3)
        return x * (float("nan") if rank == 1 else 1.0), y

    balancer = make(dev={"y": source})
    before = balancer.mixture.probabilities
    update = balancer.step()
    assert "dev set 'y' is not finite" in update.skipped
    assert update.mixture == before


def check_an_error_is_raised_on_all_ranks():
    rank, calls = dist.get_rank(), []

    def failing(model, b):
        calls.append(1)
        if rank == 1 and len(calls) > 3:
            raise KeyError("only here")
        return loss(model, b)

    for ahead, split_work in itertools.product((None, 0.1), (None, False)):
        calls.clear()
        balancer = make(compute=failing, rule=scorer(Cosine(ahead)), probes=Probes(batches=4, split_work=split_work))
        with pytest.raises(KeyError if rank == 1 else RuntimeError, match="only here") as error:
            balancer.step()
        if rank != 1:
            assert "on rank 1: KeyError" in str(error.value)

    def unlucky(generator):
        if rank == 0:
            raise OSError("no such file")
        return batch(0)

    for options in ({"dev": {"y": unlucky}, "priority": "low"}, {"train": {"a": unlucky}}):
        with pytest.raises(OSError if rank == 0 else RuntimeError, match="no such file"):
            make(**options).step()
    dist.barrier()  # no rank was left waiting


def check_a_parameter_that_some_ranks_use_counts_as_zero_elsewhere():
    rank = dist.get_rank()
    model = nn.ModuleDict({"a": nn.Linear(4, 3), "b": nn.Linear(4, 3)}).double()

    def own_head(model, b):
        return nn.functional.cross_entropy(model["a" if rank == 0 else "b"](b[0]), b[1])

    table = relevance(model, own_head, {"t": [batch(rank)] * 2}, {"d": [batch(rank)] * 2}, batches=2)
    assert 0 < table["d"]["t"][0] <= 1 + 1e-12


def check_samplers_and_streams_find_their_rank():
    rank, size = dist.get_rank(), dist.get_world_size()
    sizes, mixture = {"a": 11, "b": 30}, Mixture({"a": 0.6, "b": 0.4})
    sampler = MixtureSampler(sizes, mixture, batch_size=4, seed=2)
    whole = MixtureSampler(sizes, mixture, batch_size=4 * size, seed=2, rank=0, world_size=1)
    for mine, everyones, _ in zip(sampler, whole, range(20), strict=False):
        assert mine == everyones[rank::size]
    functions = {name: lambda g: torch.rand(1, generator=g) for name in "ab"}
    stream, one = interleave(functions, mixture), interleave(functions, mixture, rank=0, world_size=1)
    names = gathered([next(stream)[0] for _ in range(20)])
    assert [name for group in zip(*names, strict=True) for name in group] == [next(one)[0] for _ in range(20 * size)]


def check_ranks_that_disagree_are_refused():
    rank = dist.get_rank()
    train, dev = sources("function", NAMES, 0), sources("function", DEV, 20)
    for names, shares, seed, what in (
        (NAMES if rank == 0 else NAMES[::-1], {}, 0, "datasets, or another order"),
        (NAMES, {"a": 1 + rank}, 0, "mixtures"),
        (NAMES, {}, rank, "seeds"),
    ):
        mixture = Mixture.proportional({name: shares.get(name, 1) for name in names})
        balancer = Balancer(mixture, network(), loss, train=train, dev=dev, every=1, seed=seed)
        with pytest.raises(ValueError, match=f"different.*{what}"):
            balancer.step()
    balancer = make(priority="low")
    balancer.step()
    if rank == 0:  # the usual mistake: validation on one rank only
        balancer.dev_losses = dict.fromkeys(DEV, 1.0)
    with pytest.raises(ValueError, match="different dev_losses"):
        balancer.step()


def check_rewards_are_the_same_bits_everywhere():
    rank = dist.get_rank()

    def nearly(probe, round_):
        return probe.of_datasets(round_, lambda gradient, norm: 0.1 + 1e-9 * rank)

    def fails(gradient, norm):
        if rank == 1:
            raise RuntimeError("no reward")
        return 1.0

    mixture = make(rule=scorer(nearly)).step().mixture
    assert all(other == mixture for other in gathered(mixture))
    with pytest.raises(RuntimeError, match="no reward"):
        make(rule=scorer(lambda probe, round_: probe.of_datasets(round_, fails))).step()


def check_a_model_of_a_subgroup_is_balanced_in_it():
    rank = dist.get_rank()
    groups = [dist.new_group([r]) for r in range(dist.get_world_size())]
    rewards = gathered(make(model=DistributedDataParallel(network(rank), process_group=groups[rank])).step().rewards)
    assert rewards[0] != rewards[1]


def check_observing_averaged_gradients_is_refused():
    model = network()
    balancer = make(model=model, rule=scorer(MovingAverage()))
    loss(model, batch(dist.get_rank())).backward()
    with pytest.raises(ValueError, match="observe.*ranks"):
        balancer.observe("a")


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_")]


@pytest.mark.claim("Several processes", "W replicas and shards equal one process")
@pytest.mark.claim("The method", "W replicas equal one process")
@pytest.mark.claim(
    "The method", "gradients shared out over ranks, taken together, or taken by one process agree; the bytes sent"
)
@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.slow
def test_ranks_equal_one_process(world_size, tmp_path):
    assert_ranks_equal_one_process(all_updates, tmp_path, world_size, checks=CHECKS)


@pytest.mark.claim("The method", "updates that probe a part: unbiased, every set in time; order, resume, ranks")
@pytest.mark.slow
def test_two_processes_equal_one(tmp_path):
    assert_ranks_equal_one_process(updates_of_parts, tmp_path, tolerance=1e-8)


def test_what_is_not_finite_or_zero_is_named_in_the_order_of_one_process():
    ((update,), _) = found(broken(), updates=1)
    assert "dev set 'x' is not finite (and 4 more" in update[3]
    assert "dataset 'd' is zero" in update[4][0]


def test_alone_the_batches_in_all_are_those_of_the_process():
    in_all = Probes(batches=3, count="in all")
    assert_equal(found(make(probes=in_all)), found(make(probes=Probes(batches=3))))
