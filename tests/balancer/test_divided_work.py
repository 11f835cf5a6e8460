"""Real processes (gloo): ranks that share the gradients of an update out find what they find together."""

import json
import os
from collections import Counter

import pytest
import torch
import torch.distributed as dist
from ranks import leave
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from toys import batch, dataset, loss

from multidds import Balancer, Mixture, batches_of
from multidds.gradients.work_split import owners_of
from multidds.rules import RelevancePlan, Scorer

pytestmark = [pytest.mark.claim("Several processes", "W replicas and shards equal one process")]

WORLD_SIZE = 3
NAMES, DEV = tuple("abcde"), tuple("wxyz")
CASES = [
    {"reward": "multidds"},
    {"reward": "multidds-s", "sketch": 64, "priority": "low"},
    {"reward": "multidds", "step_ahead": 0.05, "sketch": 64},
    {"reward": "multidds-s", "step_ahead": 0.05, "sketch": "exact", "priority": "low"},
    {"reward": "multidds", "sketch": "exact"},
    {"reward": "moving-average"},
    {"reward": lambda alignment, weights: alignment.cosines().amin(dim=0), "sketch": 64, "optimizer": True},
    {"scorer": RelevancePlan()},
]


def data(seed, names, rank=0):
    return {name: dataset(30, seed=seed + i + 100 * rank) for i, name in enumerate(names)}


def sources(kind, sets):
    if kind == "function":
        return {name: batches_of(d, 4) for name, d in sets.items()}
    if kind == "list":
        return {name: list(DataLoader(d, batch_size=4)) for name, d in sets.items()}
    return {name: DataLoader(d, batch_size=4, shuffle=True) for name, d in sets.items()}


class Stateful:
    """Keeps its own place."""

    def __init__(self, data):
        self._data, self._place = data, 0

    def __iter__(self):
        return self

    def __next__(self):
        self._place = (self._place + 1) % len(self._data)
        return self._data[self._place]

    def state_dict(self):
        return {"place": self._place}

    def load_state_dict(self, state):
        self._place = state["place"]


def make(train=None, dev=None, optimizer=False, compute=loss, **kwargs):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 50), nn.Dropout(0.4), nn.Linear(50, 3)).double()
    if optimizer:
        kwargs["optimizer"] = torch.optim.Adam(model.parameters())
    train = sources("function", data(0, NAMES)) | (train or {})
    dev = sources("function", data(20, DEV)) | (dev or {})
    mixture = Mixture.proportional({name: i + 1 for i, name in enumerate(NAMES)})
    options = {"scorer": Scorer(lr=1), "every": 1, **kwargs}
    return Balancer(mixture, model, compute, train=train, dev=dev, **options)


def found(balancer, updates=2):
    out = []
    for _ in range(updates):
        update = balancer.step()
        numbers = [update.rewards, update.noise, update.mixture, update.dev_losses, update.train_losses, update.weights]
        table = update.alignment
        tensors = [] if table is None else [table.dev_train, table.dev_dev, table.train_norms]
        out.append([list(map(list, numbers)), numbers, [t.tolist() for t in tensors], update.skipped, update.notes])
    return out


def same_everywhere(value):
    everyone = [None] * WORLD_SIZE
    dist.all_gather_object(everyone, value)
    return all(other == value for other in everyone)


class Counted:
    """A loss that counts its passes by the data that they see."""

    def __init__(self, compute=loss):
        self.passes, self._compute = Counter(), compute

    def __call__(self, model, batch):
        if torch.is_grad_enabled():
            self.passes[float(batch[0].sum())] += 1
        return self._compute(model, batch)


def check_both_ways_agree(rank, folder):
    of_kinds = (
        [("function", case) for case in CASES] + [("loader", case) for case in CASES[1:4:2]] + [("list", CASES[0])]
    )
    for kind, case in of_kinds:
        train, dev = sources(kind, data(0, NAMES)), sources(kind, data(20, DEV))
        shared, together = (make(train, dev, batches=2, share_out=share_out, **case) for share_out in (True, False))
        apart = found(shared)
        close_to(apart, found(together))
        states = [{**balancer.state_dict(), "tensors": None} for balancer in (shared, together)]
        assert same_everywhere([apart, states[0]])
        assert all(states[0][role] == states[1][role] for role in ("train", "dev"))  # the places of loaders


def check_less_goes_over_the_wire(rank, folder):
    sent, original = Counter(), dist.all_reduce

    def counted(tensor, *args, **kwargs):
        sent[way] += tensor.numel() * tensor.element_size()
        return original(tensor, *args, **kwargs)

    dist.all_reduce = counted
    try:
        for way in ("shared", "together"):
            make(reward="multidds", share_out=way == "shared").step()
    finally:
        dist.all_reduce = original
    size = 8 * sum(p.numel() for p in (nn.Linear(4, 50).weight, torch.ones(50), nn.Linear(50, 3).weight, torch.ones(3)))
    assert sent["together"] - (len(NAMES) + len(DEV)) * size in range(1000)
    # v, and the rest of each: 4 = 1 * 3 + 1 dev sets, 5 = 1 * 3 + 2 datasets.
    assert sent["shared"] - (1 + 1 + 2) * size in range(1000)


def check_every_rank_has_as_much_to_do(rank, folder):
    for case in ({"reward": "multidds", "batches": 2}, {"scorer": RelevancePlan(), "batches": 2}):
        compute = Counted()
        balancer = make(compute=compute, **case)
        balancer.step()
        compute.passes.clear()
        balancer.step()
        assert sum(compute.passes.values()) == 2 * (len(NAMES) + len(DEV))


def check_data_that_differ_are_taken_together(rank, folder):
    own = data(0, NAMES, rank)

    def distributed():
        return {name: DataLoader(d, 4, sampler=DistributedSampler(d, WORLD_SIZE, rank)) for name, d in own.items()}

    def stateful():
        return {name: Stateful(list(DataLoader(d, 4))) for name, d in data(0, NAMES).items()}

    for train in (*(lambda k=kind: sources(k, own) for kind in ("loader", "list")), distributed, stateful):
        ways = [make(train(), sources("list", data(20, DEV)), share_out=share_out) for share_out in (True, False)]
        apart = found(ways[0])
        close_to(apart, found(ways[1]))
        assert same_everywhere(apart)


def in_all(total):
    return [
        found(make(total_batches=total, **case))
        for case in ({"reward": "multidds", "sketch": 64}, {"scorer": RelevancePlan()})
    ]


def check_a_number_of_batches_in_all(rank, folder):
    result = [in_all(total) for total in (1, 2, 4)]
    assert same_everywhere(result)
    (folder / f"in_all{rank}.json").write_text(json.dumps(result))


def check_an_error_is_everyones(rank, folder):
    def failing(model, batch):
        if rank == 1 and len(seen.passes) > 3:
            raise KeyError("only here")
        return seen(model, batch)

    for step_ahead in (None, 0.1):
        seen = Counted()
        with pytest.raises(KeyError if rank == 1 else RuntimeError, match="only here") as error:
            make(compute=failing, step_ahead=step_ahead, batches=4).step()
        if rank != 1:
            assert "the probe failed on rank 1: KeyError: 'only here'" in str(error.value)

    def unlucky(generator):
        if rank == 0:
            raise OSError("no file")
        return batch(0)

    with pytest.raises(OSError if rank == 0 else RuntimeError, match="no file"):
        make({"a": unlucky}).step()
    dist.barrier()  # nobody was left waiting


def broken():
    train, dev = data(0, NAMES), data(20, DEV)
    for d in (train["c"], dev["x"]):
        d.tensors[0].fill_(float("nan"))
    train["d"].tensors[0].fill_(0.0)
    return make(sources("function", train), sources("function", dev), reward="multidds")


def check_what_is_not_finite_is_found_by_all(rank, folder):
    (update,) = found(broken(), updates=1)
    assert same_everywhere(update[3:])
    (folder / f"broken{rank}.json").write_text(json.dumps(update[3:]))


def check_a_ddp_model(rank, folder):
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 3).double())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train, dev = sources("function", data(0, NAMES)), sources("function", data(20, DEV))
    balancer = Balancer(Mixture.uniform(NAMES), model, loss, train=train, dev=dev, every=1)
    for step in range(3):
        loss(model, batch(10 * step + rank)).backward()
        balancer.step()
        optimizer.step()
        optimizer.zero_grad()
    assert same_everywhere([balancer.mixture.probabilities, [p.tolist() for p in model.parameters()]])


CHECKS = [
    check_both_ways_agree,
    check_less_goes_over_the_wire,
    check_every_rank_has_as_much_to_do,
    check_data_that_differ_are_taken_together,
    check_a_number_of_batches_in_all,
    check_an_error_is_everyones,
    check_what_is_not_finite_is_found_by_all,
    check_a_ddp_model,
]


def one_rank(rank, folder):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=WORLD_SIZE)
    for check in CHECKS:
        check(rank, folder)
        (folder / f"{check.__name__}{rank}").touch()
    leave()


@pytest.mark.claim(
    "The method", "gradients shared out over ranks, taken together, or taken by one process agree; the bytes sent"
)
@pytest.mark.slow
def test_gradients_that_are_shared_out_are_those_of_one_process(tmp_path):
    torch.multiprocessing.start_processes(one_rank, (tmp_path,), nprocs=WORLD_SIZE, start_method="fork")
    for check in CHECKS:
        assert all((tmp_path / f"{check.__name__}{rank}").exists() for rank in range(WORLD_SIZE))
    close_to(json.loads((tmp_path / "in_all0.json").read_text()), [in_all(total) for total in (1, 2, 4)])
    (update,) = found(broken(), updates=1)
    assert json.loads((tmp_path / "broken0.json").read_text()) == json.loads(json.dumps(update[3:]))
    assert update[3] == "the gradient of dev set 'x' is not finite (and 6 more like it)"


def close_to(got, expected):
    if isinstance(expected, dict):
        assert got.keys() == expected.keys()
        got, expected = [got[key] for key in expected], list(expected.values())
    if isinstance(expected, (list, tuple)):
        assert len(got) == len(expected)
        for a, b in zip(got, expected, strict=True):
            close_to(a, b)
    elif isinstance(expected, float):
        assert got == pytest.approx(expected, abs=1e-9, nan_ok=True)
    else:
        assert got == expected


def test_full_rounds_are_shared_out_and_the_rest_is_taken_together():
    assert owners_of("abcde", "abcde", batches=4, ranks=2) == {"a": 0, "b": 1, "c": 0, "d": 1}
    assert owners_of("abcde", "bcde", batches=4, ranks=2) == {"b": 0, "c": 1, "d": 0, "e": 1}
    assert owners_of("a", "a", batches=4, ranks=2) == {}
    assert owners_of("abcde", (), batches=4, ranks=2) == {}


def test_the_rest_is_shared_out_too_where_all_together_would_take_longer():
    # Two batches for eight ranks: together they would take one pass after another, with most of them idle.
    assert owners_of("abcde", "abcde", batches=2, ranks=8) == {name: i for i, name in enumerate("abcde")}
    assert owners_of("a", "a", batches=2, ranks=8) == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"batches": 2, "total_batches": 4},
            "give batches=2, of each process, or total_batches=4, of all, but not both",
        ),
        ({"total_batches": 0}, "total_batches must be a whole number of at least 1, but it is 0"),
    ],
)
def test_a_wrong_number_of_batches_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


def test_alone_the_batches_in_all_are_those_of_the_process():
    assert found(make(total_batches=3)) == found(make(batches=3))
