"""Real processes (gloo): a model in the shards of FSDP2 is balanced as the same model whole, and stays in shards."""

import copy
import json

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from assertions import assert_equal, assert_ranks_equal_one_process
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from toy_balancers import asked, many, probe_of
from toys import batch, dataset, loss

from multidds import Balancer, Mixture, Probes, batches_of
from multidds.probes.probed_model import ProbedModel
from multidds.rules import Cosine, MovingAverage, RelevancePlan, Scorer, StabilizedCosine

NAMES, DEV = ("a", "b", "c"), ("x", "y")


def smallest(probe, round_):
    """A reward of a user: the smallest cosine, of the table."""
    cosines = probe.table(round_).cosines().amin(dim=0)
    return probe.agreed(dict(zip(round_.datasets, cosines.tolist(), strict=True)))


IN_FOUR = Probes(batches=16, count="in all")  # so that four ranks, too, have a batch of each of four parts
CASES = [
    {"rule": Scorer(Cosine(), lr=1)},
    {"rule": Scorer(StabilizedCosine(), lr=1, table=64), "priority": "low"},
    {"rule": Scorer(Cosine(ahead=0.05), lr=1), "priority": "high"},
    {"rule": Scorer(MovingAverage(), lr=1)},
    {"rule": RelevancePlan(), "probes": IN_FOUR},
    {"rule": Scorer(smallest, lr=1)},
]


class Uneven(nn.Module):
    """Layers that two and four ranks cannot divide evenly, one of them with fewer rows than ranks."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 7), nn.Linear(7, 5), nn.Linear(5, 3)
        self.drop, self.unused = nn.Dropout(0.4), nn.Linear(2, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.second(self.drop(torch.tanh(self.first(x))))))


def sharded(model, **kwargs):
    for layer in (model.first, model.second):
        fully_shard(layer, **kwargs)
    return fully_shard(model, **kwargs)


def network():
    """In shards, if there are other processes; whole, if there are none."""
    torch.manual_seed(0)
    model = Uneven().double()
    return sharded(model) if dist.is_initialized() else model


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def make(model, **options):
    train, dev = (
        {name: batches_of(dataset(30, seed=seed + i), 4) for i, name in enumerate(names)}
        for seed, names in ((0, NAMES), (10, DEV))
    )
    options = {"rule": Scorer(lr=1), "probes": Probes(batches=8, count="in all"), "every": 1, **options}
    mixture = Mixture.proportional({"a": 1, "b": 2, "c": 5})
    return Balancer(mixture, model, loss, train=train, dev=dev, **options)


def found(update):
    assert update.skipped is None
    table = update.alignment
    tensors = [] if table is None else [table.dev_train, table.dev_dev, table.train_norms]
    return [
        update.rewards,
        update.noise,
        update.mixture,
        update.dev_losses,
        update.train_losses,
        update.weights,
        tensors,
    ]


def parts():
    """Two updates of 40 datasets, each of a part."""
    model = network()
    balancer = many(model=model, probes=IN_FOUR)
    before = [local(p).tolist() for p in model.parameters()]
    results = [found(balancer.update()) for _ in range(2)]
    assert before == [local(p).tolist() for p in model.parameters()]
    return results


def shrink(model):
    """A step of training that is the same on every rank."""
    with torch.no_grad():
        for p in model.parameters():
            local(p).mul_(0.9)


AVERAGING = {  # states with tensors: averages of gradients, and of parameters
    "gradients": {"rule": Scorer(MovingAverage(), lr=0.1, optimizer=torch.optim.Adam)},
    "parameters": {"rule": RelevancePlan(), "probes": IN_FOUR},
}


def resumed(folder, kind):
    """The second update of a training: four ranks save after the first, two continue."""
    options, folder = AVERAGING[kind], folder / kind
    model = network()
    balancer = make(model, **options)
    size = dist.get_world_size() if dist.is_initialized() else 1
    if size != 2:
        balancer.step()
        shrink(model)
    state = balancer.state_dict()
    tensors = state.pop("tensors")
    saved = {"model": model.state_dict(), "balancer": json.dumps(state), "averages": tensors}
    if size == 4:
        dcp.save(saved, checkpoint_id=folder / "checkpoint")
    if size == 2:
        dcp.load(saved, checkpoint_id=folder / "checkpoint")
        model.load_state_dict(saved["model"])
        balancer.load_state_dict({**json.loads(saved["balancer"]), "tensors": saved["averages"]})
        other_model = network()
        other_model.load_state_dict(saved["model"])
        other = make(other_model, **options)
        whole = {key: tensor.full_tensor() for key, tensor in saved["averages"].items()}
        other.load_state_dict({**json.loads(saved["balancer"]), "tensors": whole})  # as a whole model has saved them
        other_update = other.step()
    update = balancer.step()
    assert size != 2 or other_update.rewards == update.rewards
    return found(update)


def all_updates(folder):
    results = []
    for case in CASES:
        model = network()
        balancer = make(model, **case)
        for _ in range(2):
            results.append(found(balancer.step()))
            shrink(model)
    return [results, *parts(), *(resumed(folder, kind) for kind in AVERAGING)]


# ------------------------------------------------------------------------------------------ checks on every rank


def check_probes_are_invisible():
    """Also in the middle of an accumulation, and if parameters are gathered now."""
    rank, ends = dist.get_rank(), []
    for with_update in (False, True):
        model = network()
        shards = list(model.parameters())
        balancer = make(model, rule=Scorer(Cosine(ahead=0.1)), priority="low")
        loss(model, batch(90 + rank)).backward()  # in .grad, in shards
        model.set_requires_gradient_sync(False)
        loss(model, batch(50 + rank)).backward()  # waits for the next one, whole
        loss(model, batch(60 + rank)).backward()
        with torch.no_grad():
            loss(model, batch(1))  # leaves the parameters of the root gathered
        gathered = list(model.head.parameters())
        assert not any(isinstance(p, DTensor) for p in gathered)
        assert not balancer.parameters_changed
        balancer.refresh_parameters()  # which are the shards, not what is gathered
        torch.manual_seed(7)
        before, grad = torch.get_rng_state(), shards[0].grad
        if with_update:
            assert balancer.step().skipped is None
        assert all(p is q for p, q in zip(model.head.parameters(), gathered, strict=True))
        assert torch.equal(torch.get_rng_state(), before)
        assert shards[0].grad is grad is not None
        model.set_requires_gradient_sync(True)
        loss(model, batch(70 + rank)).backward()
        named = list(model.named_parameters())
        assert all(isinstance(p, DTensor) for _, p in named)
        ends.append([(n, local(p).tolist(), None if p.grad is None else local(p.grad).tolist()) for n, p in named])
    assert ends[0] == ends[1]


def check_a_rank_holds_its_shards_only():
    model = network()
    held = [local(p).numel() for p in model.parameters()]
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, sum(held))
    assert sum(everyone) == sum(p.numel() for p in model.parameters())
    probed = ProbedModel(model, loss, None, "train", 0, owner="Balancer")
    with probed.invisible():
        gradient, _ = probed.gradient(("train", "a", 0), [(dist.get_rank(), batch(0))], dist.get_world_size())
    assert [g.numel() for g in gradient if g is not None] == held[: len(held) - 2]  # but for the unused ones
    balancer = make(model, rule=Scorer(MovingAverage()))
    balancer.step()
    assert sum(local(t).numel() for t in balancer.state_dict()["tensors"].values()) == len(NAMES) * sum(held)
    balancer = make(model, rule=RelevancePlan())
    balancer.step()
    averages = balancer.state_dict()["tensors"]
    for name, p in model.named_parameters():
        average = averages.pop(f"averaged.{name}")
        assert (average.shape, average.placements, average.device_mesh) == (p.shape, p.placements, p.device_mesh)
        assert torch.equal(local(average), local(p))
    assert not averages


def answers(probe):
    """A table, rewards, and rewards a step ahead."""
    table, *rewards = (
        asked(probe, question) for question in (lambda probe, round_: probe.table(round_), Cosine(), Cosine(ahead=0.1))
    )
    return [table.dev_train, table.dev_dev, table.train_norms, table.train_losses, *rewards]


def check_the_answers_of_probes():
    """Steps ahead, other placements, copies of shards, chosen parameters, lower precision."""
    rank, size = dist.get_rank(), dist.get_world_size()
    groups = [dist.new_group([r]) for r in range(size)]
    shape = (2, 2) if size == 4 else (1, 2)
    copies = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))  # HSDP
    narrow = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for sharding, chosen, dtype in (
        ({}, False, torch.float64),
        ({"shard_placement_fn": lambda p: Shard(1)}, False, torch.float64),
        ({"mesh": copies}, False, torch.float64),
        ({}, True, torch.float64),
        ({"mp_policy": narrow}, True, torch.float32),
    ):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.Tanh(), nn.Linear(8, 4, bias=False)).to(dtype)
        whole = copy.deepcopy(model)
        fully_shard(model, **sharding)
        model.set_reshard_after_backward(False)
        data = [{n: [batch(10 * i + r, dtype=dtype) for r in range(size)] for i, n in enumerate(NAMES)}] * 2
        alone = DistributedDataParallel(whole, process_group=groups[rank])
        found, expected = (
            answers(
                probe_of(
                    wrapped,
                    *data,
                    batches=count,
                    mode="eval" if chosen else "train",
                    params=bare[2].parameters() if chosen else None,
                )
            )
            for wrapped, bare, count in ((model, model, 1), (alone, whole, size))
        )
        assert_equal(found, expected, 1e-12 if dtype == torch.float64 else 0.05)
        assert dtype == torch.float64 or not torch.allclose(found[0], expected[0], rtol=1e-5)
        assert all(p.dtype == dtype for p in model.parameters())


def check_an_error_is_raised_on_all_ranks():
    rank = dist.get_rank()

    def unlucky(generator):
        if rank == 1:
            raise OSError("no such file")
        return batch(0)

    for priority in ("regular", "low"):
        model = network()
        sources = {"train": {"a": batches_of(dataset(), 4)}, "dev": {"x": batches_of(dataset(), 4), "y": unlucky}}
        balancer = Balancer(Mixture.uniform("a"), model, loss, every=1, priority=priority, **sources)
        with pytest.raises(OSError if rank == 1 else RuntimeError, match="no such file"):
            balancer.step()
    loss(model, batch(rank)).backward()  # no rank was left waiting


def check_what_is_refused():
    size = dist.get_world_size()
    sets = {"train": {"a": batches_of(dataset(), 4)}, "dev": {"x": batches_of(dataset(), 4)}}
    parallel = parallelize_module(Uneven(), init_device_mesh("cpu", (size,)), {"first": ColwiseParallel()})
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("dp", "tp"))
    both = parallelize_module(Uneven(), mesh["tp"], {"first": RowwiseParallel()})
    fully_shard(both, mesh=mesh["dp"])
    half, deep = Uneven(), Uneven()
    fully_shard(half.first)
    deep.head.weight.ds_id = 0
    first_generation = FullyShardedDataParallel(Uneven(), device_id=torch.device("cpu"))
    for model, options, message in (
        (parallel, {}, "'first.weight'.*tensor parallelism"),
        (both, {}, "tensor parallelism"),
        (half, {}, "'second.weight' is not sharded"),
        (first_generation, {}, "FullyShardedDataParallel"),
        (deep, {}, "DeepSpeed.*'head.weight'"),
        (network(), {"probes": Probes(batches=size + 1, count="in all")}, f"multiple of the {size} ranks.* {size + 1}"),
    ):
        with pytest.raises(ValueError, match=f"Balancer: .*{message}"):
            Balancer(Mixture.uniform("a"), model, loss, every=1, **sets, **options)


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_")]


@pytest.mark.claim("Several processes", "W replicas and shards equal one process")
@pytest.mark.claim(
    "The method",
    "a sharded model is balanced like a whole one, on two and four ranks, by parts too; probes "
    "are invisible; checkpoints",
)
@pytest.mark.slow
def test_a_sharded_model_is_balanced_as_a_whole_one(tmp_path):
    for world_size in (4, 2):
        folder = tmp_path / str(world_size)
        folder.mkdir()
        assert_ranks_equal_one_process(all_updates, folder, world_size, (tmp_path,), checks=CHECKS)
